"""What the threads of a Triton kernel hold at the same time: one scan of the statements in the order of
``render/triton_rows.py``.

Triton, LLVM and ptxas compute nothing again: a value lives from where it is computed to its last use, and so does a
float32 copy of an input. A value has one element for each element of a row tile, for each column, for each row or for
the whole tile, and how many of these a thread has depends on the schedule. So amounts are kept apart by that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from weft.ir import dtypes
from weft.ir.ops import states_of
from weft.ir.program import Buffer, Program
from weft.ir.structure import loops_of

Amount = tuple[float, float, float, float]
"""Registers: for each element of a row tile, for each column of it, for each row of it, and for all of it."""
_PREDICATE_BITS = 8
"""Of a bool that waits: it is packed, or compared again."""
_FOLDED = ("const", "iota")
"""Ops whose results are parts of instructions: columns of a thread are one number and known distances from it."""


@dataclass(frozen=True)
class Liveness:
    """Of a program under a split, whatever the schedule.

    across: what waits while a row is reduced, for each such moment. alive: what is there after each statement. sums:
    accumulators of outer reductions, but for the count of a variance, which is one for all columns. invariant: inputs
    that stay for all rows, in float32. tiles, row_inputs: inputs of rows that are loaded for each element and for each
    row. lasting: inputs of columns without rows. stores, outer, inner: vectors that are stored, added up over rows, and
    reduced along them. detached: those of the latter that are made from no vector input. loops: inputs of each loop
    over columns.
    """

    across: tuple[Amount, ...]
    alive: tuple[Amount, ...]
    sums: Amount
    invariant: Amount
    tiles: tuple[Buffer, ...]
    row_inputs: tuple[Buffer, ...]
    lasting: tuple[Buffer, ...]
    vectors: tuple[Buffer, ...]
    loops: tuple[tuple[Buffer, ...], ...]
    stores: int
    outer: int
    inner: int
    detached: int


@dataclass(frozen=True)
class _Statement:
    """kind: load, last (a load for all rows), value, use or reduce."""

    kind: str
    defined: str
    used: tuple[str, ...] = ()
    stage: int = 0


def liveness(
    program: Program,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    segments: tuple[str, ...] = (),
    looped: bool = False,
) -> Liveness:
    """looped: whether each reduction has a loop over blocks of columns of its own, from which nothing with columns is
    kept."""
    return _Scan(program, rows, columns, segments, looped).found()


class _Scan:
    def __init__(
        self,
        program: Program,
        rows: tuple[str, ...],
        columns: tuple[str, ...],
        segments: tuple[str, ...],
        looped: bool,
    ) -> None:
        self.program, self.looped = program, looped
        self.rows, self.columns = set(rows) - set(segments), set(columns)
        self.loops = loops_of(program, rows, columns)
        self.types, self.by_name = program.types(), program.by_name()
        self.is_input = {b.name for b in program.inputs}

    def found(self) -> Liveness:
        statements = list(self._statements())
        born: dict[tuple[str, int], int] = {}
        last: dict[tuple[str, int], int] = {}
        for at, statement in enumerate(statements):
            if statement.defined and statement.kind != "last":
                born.setdefault(self._key(statement.defined, statement.stage), at)
            for name in statement.used:
                last[self._key(name, statement.stage)] = at
        spans = [(start, last.get(key, start), self._registers(key[0])) for key, start in born.items()]
        moments = range(len(statements))
        reduced = [at for at in moments if statements[at].kind == "reduce"]
        columns = [b for b in self.used if set(b.dims) & self.columns]
        outputs = [o.buffer for stores in self.loops.stores for o in stores if set(o.buffer.dims) & self.columns]
        outer = [self.by_name[name] for names in self.loops.outer for name in names]
        return Liveness(
            across=_unique(_total(r for start, end, r in spans if start <= at < end) for at in reduced),
            alive=_unique(_total(r for start, end, r in spans if start <= at <= end) for at in moments),
            sums=_total(self._amount(v.args[0], v.dtype, states_of(v.op)) for v in outer),
            invariant=_total(self._amount(s.defined, "f32") for s in statements if s.kind == "last"),
            tiles=tuple(b for b in columns if set(b.dims) & self.rows),
            row_inputs=tuple(b for b in self.used if b not in columns and set(b.dims) & self.rows),
            lasting=tuple(b for b in columns if not set(b.dims) & self.rows),
            vectors=(*columns, *outputs),
            loops=tuple(tuple(b for b in columns if b.name in self._needs(k)) for k in range(len(self.loops.values))),
            stores=len(outputs),
            outer=len(outer),
            inner=sum(map(len, self.loops.inner)),
            detached=sum(not self._is_attached(n) for names in self.loops.inner for n in names),
        )

    def _is_attached(self, name: str) -> bool:
        """Whether some input with columns is behind a reduction."""
        stack, seen = [*self.by_name[name].args], set[str]()
        while stack:
            each = stack.pop()
            if each in self.is_input and set(self.types[each][1]) & self.columns:
                return True
            if each not in seen and each in self.by_name and set(self.types[each][1]) & self.columns:
                seen.add(each)
                stack.extend(self.by_name[each].args)
        return False

    def _key(self, name: str, stage: int) -> tuple[str, int]:
        """What has columns is another value in each loop over them."""
        vector = self.looped and set(self.types[name][1]) & self.columns
        return name, stage if vector else -1

    @cached_property
    def used(self) -> tuple[Buffer, ...]:
        names = {a for n in self.loops.scalars for a in self.by_name[n].args}
        names |= {name for k in range(len(self.loops.values)) for name in self._needs(k)}
        return tuple(b for b in self.program.inputs if b.name in names)

    def _needs(self, stage: int) -> set[str]:
        names = {a for n in self.loops.values[stage] for a in self.by_name[n].args}
        names |= {self.by_name[n].args[0] for n in (*self.loops.inner[stage], *self.loops.outer[stage])}
        return names | {o.value for o in self.loops.stores[stage]}

    def _statements(self) -> Iterator[_Statement]:
        done: set[str] = set()
        for buffer in self.used:
            if set(buffer.dims) & self.columns and (self.looped or self._is_late(buffer)):
                continue
            stays = any(self.loops.outer) and not set(buffer.dims) & self.rows
            yield _Statement("last" if stays else "load", buffer.name)
            done.add(buffer.name)
        yield from self._scalars(done)
        for stage, names in enumerate(self.loops.values):
            for buffer in self.used:
                if not (set(buffer.dims) & self.columns and buffer.name in self._needs(stage)):
                    continue
                if self.looped or buffer.name not in done:
                    yield _Statement("load", buffer.name, (), stage)
                    done.add(buffer.name)
            for name in names:
                if (self.looped or name not in done) and self.by_name[name].op not in _FOLDED:
                    yield _Statement("value", name, self._operands(name), stage)
            done |= set(names)
            for output in self.loops.stores[stage]:
                yield _Statement("use", "", (output.value,), stage)
            for name in self.loops.outer[stage]:
                yield _Statement("use", "", self.by_name[name].args, stage)
            for names in self._together(stage):
                yield _Statement("reduce", "", tuple(self.by_name[n].args[0] for n in names), stage)
                yield from (_Statement("value", name, (), stage) for name in names)
                done |= set(names)
            yield from self._scalars(done)

    def _together(self, stage: int) -> list[list[str]]:
        """Row reductions of a stage, those in one exchange between threads together: sums of one type and shape."""
        groups: dict[tuple[object, ...], list[str]] = {}
        for name in self.loops.inner[stage]:
            value = self.by_name[name]
            alone = name if value.op != "sum" or self.looped else ""
            groups.setdefault((value.dtype, frozenset(self.types[value.args[0]][1]), alone), []).append(name)
        return list(groups.values())

    def _is_late(self, buffer: Buffer) -> bool:
        """Whether an input without rows is loaded where it is needed first: no loop over rows keeps it."""
        return not any(self.loops.outer) and not set(buffer.dims) & self.rows

    def _scalars(self, done: set[str]) -> Iterator[_Statement]:
        for name in self.loops.scalars:
            operands = self._operands(name)
            if name not in done and done.issuperset(operands):
                yield _Statement("value", name, operands)
                done.add(name)

    def _operands(self, name: str) -> tuple[str, ...]:
        return tuple(a for a in self.by_name[name].args if a in self.is_input or self.by_name[a].op not in _FOLDED)

    def _registers(self, name: str) -> Amount:
        return self._amount(name, self.types[name][0])

    def _amount(self, name: str, dtype: str, states: int = 1) -> Amount:
        dims = set(self.types[name][1])
        bits = _PREDICATE_BITS if dtype == "bool" else 8 * dtypes.itemsize(dtype)
        place = (0 if dims & self.rows else 1) if dims & self.columns else 2 if dims & self.rows else 3
        found = [0.0] * 4
        found[place] = states * bits / 32
        return found[0], found[1], found[2], found[3]


def _total(amounts: Iterator[Amount]) -> Amount:
    one, two, three, four = 0.0, 0.0, 0.0, 0.0
    for a in amounts:
        one, two, three, four = one + a[0], two + a[1], three + a[2], four + a[3]
    return one, two, three, four


def _unique(amounts: Iterator[Amount]) -> tuple[Amount, ...]:
    """Each once, and none that is nowhere more than another one."""
    found = set(amounts)
    return tuple(
        a
        for a in sorted(found, reverse=True)
        if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in found)
    )
