"""Lets torchvision be imported beside another build of PyTorch than it was compiled for.

PyPI's torchvision cannot load its own operators beside a CPU build of PyTorch, and its import then stops at the first
that it describes. timm and transformers import it and need none of them for the models of the zoo.
"""

from __future__ import annotations

import torch

_MISSING = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_LIBRARIES: list[torch.library.Library] = []


def declare_missing() -> None:
    """Declare, without an implementation, the operators that the import wants, if torchvision did not load its own."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::" not in str(error) or _LIBRARIES:
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _MISSING:
            library.define(schema)
        _LIBRARIES.append(library)  # declarations go when the library does
    except ImportError:
        return
