"""Code generators: a folder each, behind one protocol (``backend.py``), in one list (``listed.py``)."""
