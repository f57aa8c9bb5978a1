"""Random programs, from the op table: an op that is added there is drawn from then on."""

from __future__ import annotations

import random
from dataclasses import dataclass

from torch import Tensor

from tests.fuzz.evaluate import Evaluations, Mode
from tests.fuzz.memory import input_tensor
from weft.ir import dtypes
from weft.ir.builder import Builder
from weft.ir.ops import EXPENSIVE_COST, LOGICAL, ONLINE, OPS, Op
from weft.ir.program import Dim, Program, Size, Value

SIZES = (2, 2, 3, 5, 7, 8, 15, 16, 17, 31, 32, 33, 64, 65, 100, 257, 513, 600)
MOST_ELEMENTS = 30_000
PLAIN = ("f32", "f32", "f32", "f64", "i32", "i64", "bool")
STORED = ("f32", "f32", "f32", "bf16", "bf16", "f16", "f64", "i32", "i64", "bool")
ATTEMPTS = 4


@dataclass(frozen=True)
class Layouts:
    """A program with the sizes it was made with, and its run-time strides as products of sizes."""

    program: Program
    sizes: dict[str, int]
    products: dict[str, tuple[Size, ...]]


def parameter_values(program: Program, sizes: dict[str, int], products: dict[str, tuple[Size, ...]]) -> list[int]:
    """Values of the program's parameters when its run-time sizes have these values."""
    found: list[int] = []
    for name in program.parameters:
        number = 1
        for factor in products.get(name, (name,)):
            number *= sizes[factor] if isinstance(factor, str) else factor
        found.append(number)
    return found


class Generator:
    """Draws one program. Everything follows from the seed."""

    def __init__(self, seed: int, mode: Mode) -> None:
        self.random, self.seed, self.mode = random.Random(seed), seed, mode
        self.products: dict[str, tuple[Size, ...]] = {}
        self.sizes: dict[str, int] = {}
        self.builder = Builder("p", self._dims())
        names = [d.name for d in self.builder.dims]
        self.rows = tuple(n for n in names if self.random.random() < 0.5)

    def run(self) -> Layouts:
        for i in range(self.random.choice((1, 2, 2, 3, 4))):
            self._input(f"x{i}")
        self.builder.parameters = (*(n for n in self.sizes if n.startswith("s")), *self.products)
        inputs = self.builder.inputs
        program = Program("p", self.builder.parameters, self.builder.dims, tuple(inputs), (), ())
        values = parameter_values(program, self.sizes, self.products)
        bound = self.sizes | dict(zip(program.parameters, values, strict=True))
        bound |= {d.name: bound[d.size] if isinstance(d.size, str) else d.size for d in self.builder.dims}
        self.bound = bound
        tensors: list[Tensor] = [input_tensor(b, bound, self.mode, self.seed) for b in inputs]
        self.evaluations = Evaluations(program, bound, tensors, self.mode)
        self.kept: list[str] = [b.name for b in inputs]
        wanted = self.random.choice((3, 6, 10, 16, 24))
        for _ in range(4 * wanted):
            if len(self.builder.values) >= wanted:
                break
            self._value()
        self._outputs()
        self.builder.parameters = (*program.parameters, *(p for p in self.products if p not in program.parameters))
        return Layouts(self.builder.finish(), self.sizes, self.products)

    # the edge

    def _dims(self) -> tuple[Dim, ...]:
        dims: list[Dim] = []
        elements = 1
        for name in ("a", "b", "c", "d")[: self.random.choice((1, 2, 2, 2, 3, 3, 4))]:
            size = self.random.choice([n for n in SIZES if n * elements <= MOST_ELEMENTS] or [2])
            elements *= size
            if self.random.random() < 0.12:
                symbol = f"s{len(self.sizes)}"
                self.sizes[symbol] = size
                dims.append(Dim(name, symbol))
            else:
                dims.append(Dim(name, size))
        return tuple(dims)

    def _strides(self, dims: list[str], broadcast: bool) -> list[Size]:
        """Strides in a random order of the dimensions, rows padded, the fastest one not always dense."""
        draw = self.random
        order = list(range(len(dims)))
        if draw.random() < 0.3:
            draw.shuffle(order)
        strides: list[Size] = [0] * len(dims)
        factors: tuple[Size, ...] = (draw.choice((2, 3)),) if draw.random() < 0.1 else ()
        for i in reversed(order):
            if broadcast and draw.random() < 0.05:
                continue
            strides[i] = self._product(factors)
            factors = (*factors, next(d.size for d in self.builder.dims if d.name == dims[i]))
            if draw.random() < 0.12 and not any(isinstance(f, str) for f in factors):
                factors = (self._number(factors) + draw.choice((1, 3, 8)),)
        return strides

    @staticmethod
    def _number(factors: tuple[Size, ...]) -> int:
        number = 1
        for factor in factors:
            number *= int(factor)
        return number

    def _product(self, factors: tuple[Size, ...]) -> Size:
        """A number, a size, or a new parameter that is the product."""
        symbols = [f for f in factors if isinstance(f, str)]
        number = self._number(tuple(f for f in factors if not isinstance(f, str)))
        if not symbols:
            return number
        if number == 1 and len(symbols) == 1:
            return symbols[0]
        name = f"t{len(self.products)}"
        self.products[name] = (number, *symbols)
        return name

    def _input(self, name: str) -> None:
        draw = self.random
        names = [d.name for d in self.builder.dims]
        full = draw.random() < 0.65
        dims = [n for n in names if full or draw.random() < 0.5]
        dtype = draw.choice(STORED)
        self.builder.input(name, dtype, dims, self._strides(dims, True), draw.choice((0, 0, 0, 1, 5)))

    def _outputs(self) -> None:
        draw, values = self.random, [v.name for v in self.builder.values]
        used = {arg for v in self.builder.values for arg in v.args}
        last = [v for v in values if v not in used]
        chosen = draw.sample(last, min(len(last), draw.choice((1, 2, 3, 5))))
        chosen += draw.sample(values, min(len(values), draw.choice((0, 1, 2))))
        if draw.random() < 0.05 or not chosen:
            chosen.append(self.builder.inputs[0].name)
        for i, name in enumerate(chosen):
            dtype = draw.choice(("bf16", "f16", "f32")) if draw.random() < 0.35 else self.builder.dtype(name)
            if dtype != self.builder.dtype(name):
                name = self._add("cast", [name], dtype=dtype) or name
            have = self.builder.dims_of(name)
            wider = draw.random() < 0.1
            dims = [d.name for d in self.builder.dims if d.name in have or (wider and draw.random() < 0.5)]
            strides = self._strides(dims, False)
            offset = draw.choice((0, 0, 0, 1, 5))
            self.builder.output(f"y{i}", name, self.builder.dtype(name), dims, strides, offset)

    # values

    def _value(self) -> None:
        draw = self.random
        cheap = self.mode == "exact"
        reductions = [op for op in OPS.values() if op.kind == "reduction" and not (cheap and op.name in ONLINE)]
        kinds = ("source", "pointwise")
        others = [op for op in OPS.values() if op.kind in kinds and not (cheap and op.cost >= EXPENSIVE_COST)]
        op = draw.choice(reductions if draw.random() < 0.3 else others)
        for attempt in range(ATTEMPTS):
            if self._try(op, tame=attempt >= ATTEMPTS // 2):
                return

    def _try(self, op: Op, tame: bool) -> bool:
        """Add one value of that op if it is fit; ``tame`` operands are positive and not small."""
        draw = self.random
        if op.kind == "source":
            return self._source(op.name) is not None
        if op.name == "cast":
            return self._add("cast", [draw.choice(self.kept)], dtype=draw.choice(STORED)) is not None
        if op.dtype == "select":
            kind = draw.choice(PLAIN)
            kinds = ["bool", *([kind] * (op.arity - 1))]
        elif op.name in LOGICAL:
            kinds = ["bool"] * op.arity
        elif op.integers_only:
            kinds = [draw.choice(("i32", "i64"))] * op.arity
        elif op.floats_only:
            kinds = [draw.choice(("f32", "f32", "f32", "f64"))] * op.arity
        elif op.dtype in ("same", "bool"):
            kinds = [draw.choice(PLAIN if op.dtype == "bool" else PLAIN[:-1])] * op.arity
        else:
            raise NotImplementedError(f"the fuzzer does not know how to draw {op.name} (dtype rule {op.dtype})")
        operands = [self._operand(kind) for kind in kinds]
        if tame and op.floats_only:
            operands = [self._tamed(operand) or operand for operand in operands]
        attributes = self._dropped(operands[0]) if op.kind == "reduction" else []
        if op.kind == "reduction" and not attributes:
            return False
        return self._add(op.name, operands, attributes=attributes) is not None

    def _source(self, name: str) -> str | None:
        draw = self.random
        dims = [d.name for d in self.builder.dims]
        if name == "iota":
            return self._add(name, [], dtype=draw.choice(("i64", "i32", "f32")), attributes=[draw.choice(dims)])
        if name == "size":
            some = draw.sample(dims, draw.randint(1, len(dims)))
            return self._add(name, [], dtype=draw.choice(("i64", "i32", "f32", "f64")), attributes=some)
        if name == "parameter" and self.builder.parameters:
            dtype = draw.choice(("i64", "i32", "f32", "f64"))
            return self._add(name, [], dtype=dtype, attributes=[draw.choice(self.builder.parameters)])
        dtype = draw.choice(PLAIN)
        return self._constant(dtype, draw.choice((-2, -1, 0, 1, 2, 3, 0.5, 0.25)))

    def _constant(self, dtype: str, number: float) -> str | None:
        kind = float if dtypes.is_float(dtype) else bool if dtype == "bool" else int
        return self._add("const", [], dtype=dtype, attributes=[kind(number)])

    def _operand(self, dtype: str) -> str:
        """A value of that type, the newest ones most often; made by a cast if there is none or once in a while."""
        same = [n for n in self.kept if self.builder.dtype(n) == dtype]
        if same and self.random.random() < 0.85:
            return self.random.choice(same[-6:] if self.random.random() < 0.7 else same)
        if same and self.random.random() < 0.3:
            return self._constant(dtype, self.random.choice((-2, -1, 1, 2, 3))) or same[0]
        made = self._add("cast", [self.random.choice(self.kept)], dtype=dtype)
        return made or (same[0] if same else self._constant(dtype, 1) or self.kept[0])

    def _tamed(self, name: str) -> str | None:
        """abs(x) + 0.5"""
        half = self._constant(self.builder.dtype(name), 0.5)
        positive = self._add("abs", [name])
        return None if positive is None or half is None else self._add("add", [positive, half])

    def _dropped(self, operand: str) -> list[str]:
        """Dimensions to reduce: mostly the rows or the columns of one split of the program, else any."""
        draw = self.random
        have = [d.name for d in self.builder.dims if d.name in self.builder.dims_of(operand)]
        rows = [d for d in have if d in self.rows]
        columns = [d for d in have if d not in self.rows]
        match draw.randrange(8):
            case 0 | 1 | 2:
                return columns
            case 3 | 4:
                return rows
            case 5:
                return [d for d in rows if draw.random() < 0.5]
            case 6:
                return have
            case _:
                return [d for d in have if draw.random() < 0.5]

    def _add(
        self,
        op: str,
        args: list[str],
        dtype: str | None = None,
        attributes: list[str | int | float | bool] | None = None,
    ) -> str | None:
        """Append a value if it is fit to be compared."""
        before = len(self.builder.values)
        name = self.builder.op(op, *args, dtype=dtype, attributes=attributes or ())
        if len(self.builder.values) == before:
            return name
        value: Value = self.builder.values[-1]
        if not self.evaluations.add(value):
            self._take_back(value)
            return None
        self.kept.append(name)
        return name

    def _take_back(self, value: Value) -> None:
        self.builder.values.pop()
        self.builder._by_name.pop(value.name)
        self.builder._types.pop(value.name)
        self.builder._taken.discard(value.name)
        for key in [k for k, known in self.builder._known.items() if known == value.name]:
            del self.builder._known[key]
