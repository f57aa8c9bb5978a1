"""Texts of indices and addresses: a running index over some dimensions, and what it is along one of them.

divide: how the language writes a quotient of integers rounded down, ``//`` or ``/``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from weft.ir.program import Buffer, Size


def count(sizes: Mapping[str, Size], dims: Iterable[str]) -> Size:
    """Number of elements of some dimensions, or its text where it is known at run time only. sizes: by dimension."""
    number, names = 1, list[str]()
    for size in (sizes[dim] for dim in dims):
        if isinstance(size, str):
            names.append(size)
        else:
            number *= size
    if not names:
        return number
    return " * ".join([*names, *([str(number)] if number != 1 else [])])


def index(
    sizes: Mapping[str, Size], dims: Sequence[str], first: str, last: str, flat: str, divide: str, step: int = 1
) -> str:
    """The index over the dimensions from ``first`` to ``last`` of a running one, ``flat``, over ``dims``. step:
    elements that the running index counts as one."""
    at, end = dims.index(first), dims.index(last) + 1
    divisor = count(sizes, dims[end:])
    divisor = divisor // step if isinstance(divisor, int) else divisor
    text = flat if divisor == 1 else f"({flat} {divide} {_factor(divisor)})"
    return text if at == 0 else f"({text} % {_factor(count(sizes, dims[at:end]))})"


def terms(
    sizes: Mapping[str, Size], buffer: Buffer, dims: Sequence[str], flat: str, divide: str, step: int = 1
) -> list[str]:
    """Products of indices and strides that an address is the sum of; neighbouring dimensions that lie as one are one
    index. step: as of ``index``."""
    groups: list[tuple[str, str, Size]] = []
    for dim in dims:
        stride = buffer.stride_of.get(dim, 0)
        if groups and _continues(groups[-1][2], sizes[dim], stride):
            groups[-1] = (groups[-1][0], dim, stride)
        else:
            groups.append((dim, dim, stride))
    found = (
        (index(sizes, dims, first, last, flat, divide, step), stride) for first, last, stride in groups if stride != 0
    )
    return [text if stride == 1 else f"{text} * {stride}" for text, stride in found]


def _continues(before: Size, size: Size, stride: Size) -> bool:
    if before == 0 and stride == 0:
        return True
    if isinstance(before, str) or isinstance(stride, str) or isinstance(size, str):
        return False
    return stride != 0 and before == stride * size


def _factor(size: Size) -> str:
    return f"({size})" if isinstance(size, str) and " " in size else str(size)
