"""Render: the text of one kernel. A backend is a module with ``supports`` and ``render``."""
