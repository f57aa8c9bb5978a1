"""Workloads and models, and what ``weft bench`` and ``weft tune`` measure of them."""
