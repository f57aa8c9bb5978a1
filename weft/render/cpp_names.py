"""C++ names and addresses for a kernel: what a value, a buffer, an index and a size are called."""

from __future__ import annotations

from collections.abc import Iterable

from weft.ir.program import Buffer, Size
from weft.plan.kernel import Kernel

_CPP = (
    "alignas alignof and asm auto bool break case catch char class const constexpr continue default "
    "delete do double else enum explicit export extern false float for friend goto if inline int long "
    "mutable namespace new not operator or private protected public register return short signed sizeof "
    "static struct switch template this throw true try typedef union unsigned using virtual void volatile "
    "while xor "
)
_OURS = (
    "w buffers parameters threads lanes r rows chunk chunks segment segments first last tile tile_rows whole block end "
    "rows_per_chunk finish_columns all more"
)
_TAKEN = frozenset((_CPP + _OURS).split())


class Names:
    """Names of one kernel, free of collisions with C++ and with each other."""

    def __init__(self, kernel: Kernel) -> None:
        self.dims = {d.name: d.size for d in kernel.program.dims}
        self._taken = _TAKEN | self.dims.keys() | {f"{d}_size" for d in self.dims} | {*kernel.program.parameters}

    def value(self, name: str) -> str:
        """A value or loaded input."""
        return f"{name}_" if name in self._taken else name

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
            text = (
                f"({text}) * {self.size(dim)} + {dim}"
                if " " in text
                else f"{text} * {self.size(dim)} + {dim}"
                if text
                else dim
            )
        return text or "0"
