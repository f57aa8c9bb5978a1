"""Binaries on a GPU: whoever compiled them, they are loaded and started here."""
