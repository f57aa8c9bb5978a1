"""What the parts of a C++ kernel share: names, loads, stores and expressions."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager

from weft.backends.c_expressions import C_TYPES, expression, literal
from weft.backends.cpp.names import Names
from weft.backends.cpp.schedule import CppKernel
from weft.backends.cpp.view import View
from weft.backends.source import Writer
from weft.ir.ops import ONLINE, identity, states_of
from weft.ir.program import Buffer, Output, Value


class Statements(View):
    """Writes statements of one kernel. Index variables have the names of dimensions, values those of the program."""

    def __init__(self, kernel: CppKernel, writer: Writer) -> None:
        super().__init__(kernel)
        self.out = writer
        self.outputs = {o.buffer.name: o for o in self.program.outputs}
        self.names = Names(kernel)
        self.indexed: set[str] = set()
        """Numbers held for every row of a tile, as arrays indexed by ``r``."""

    def _define(self, name: str, text: str) -> None:
        self.out.line(f"const auto {name} = {text};")

    def _operand(self, name: str, vector: bool) -> str:
        value = self.by_name.get(name)
        text = name
        if value is not None and value.op == "const":
            text = literal(value.attributes[0], value.dtype)
        if name in self.indexed:
            text = f"{text}[r]"
        return f"w::vec({text})" if vector and not self.is_vector(name) else text

    def _expression(self, value: Value, vector: bool) -> str:
        match value.op:
            case "const":
                return literal(value.attributes[0], value.dtype)
            case "parameter":
                return f"{C_TYPES[value.dtype]}({value.attributes[0]})"
            case "size":
                return f"{C_TYPES[value.dtype]}({self.names.product(map(str, value.attributes))})"
            case "iota":
                dim = str(value.attributes[0])
                if self.columns and dim == self.columns[-1]:
                    return f"w::positions<{C_TYPES[value.dtype]}>({dim})"
                text = f"{C_TYPES[value.dtype]}({dim})"
                return f"w::vec({text})" if vector else text
            case _:
                operands = [self._operand(arg, vector) for arg in value.args]
                return expression(value.op, operands, value.dtype)

    def _load(self, buffer: Buffer) -> str:
        address, fast, strides = self.names.address(buffer), self.columns[-1], buffer.stride_of
        if fast not in strides:
            return f"w::vec({self.names.element(buffer)})"
        if strides[fast] == 1:
            return f"w::load({address}, lanes)"
        return f"w::load_strided({address}, {self.names.stride(strides[fast])}, lanes)"

    def _store_vector(self, output: Output) -> str:
        address, fast, strides = self.names.address(output.buffer), self.columns[-1], output.buffer.stride_of
        value = self._operand(output.value, vector=True)
        if fast not in strides:
            return f"{self.names.element(output.buffer)} = w::first_lane({value});"
        if strides[fast] == 1:
            return f"w::store({address}, {value}, lanes);"
        return f"w::store_strided({address}, {self.names.stride(strides[fast])}, {value}, lanes);"

    def _guarded(self, statement: str, dims: tuple[str, ...], over: tuple[str, ...]) -> None:
        """Run once for all values of the dimensions that loops are over and the data does not vary over."""
        absent = [d for d in over if d not in dims]
        condition = " && ".join(f"{r} == 0" for r in absent)
        self.out.line(f"if ({condition}) {statement}" if condition else statement)

    def _row_indices(self, dims: tuple[str, ...], flat: str, fastest: str = "") -> None:
        """Indices of the given dimensions from one running number. fastest: what follows the name of the last one's."""
        if dims == (flat,):
            return
        for i, dim in enumerate(dims):
            inner = self.names.product(dims[i + 1 :])
            text, name = (flat, dim + fastest) if i + 1 == len(dims) else (f"{flat} / ({inner})", dim)
            self.out.line(f"const int64_t {name} = {text if i == 0 else f'{text} % {self.names.size(dim)}'};")

    def _width(self, value: Value) -> str:
        """Number of column sums of one outer reduction."""
        return self.names.product(d for d in self.columns if d in value.dims)

    def _numbers_kept(self, value: Value) -> str:
        """Numbers in memory for the column sums of one outer reduction in one chunk."""
        width = self._width(value)
        return width if states_of(value.op) == 1 else f"{states_of(value.op)} * {width}"

    def _nothing(self, value: Value, dtype: str) -> str:
        """What partial results of an outer reduction are of no rows, as a number of that type."""
        return literal(0.0 if value.op in ONLINE else identity(value.op, value.dtype), dtype)

    def _statistic(self, value: Value) -> str:
        return f"w::{value.op.capitalize()}<{C_TYPES[value.dtype]}>"

    def _product(self, factor: str, product: str) -> str:
        return f"{factor} * {product}" if " " not in product else f"{factor} * ({product})"

    def _linear(self, value: Value) -> str:
        return self.names.linear(tuple(d for d in self.columns if d in value.dims))

    def _columns_head(self, begin: str, end: str) -> str:
        """Head of the loop over the fastest columns; without a tail where their number is known to be even."""
        fast = self.columns[-1]
        size = self.names.size(fast)
        even = f"<{size} % w::W == 0>" if isinstance(self.program.size_of(fast), int) else ""
        return f"w::for_columns{even}({begin}, {end}, [&](int64_t {fast}, auto lanes)"

    def _loop_over(self, dim: str) -> str:
        return f"for (int64_t {dim} = 0; {dim} < {self.names.size(dim)}; ++{dim})"

    @contextmanager
    def _column_loop(self) -> Generator[None]:
        """Loops over all column dimensions; the last one W columns at a time."""
        with ExitStack() as stack:
            for dim in self.columns[:-1]:
                stack.enter_context(self.out.block(self._loop_over(dim)))
            if self.columns:
                head = self._columns_head("0", self.names.size(self.columns[-1]))
                stack.enter_context(self.out.block(head, "});"))
            yield
