"""CUDA C++ texts for sizes, indices and addresses of one kernel.

The rows of a segment are one running index, ``row``, segments another, ``segment``, columns a third, ``column``; the
index along a dimension is taken from these by division.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.view import View
from weft.ir.program import Buffer, Size


class Places(View):
    """Of a kernel whose own names are free."""

    def __init__(self, kernel: CudaKernel) -> None:
        super().__init__(kernel)
        self.dims = {d.name: d.size for d in kernel.program.dims}

    def product(self, dims: Iterable[str]) -> str:
        """Elements along some dimensions: a number, or names of parameters."""
        number, names = 1, list[str]()
        for size in (self.dims[dim] for dim in dims):
            if isinstance(size, str):
                names.append(size)
            else:
                number *= size
        return " * ".join([*names, *([str(number)] if number != 1 or not names else [])])

    def index_of(self, dim: str, column: str = "column", row: str = "row") -> str:
        """The index along one dimension."""
        for dims, flat in ((self.segments, "segment"), (self.inside, row), (self.columns, column)):
            if dim in dims:
                return self._index(dims, dim, dim, flat)
        raise KeyError(dim)

    def offset(self, buffer: Buffer, row: str = "row") -> str:
        """Where a row begins in a buffer, in elements; empty if that is its beginning."""
        terms = [str(buffer.offset)] if buffer.offset else []
        terms += self._terms(buffer, self.segments, "segment") + self._terms(buffer, self.inside, row)
        return " + ".join(terms)

    def element(self, buffer: Buffer, column: str = "column") -> str:
        """The element of a buffer at the current indices."""
        terms = [self.offset(buffer), *self._terms(buffer, self.columns, column)]
        return f"{buffer.name}[{' + '.join(filter(None, terms)) or '0'}]"

    def end(self, buffer: Buffer) -> str:
        """How many elements there are from the first of a buffer to the last, and one more."""
        known, terms = buffer.offset + 1, list[str]()
        for dim, stride in zip(buffer.dims, buffer.strides, strict=True):
            size = self.dims[dim]
            if isinstance(size, int) and isinstance(stride, int):
                known += (size - 1) * stride
            elif stride != 0:
                terms.append(f"({size} - 1)" + (f" * {stride}" if stride != 1 else ""))
        return " + ".join([str(known), *terms])

    def _terms(self, buffer: Buffer, dims: Sequence[str], flat: str) -> list[str]:
        """Products of indices and strides; neighbouring dimensions that lie as one are one index."""
        groups: list[tuple[str, str, Size]] = []
        for dim in dims:
            stride, size = buffer.stride_of.get(dim, 0), self.dims[dim]
            before = groups[-1][2] if groups else None
            apart = stride * size if isinstance(stride, int) and isinstance(size, int) else None
            if groups and ((before == 0 and stride == 0) or (apart not in (None, 0) and before == apart)):
                groups[-1] = (groups[-1][0], dim, stride)
            else:
                groups.append((dim, dim, stride))
        found = ((self._index(dims, first, last, flat), stride) for first, last, stride in groups if stride != 0)
        return [index if stride == 1 else f"{index} * {stride}" for index, stride in found]

    def _index(self, dims: Sequence[str], first: str, last: str, flat: str) -> str:
        """The running index over the dimensions from ``first`` to ``last`` of one over ``dims``."""
        at, end = dims.index(first), dims.index(last) + 1
        divisor, modulus = self.product(dims[end:]), self.product(dims[at:end])
        text = flat if divisor == "1" else f"({flat} / ({divisor}))"
        return text if at == 0 else f"({text} % ({modulus}))"
