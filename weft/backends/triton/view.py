"""A Triton kernel as its text is made of it."""

from __future__ import annotations

from collections.abc import Sequence

from weft.backends.triton.places import Places
from weft.backends.triton.schedule import VECTOR_BYTES, TritonKernel, TritonSchedule
from weft.ir.dtypes import itemsize
from weft.ir.program import Buffer, Output
from weft.lowering.view import KernelView


class View(KernelView[TritonSchedule]):
    """A kernel, and where its things are."""

    def __init__(self, kernel: TritonKernel) -> None:
        super().__init__(kernel)
        self.places = Places(kernel)
        self._extents: dict[tuple[str, bool], tuple[bool, bool]] = {}

    def pieces(self) -> range:
        """Of a row."""
        return range(self.schedule.pieces) if self.schedule.columns else range(1)

    def has_columns(self, buffer: Buffer) -> bool:
        """Whether its address changes along columns."""
        return self.places.has_columns(buffer)

    def row_buffers(self) -> list[Buffer]:
        """Tensors with rows and columns, whose address is that of a row's beginning and a column's place in it."""
        buffers = [*self.used_inputs(), *(o.buffer for stores in self.loops.stores for o in stores)]
        places = self.places
        return [b for b in buffers if places.has_rows(b) and places.has_columns(b) and places.row_offset(b)]

    @staticmethod
    def aligned(buffers: Sequence[Buffer]) -> int:
        """Elements of a vector of the smallest ones."""
        return VECTOR_BYTES // min(itemsize(b.dtype) for b in buffers)

    def along_columns(self, output: Output) -> bool:
        """Whether an output is written for each column, or once a row."""
        return self.is_vector(output.value) or super().along_columns(output)

    def extent(self, name: str) -> tuple[bool, bool]:
        """Whether the tensor that is computed for a value has rows, and columns: what is made of expanded inputs alone
        has none, though the value may vary over them."""
        return self._extent(name, spread=False)

    def is_spread(self, name: str) -> bool:
        """Whether the tensor of a value has as many equal rows as a tile, since it is made of what is loaded so."""
        return not self.extent(name)[0] and self._extent(name, spread=True)[0]

    def _extent(self, name: str, *, spread: bool) -> tuple[bool, bool]:
        if name in self.inputs:
            buffer = self.inputs[name]
            rows, columns = self.places.has_rows(buffer), self.places.has_columns(buffer)
            rows = rows and not self.places.is_uniform(buffer)
            return rows or (spread and columns and self.places.spreads_weights), columns
        if (name, spread) not in self._extents:
            value = self.by_name[name]
            if value.op == "iota":
                found = bool(set(value.dims) & set(self.places.rows)), self.is_vector(name)
            else:
                args = [self._extent(arg, spread=spread) for arg in value.args]
                found = any(rows for rows, _ in args), self.is_vector(name) and any(columns for _, columns in args)
            self._extents[name, spread] = found
        return self._extents[name, spread]
