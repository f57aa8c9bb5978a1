"""What the parts of a Triton kernel share: loads, stores, masks and expressions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from weft.backends.source import Writer
from weft.backends.triton.expressions import (
    TRITON_TYPES,
    constant,
    expression,
    literal,
    states_of,
)
from weft.backends.triton.schedule import TritonKernel
from weft.backends.triton.view import View
from weft.ir.program import Buffer, Output, Value
from weft.ir.rounding import is_rounded_again, rounded_at_once

LEAST_NORMAL = 2.0**-126
"""Of float32: between it and its inverse a number has an inverse."""


class Statements(View):
    """Writes statements of one kernel. A value has its own name, with a letter behind it where it has columns and a row
    is several pieces."""

    def __init__(self, kernel: TritonKernel, writer: Writer) -> None:
        super().__init__(kernel)
        self.out = writer
        self.computed_with = {arg for value in self.program.values for arg in value.args}
        self.rounded_again = is_rounded_again(self.program)
        self.rounded_at_once = rounded_at_once(self.program)
        self.pointers: dict[str, str] = {}
        """Names of what the rows' part of an address was put into, by buffer."""
        self.masked_columns = True
        """Whether columns behind the last one are guarded against, where there are any."""
        self.whole_pieces: frozenset[int] = frozenset()
        """Pieces of which all columns are there."""
        self.again = False
        """Whether what is computed has been computed before, and is not to be kept in between."""

    def named(self, name: str, piece: int) -> str:
        return name + self.places.suffix(piece) if self.is_vector(name) else name

    def loaded(self, name: str, piece: int) -> str:
        """What an input's elements are called."""
        if self.places.has_columns(self.inputs[name]):
            return f"{name}_tile{self.places.suffix(piece)}"
        return f"{name}_row"

    def operand(self, name: str, piece: int) -> str:
        value = self.by_name.get(name)
        if value is None:
            return self.loaded(name, piece)
        if value.op == "const":
            return literal(value.attributes[0], value.dtype)
        return self.named(name, piece)

    def define(self, name: str, piece: int) -> None:
        value = self.by_name[name]
        if value.op != "const":
            self.out.line(f"{self.named(name, piece)} = {self.expression(value, piece)}")

    def expression(self, value: Value, piece: int) -> str:
        kind = TRITON_TYPES[value.dtype]
        match value.op:
            case "parameter":
                return f"{value.attributes[0]}.to({kind})"
            case "size":
                count = self.places.count(map(str, value.attributes))
                return literal(count, value.dtype) if isinstance(count, int) else f"({count}).to({kind})"
            case "iota":
                text = self.places.index_of(str(value.attributes[0]), piece)
                return f"{text}.to({kind})" if text.isidentifier() or text.startswith("(") else f"({text}).to({kind})"
            case "pick":
                return self.picked(value)
            case _:
                operands = [self.operand(arg, piece) for arg in value.args]
                source = self.types[value.args[0]][0]
                if value.op == "cast" and self._is_taken_out_again(value, source):
                    return f"w.to_f32_again({operands[0]})"
                if value.op == "cast" and self._is_cast_in_pairs(value, source):
                    return f"w.to_{value.dtype}({operands[0]})"
                again = value.name in self.rounded_at_once or (
                    self.rounded_again and (self.is_vector(value.name) or not self.schedule.columns)
                )
                if again and (inverse := self._inverse(value, operands)):
                    return f"{operands[0]} * {inverse}"
                return expression(value.op, operands, value.dtype, source, rounded_again=again)

    def picked(self, value: Value) -> str:
        """The element of a row at an index, zero where there is none."""
        buffer, index = self.inputs[value.args[0]], self.operand(value.args[1], 0)
        stride = buffer.stride_of[str(value.attributes[0])]
        wide = f"tl.cast({index}, tl.int64)" if self.places.has_wide_columns else index
        at = wide if stride == 1 else f"{wide} * {stride}"
        early = "early + " if self.places.shifted else ""
        inside = (f"({index} >= 0)", f"({index} < {self.places.count(map(str, value.attributes))})")
        there = " & ".join(inside)
        return f"tl.load({self.pointers.get(buffer.name, buffer.name)} + {early}{at}, mask={there}, other=0)"

    def _is_cast_in_pairs(self, value: Value, source: str) -> bool:
        """Whether floats of 16 bits are taken out of their registers, or made and computed with: of what is only
        stored the compiler knows by itself that two go into a register."""
        if not self.extent(value.name)[1]:
            return False
        if value.dtype == "f32":
            return source == "bf16"
        return source == "f32" and value.dtype in ("bf16", "f16") and value.name in self.computed_with

    def _is_taken_out(self, value: Value, source: str) -> bool:
        """Whether floats are made of those of 16 bits that were loaded."""
        loaded = value.args[0] in self.inputs and self.extent(value.name)[1]
        return loaded and value.dtype == "f32" and source in ("bf16", "f16")

    def _is_taken_out_again(self, value: Value, source: str) -> bool:
        """Whether that is done anew here: behind a block-wide reduction, or for every row of a weight that stays as it
        was."""
        stays = self.schedule.remat == "inputs" and not self.extent(value.name)[0]
        return (self.again or stays) and self._is_taken_out(value, source)

    def _inverse(self, value: Value, operands: Sequence[str]) -> str:
        """The reciprocal, which is had once, of a number that a float32 row is divided by, or of a constant; empty if
        this is no such division."""
        if value.op != "div" or value.dtype != "f32":
            return ""
        dividend, divisor = value.args
        made = self.by_name.get(divisor)
        if made is not None and made.op == "const":
            number = float(made.attributes[0])
            return literal(1 / number, value.dtype) if LEAST_NORMAL <= abs(number) <= 1 / LEAST_NORMAL else ""
        return f"tl.div_rn(1.0, {operands[1]})" if self.is_vector(dividend) and not self.is_vector(divisor) else ""

    def load(self, buffer: Buffer, piece: int) -> None:
        """Define the elements of an input, those of a tile's rows and of a piece's columns."""
        address = self.address(buffer, piece)
        rows, columns = self.places.has_rows(buffer), self.places.has_columns(buffer)
        if columns and not rows and self.places.spreads_weights:
            address += f" + tl.zeros([{self.schedule.rows_per_tile}, 1], tl.int32)"
        masks = self.masks(piece, rows=False, columns=columns)
        nothing = "0.0" if buffer.dtype.startswith("f8") else "0"  # Triton casts no integer to floats of 8 bits
        last = rows and columns and self.schedule.inputs == "evict_last"
        policy = ', eviction_policy="evict_last"' if last else ""

        def load(address: str, masks: str) -> None:
            masked = f", mask={masks}, other={nothing}" if masks else ""
            self.out.line(f"{self.loaded(buffer.name, piece)} = tl.load({address}{masked}{policy})")

        early = self.places.early
        if early is None or not (rows and columns and early.splits_vectors):
            load(address, masks)
            return
        ends = piece == self.schedule.pieces - 1
        load(address, f"reached{self.places.suffix(piece)} & ~is_last" if ends else "")
        if ends:
            with self.out.block("if is_last"):
                if self.schedule.scheme == "ONE_SHOT":  # in loops over rows it takes more registers
                    self.out.line(f"apart = w.apart({self.places.place_of(piece)}, {early.vector})")
                    address, masks = f"{self.pointers[buffer.name]} + apart", self._exists(piece, "apart")
                load(address, masks)

    def address(self, buffer: Buffer, piece: int) -> str:
        """Pointers to the elements of a buffer."""
        return self.places.address(buffer, piece, self.pointers.get(buffer.name))

    def store(self, output: Output, piece: int, guard: Iterable[str] = ()) -> None:
        """guard: conditions beside those of rows and columns."""
        buffer = output.buffer
        address = self.address(buffer, piece)
        rows, columns = self.places.has_rows(buffer), self.places.has_columns(buffer)
        if not rows and self.is_spread(output.value):
            address += f" + tl.zeros([{self.schedule.rows_per_tile}, 1], tl.int32)"
        elif not rows and not columns:
            address += " + tl.arange(0, 1)[None, :]"  # what is stored may be a tensor of one element
        masks = self.masks(piece, rows=rows, columns=columns, others=guard)
        masked = f", mask={masks}" if masks else ""
        value = self.by_name.get(output.value)
        if value is not None and value.op == "const":
            stored = constant(value.attributes[0], value.dtype)  # a number alone would be stored as a float32
        else:
            stored = self.operand(output.value, piece)
        if rows and columns and self.places.splits_vectors and self.places.is_masked(piece):
            whole = f"whole{self.places.suffix(piece)}"
            inner = self.masks(piece, rows=True, columns=False, others=(whole, *guard))
            self.out.line(f"tl.store({address}, {stored}, mask={inner})")
            masked = f", mask={masks} & ~{whole}"
        self.out.line(f"tl.store({address}, {stored}{masked})")

    def store_complete(self, output: Output, first: str) -> None:
        """A result of complete column sums. first: what holds for one of the programs that have one without columns."""
        once = self.once(output.buffer.dims, 0, self.schedule.columns)
        self.store(output, 0, once if self.along_columns(output) else [first] if first else [])

    def masks(self, piece: int, *, rows: bool, columns: bool, others: Iterable[str] = ()) -> str:
        """What has to hold for an element to exist; empty if it always does."""
        found = ["row_exists"] if rows and self.places.rows_masked else []
        if columns and self.masked_columns and piece not in self.whole_pieces and self.places.is_masked(piece):
            found.append(self.column_mask(piece))
        return " & ".join([*found, *others])

    def column_mask(self, piece: int) -> str:
        return f"column_exists{self.places.suffix(piece)}"

    def once(self, dims: Iterable[str], piece: int, over: Iterable[str]) -> list[str]:
        """Conditions that hold once for all values of the dimensions among ``over`` that are not among ``dims``."""
        have = set(dims)
        texts = [self.places.index_of(d, piece) for d in over if d not in have and self.places.dims[d] != 1]
        return [f"({text} == 0)" for text in texts]

    def states(self, value: Value, piece: int | None) -> list[str]:
        """Names of the numbers that a partial result of a reduction consists of, for a piece or for all."""
        suffix = "" if piece is None or not self.is_vector(value.args[0]) else self.places.suffix(piece)
        return [f"{value.name}_{part}{suffix}" for part, _ in states_of(value)]

    def start_states(self, value: Value, rows: int, piece: int | None, *, alike: bool) -> None:
        """Define them as what they are of no elements. alike: whether all columns of a row have as many elements."""
        kind = TRITON_TYPES[value.dtype]
        for name, (part, nothing) in zip(self.states(value, piece), states_of(value), strict=True):
            one = (alike and part == "count") or not self.is_vector(value.args[0])
            shape = f"[{rows}, {1 if one else self.schedule.piece_columns}]"
            self.out.line(f"{name} = tl.full({shape}, {literal(nothing, value.dtype)}, {kind})")

    def define_index(self, name: str, width: int, start: str = "", axis: int = 1, step: int = 1) -> None:
        """An index that runs along an axis."""
        side = "[None, :]" if axis == 1 else "[:, None]"
        wide = self.places.is_wide if axis == 0 else self.places.has_wide_columns
        run = f"tl.arange(0, {width}){side}{'.to(tl.int64)' if wide else ''}"
        run = f"{step} * {run}" if step > 1 else run
        self.out.line(f"{name} = {start} + {run}" if start else f"{name} = {run}")

    def define_column_mask(self, piece: int) -> None:
        """Which columns exist, and where a row begins between vectors, which vectors have some that do, and which no
        others."""
        if not self.places.is_masked(piece):
            return
        suffix, column, early = self.places.suffix(piece), self.places.place_of(piece), self.places.early
        self.out.line(f"{self.column_mask(piece)} = {self._exists(piece, column)}")
        if early is not None and early.splits_vectors:
            if piece == self.schedule.pieces - 1:
                end = f"early + {self.places.count(self.schedule.columns)}"
                self.out.line(f"reached{suffix} = {column} < w.rounded_up({end}, {early.vector})")
            self.out.line(f"whole{suffix} = {self._exists(piece, column, early.vector)}")

    def _exists(self, piece: int, column: str, vector: int = 0) -> str:
        """What holds for columns of a piece that exist, or for those of whole vectors of so many."""
        first, end = "early", str(self.places.count(self.schedule.columns))
        if self.places.early is None:
            return f"{column} < {end}"
        end = f"early + {end}"
        if vector:
            first, end = f"w.rounded_up({first}, {vector})", f"w.rounded_down({end}, {vector})"
        is_first, is_last = piece == 0, piece == self.schedule.pieces - 1
        if is_first and is_last:
            return f"({column} >= {first}) & ({column} < {end})"
        return f"{column} >= {first}" if is_first else f"{column} < {end}"
