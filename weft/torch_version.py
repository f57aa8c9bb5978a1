"""Which releases of torch weft is made for."""

from __future__ import annotations

import torch


def torch_version_supported() -> bool:
    """Whether the torch at hand is one weft is made for (2.11 to 2.15)."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    return (2, 11) <= (major, minor) < (2, 16)
