"""Elements of a row as sums of multiples, of which a term is one fused multiply-add.

A value with columns that is made by additions, and by multiplications with what has no columns, is a sum of multiples
of other such values and a constant: ``(x - mean) * rstd`` is ``x * rstd - mean * rstd``. Factors and constants are
numbers of a row, computed once for all of its columns. Which values are put into the sums that they are used in is a
search for the fewest operations on an element, counted over all loops over the columns, as each of them computes again
what it needs. A product that is only added to something is computed with that, by compilers that contract.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache

from weft.ir.builder import Builder
from weft.ir.linear import ONE, Linear, Number
from weft.ir.program import Program, Value
from weft.ir.simplify import drop_unused, rebuilt
from weft.ir.structure import KEPT, Loops, analyse, loops_of

Edge = tuple[str, str]
"""A value, and one that it is made from."""
Cost = tuple[int, int, int]
"""Operations on an element, operations on numbers, and how many values are put into sums."""

DTYPES = ("f32", "f64")
OPERATIONS = ("add", "sub", "neg", "mul", "fma")
WIDE_ENOUGH = ("f64", "f32", "bf16", "f16")
"""What an infinity remains one in."""
SPREADING = ("add", "sub", "neg", "mul", "fma", "abs", "sum", "m2")
"""Operations that make nothing finite of an infinity."""
EXACT = (
    *("cast", "where", "maximum", "minimum", "abs", "neg", "max", "min", "pick"),
    *("iota", "const", "parameter", "size"),
)
"""Operations whose results have no error if their operands have none."""
MOST_EDGES = 32
"""That a search looks at: of a program with more, the first ones."""


@lru_cache(maxsize=KEPT)
def sums_of_multiples(program: Program, columns: tuple[str, ...]) -> Program:
    """A program of one pass with fewer operations on an element, where sums of multiples make them fewer.

    Rows that are finite stay so, and those that are not: but where a factor is infinite, an element may be NaN in place
    of an infinity. So nothing is changed from which something is computed that may be finite again, as exponentials
    are. Nor are differences of what is known without an error, as of two inputs, which may be small.
    """
    rows = tuple(d.name for d in program.dims if d.name not in columns)
    if not columns or analyse(program, rows).pass_count != 1:
        return program
    found = _Search(program, columns, loops_of(program, rows, columns)).best()
    if not found:
        return program

    def made(builder: Builder, value: Value, renamed: Mapping[str, str]) -> str | None:
        return found[value.name].build(builder, renamed, value.dtype) if value.name in found else None

    return drop_unused(rebuilt(program, made))


class _Search:
    """For edges from a sum to an operand that is a sum too. An edge is *open* if the operand's terms are put in its
    place."""

    def __init__(self, program: Program, columns: tuple[str, ...], loops: Loops) -> None:
        self.by_name = program.by_name()
        self.vectors = {name for name, (_, dims) in program.types().items() if not {*columns}.isdisjoint(dims)}
        self.sums = [[self.by_name[name].args[0] for name in outer] for outer in loops.outer]
        """What each loop adds up along columns."""
        inner = [[self.by_name[name].args[0] for name in names] for names in loops.inner]
        stores = [[output.value for output in outputs] for outputs in loops.stores]
        self.roots = [[*some, *more, *others] for some, more, others in zip(stores, inner, self.sums, strict=True)]
        """What each loop is there for."""
        self.costs: dict[frozenset[Edge], Cost] = {}
        """What was found out, by the edges that are open."""
        computed = {name for names in loops.values for name in names}
        self.linear = {v.name: v for v in program.values if v.name in computed and self._is_linear(v)}
        inputs = {buffer.name for buffer in program.inputs}
        self.plain = self._all(())
        """Every linear value as it is in the program."""
        self.exact, self.less_exact = (
            self._without_errors(program, found) for found in (inputs, inputs & self.vectors)
        )
        kept = self._with_consequences(program)
        edges = [(name, arg) for name, value in self.linear.items() if name not in kept for arg in value.args]
        self.edges = [edge for edge in dict.fromkeys(edges) if edge[1] in self.linear][:MOST_EDGES]

    def _is_linear(self, value: Value) -> bool:
        if value.name not in self.vectors or value.dtype not in DTYPES or value.op not in OPERATIONS:
            return False
        factors = value.args[:2] if value.op in ("mul", "fma") else ()
        return sum(arg in self.vectors for arg in factors) < 2

    def _without_errors(self, program: Program, inputs: set[str]) -> set[str]:
        """These inputs, constants, and what is made of them without being rounded."""
        found = set(inputs)
        for value in program.values:
            if value.op in EXACT and all(arg in found for arg in value.args[value.op == "where" :]):
                found.add(value.name)
        return found

    def _with_consequences(self, program: Program) -> set[str]:
        """Values from which something is computed that may be finite where they are not."""
        found = set[str]()
        for value in reversed(program.values):
            if value.op == "div":
                found.add(value.args[1])
            spreads = value.op in (*SPREADING, "div") or (value.op == "cast" and value.dtype in WIDE_ENOUGH)
            if value.name in found or not spreads:
                found.update(value.args)
        return found

    def best(self) -> dict[str, Linear]:
        """Values by what they are computed as, where that is something else."""
        if not self.edges:
            return {}
        least, opened = min(self._descended(()), self._descended(self.edges), key=lambda found: found[0])
        if least[0] >= self._cost(frozenset())[0]:
            return {}
        linear = self._all(opened)
        alone = {name for roots in self.roots for name in self._products_alone(self._uses(roots, linear), linear)}
        return {name: each.with_last(alone) for name, each in linear.items() if each != self.plain[name]}

    def _descended(self, edges: Iterable[Edge]) -> tuple[Cost, frozenset[Edge]]:
        """Edges are opened or closed one by one as long as that costs less."""
        opened = frozenset(edges)
        cost, is_better = self._cost(opened), True
        while is_better:
            is_better = False
            for edge in self.edges:
                other = opened ^ {edge}
                if (less := self._cost(other)) < cost:
                    cost, opened, is_better = less, other, True
        return cost, opened

    def _all(self, opened: Iterable[Edge]) -> dict[str, Linear]:
        """Every linear value as it is computed."""
        found: dict[str, Linear] = {}
        for name, value in self.linear.items():
            operands = (self._operand(found, (name, arg), opened) for arg in value.args)
            found[name] = Linear.of(value.op, [*operands])
        return found

    def _operand(self, found: Mapping[str, Linear], edge: Edge, opened: Iterable[Edge]) -> Linear:
        name = edge[1]
        if name not in self.vectors:
            return Linear((), Number("value", name=name))
        return found[name] if edge in opened and self._has_error(edge, found[name]) else Linear(((name, ONE),))

    def _has_error(self, edge: Edge, found: Linear) -> bool:
        """Whether no two parts of an operand can nearly cancel out of which neither has an error, or only the sign
        changes. Inputs without columns are taken for results that have one, as the mean of a row has, but only where
        the operand is multiplied: in ``x - largest - log(total)`` the largest may be one."""
        op = self.linear[edge[0]].op
        exact = self.less_exact if op in ("mul", "fma") else self.exact

        def is_exact(number: Number) -> bool:
            return number.is_one or (number.kind == "value" and number.name in exact)

        parts = sum(term in exact and is_exact(factor) for term, factor in found.terms)
        return op == "neg" or parts + (found.constant is not None and is_exact(found.constant)) < 2

    def _cost(self, opened: frozenset[Edge]) -> Cost:
        """Of all loops. A product that is only added to something else is computed with that."""
        if opened not in self.costs:
            self.costs[opened] = self._counted(opened)
        return self.costs[opened]

    def _counted(self, opened: frozenset[Edge]) -> Cost:
        linear, needed, total = self._all(opened), set[str](), 0
        for roots, sums in zip(self.roots, self.sums, strict=True):
            uses = self._uses(roots, linear)
            needed |= uses.keys()
            alone = self._products_alone(uses, linear)
            total -= sum(name in alone for name in sums)
            for name in uses:
                total += linear[name].operations if name in linear else 1
                if name in linear:
                    added = sum(factor.is_one and term in alone for term, factor in linear[name].terms)
                    total -= min(added, max(0, linear[name].addends - 1))
        numbers = {number for name in needed & linear.keys() for number in linear[name].numbers()}
        return total, len(numbers), len(opened)

    def _uses(self, roots: Iterable[str], linear: Mapping[str, Linear]) -> Counter[str]:
        """How often each value is used that a loop computes."""
        uses = Counter(name for name in roots if self._is_computed(name))
        pending = [*uses]
        while pending:
            name = pending.pop()
            operands = [term for term, _ in linear[name].terms] if name in linear else self.by_name[name].args
            for arg in filter(self._is_computed, operands):
                if arg not in uses:
                    pending.append(arg)
                uses[arg] += 1
        return uses

    def _is_computed(self, name: str) -> bool:
        return name in self.vectors and name in self.by_name

    def _products_alone(self, uses: Mapping[str, int], linear: Mapping[str, Linear]) -> set[str]:
        """Products that are used once. What nothing is put into is written as it is in the program."""

        def is_product(name: str) -> bool:
            if name not in linear or linear[name] == self.plain[name]:
                return self.by_name[name].op == "mul"
            return linear[name].is_product

        return {name for name, count in uses.items() if count == 1 and is_product(name)}
