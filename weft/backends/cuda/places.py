"""CUDA C++ texts for sizes, indices and addresses of one kernel.

The rows of a segment are one running index, ``row``, segments another, ``segment``, columns a third, ``column``; the
index along a dimension is taken from these by division.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.backends.cuda.schedule import CudaKernel
from weft.backends.cuda.view import View
from weft.ir.program import Buffer, Size
from weft.lowering import addresses


class Places(View):
    """Of a kernel whose own names are free."""

    def __init__(self, kernel: CudaKernel) -> None:
        super().__init__(kernel)
        self.dims = {d.name: d.size for d in kernel.program.dims}
        self.parts = "parts.count()" if self.has_parts else "chunks"
        """How many partial results there are."""

    def product(self, dims: Iterable[str]) -> Size:
        """Elements along some dimensions: a number, or names of parameters."""
        return addresses.count(self.dims, dims)

    def index_of(self, dim: str, column: str = "column", row: str = "row") -> str:
        """The index along one dimension."""
        for dims, flat in ((self.segments, "segment"), (self.inside, row), (self.columns, column)):
            if dim in dims:
                return addresses.index(self.dims, dims, dim, dim, flat, "/")
        raise KeyError(dim)

    def offset(self, buffer: Buffer, row: str = "row") -> str:
        """Where a row begins in a buffer, in elements; empty if that is its beginning. row: empty for the first."""
        terms = [str(buffer.offset)] if buffer.offset else []
        terms += self._terms(buffer, self.segments, "segment") + (self._terms(buffer, self.inside, row) if row else [])
        return " + ".join(terms)

    def segment_of(self, part: str) -> str:
        """The segment that a part of a chunk is of."""
        return f"parts.place({part}){' / apart' * (self.apart > 1)}"

    def element(self, buffer: Buffer, column: str = "column") -> str:
        """The element of a buffer at the current indices."""
        terms = [self.offset(buffer), *self._terms(buffer, self.columns, column)]
        return f"{buffer.name}[{' + '.join(filter(None, terms)) or '0'}]"

    def end(self, buffer: Buffer) -> str:
        """How many elements there are from the first of a buffer to the last, and one more."""
        total: Size = buffer.offset + 1
        for dim, stride in reversed([*zip(buffer.dims, buffer.strides, strict=True)]):
            size = self.dims[dim]
            if isinstance(size, int) and isinstance(stride, int) and isinstance(total, int):
                total += (size - 1) * stride
            elif stride == total:
                total = size if total == 1 else f"{size} * {total}"
            elif stride != 0:
                total = f"{total} + ({size} - 1)" + (f" * {stride}" if stride != 1 else "")
        return str(total)

    def _terms(self, buffer: Buffer, dims: Sequence[str], flat: str) -> list[str]:
        return addresses.terms(self.dims, buffer, dims, flat, "/")
