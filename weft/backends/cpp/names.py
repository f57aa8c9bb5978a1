"""C++ names and addresses for a kernel: what a value, a buffer, an index and a size are called."""

from __future__ import annotations

from collections.abc import Iterable

from weft.backends.c_expressions import C_WORDS
from weft.backends.cpp.schedule import CppKernel
from weft.ir.program import Buffer, Size

_OURS = (
    "w buffers parameters threads lanes r rows chunk chunks segment segments first last tile tile_rows whole block end "
    "rows_per_chunk finish_columns all more"
)
OURS = frozenset(_OURS.split())
TAKEN = OURS | C_WORDS
"""Names that no dimension, parameter, buffer or value has in the C++; OURS: those of the renderer's own variables."""
DERIVED = ("_data", "_size", "_first", "_held", "_lanes", "_tile", "_chunk", "_kept", "_partial", "_total", "_rows")
"""What the renderer puts behind the name of a dimension, a value or a buffer to make another."""


class Names:
    """C++ of addresses, sizes and indices of one kernel, whose own names are free."""

    def __init__(self, kernel: CppKernel) -> None:
        self.dims = {d.name: d.size for d in kernel.program.dims}

    def data(self, buffer: str) -> str:
        """Pointer to the first element of a buffer."""
        return f"{buffer}_data"

    def size(self, dim: str) -> str:
        return f"{dim}_size"

    def product(self, dims: Iterable[str]) -> str:
        """Number of elements of some dimensions."""
        return " * ".join(self.size(d) for d in dims) or "1"

    def stride(self, stride: Size) -> str:
        return str(stride)

    def address(self, buffer: Buffer) -> str:
        """Pointer to the element at the current indices, which have the names of the dimensions."""
        return " + ".join([self.data(buffer.name), *self._offsets(buffer)])

    def element(self, buffer: Buffer) -> str:
        """The element at the current indices."""
        return f"{self.data(buffer.name)}[{' + '.join(self._offsets(buffer)) or '0'}]"

    def _offsets(self, buffer: Buffer) -> list[str]:
        terms = [str(buffer.offset)] if buffer.offset else []
        for dim, stride in zip(buffer.dims, buffer.strides, strict=True):
            terms.append(dim if stride == 1 else f"{dim} * {self.stride(stride)}")
        return terms

    def linear(self, dims: tuple[str, ...]) -> str:
        """Index into a contiguous array over some dimensions."""
        text = ""
        for dim in dims:
            before = f"({text})" if " " in text else text
            text = f"{before} * {self.size(dim)} + {dim}" if text else dim
        return text or "0"
