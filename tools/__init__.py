"""Measurements and fits of weft itself, and the demonstration: what is run from a checkout and is in no wheel."""
