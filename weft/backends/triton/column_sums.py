"""Column sums of a Triton kernel while it passes over rows: in registers, then in memory or complete."""

from __future__ import annotations

from weft.backends.triton.column_loop import ColumnLoop
from weft.backends.triton.expressions import COMBINE, reduction
from weft.backends.triton.launches import partial_name, sum_columns
from weft.ir.ops import ONLINE
from weft.ir.program import Value


class ColumnSums(ColumnLoop):
    """Writes what outer reductions need: a tensor for each that rows of a tile are added to."""

    def _pieces(self) -> range:
        return range(self.schedule.pieces) if self.schedule.columns else range(1)

    def _start_sums(self) -> None:
        for value in self.outer:
            for piece in self._pieces() if self._sums_vectors(value) else range(1):
                self.start_states(value, self.schedule.rows_per_tile, piece, alike=True)

    def _add(self, value: Value, piece: int) -> None:
        if value.op in ONLINE:
            states, operand = ", ".join(self.states(value, piece)), self.operand(value.args[0], piece)
            exists = ", row_exists" if self.places.rows_masked else ""
            self.out.line(f"{states} = w.{value.op}_add({states}, {operand}{exists})")
            return
        (name,) = self.states(value, piece)
        combined = COMBINE[value.op].format(name, self.operand(value.args[0], piece))
        once = self.once(self.types[value.args[0]][1], piece, self.schedule.rows)
        masks = self.masks(piece, rows=True, columns=False, others=once)
        self.out.line(f"{name} = {f'tl.where({masks}, {combined}, {name})' if masks else combined}")

    def _store_sums(self) -> None:
        """The column sums of a chunk, into the memory for partial results."""
        for value in self.outer:
            part = "part" if self.places.segments else "chunk"
            count = self.places.count(sum_columns(self.kernel, value))
            vectors = self._sums_vectors(value)
            for piece in self._pieces() if vectors else range(1):
                if vectors and not self.is_vector(value.name):
                    raise AssertionError(f"{value.name} is a sum of columns without columns")
                offset = part if count == 1 else f"{part} * {count}"
                if vectors and self.places.early:
                    offset = f"({offset} - early)"
                column = f" + {self.places.place_of(piece)}" if vectors else " + tl.arange(0, 1)[None, :]"
                first = [f"({self.places.block} == 0)"] if self.places.splits_columns and not vectors else []
                masks = self.masks(piece, rows=False, columns=vectors, others=first)
                masked = f", mask={masks}" if masks else ""
                for number, total in enumerate(self._chunk_totals(value, piece)):
                    place = f"{partial_name(value, number)} + {offset}{column}"
                    self.out.line(f"tl.store({place}, {total}{masked})")

    def _total(self, value: Value) -> None:
        """A column sum of all rows, which a program has passed over."""
        totals = ", ".join(self._chunk_totals(value, 0))
        self.out.line(f"{value.name} = {f'w.{value.op}_total({totals})' if value.op in ONLINE else totals}")

    def _chunk_totals(self, value: Value, piece: int) -> list[str]:
        """The numbers that make up a partial result, over all rows of a chunk."""
        states = self.states(value, piece)
        if value.op not in ONLINE:
            return [reduction(value.op, states, 0)]
        self.out.line(f"{', '.join(states)} = w.{value.op}_rows({', '.join(states)})")
        return states

    def _sums_vectors(self, value: Value) -> bool:
        return self.is_vector(value.args[0])
