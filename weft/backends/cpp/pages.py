"""Large pages for fresh outputs.

A tensor of tens of megabytes that was just allocated has no memory yet: the first write to each 4 KB page is a fault of
about half a microsecond, which costs more than a kernel that runs at the speed of a copy. Linux makes pages of 2 MB on
request (``madvise``, unless ``/sys/kernel/mm/transparent_hugepage/enabled`` says ``never``), one fault each.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any

from torch import Tensor

LEAST_BYTES = 8 * 2**20
"""Smaller tensors come from memory that the allocator keeps."""
_PAGE = 2 * 2**20
_MADV_HUGEPAGE = 14


@cache
def _madvise() -> Any | None:
    if not sys.platform.startswith("linux"):
        return None
    function = getattr(ctypes.CDLL(None), "madvise", None)
    if function is not None:
        function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return function


def prefer_large_pages(outputs: Sequence[Tensor]) -> None:
    """Ask for large pages where outputs span them. What is refused is refused silently: it is a hint.

    ``launcher/cpu.h`` does the same for the calls it makes."""
    for tensor in outputs:
        size = large_page_bytes(tensor)
        if size > 0 and (advise := _madvise()) is not None:
            first = -(-tensor.data_ptr() // _PAGE) * _PAGE
            last = (tensor.data_ptr() + size) // _PAGE * _PAGE
            advise(first, last - first, _MADV_HUGEPAGE)


def large_page_bytes(tensor: Tensor) -> int:
    """Bytes of a tensor that is worth large pages, 0 for others."""
    size = tensor.numel() * tensor.itemsize
    return size if size >= LEAST_BYTES else 0
