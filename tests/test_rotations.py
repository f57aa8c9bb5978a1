"""Rotations of queries and keys: read by halves or by pairs, in the kernel of the norm before them."""

from __future__ import annotations
