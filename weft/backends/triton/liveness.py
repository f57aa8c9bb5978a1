"""What the threads of a Triton kernel hold at the same time: one scan of the statements of ``backends/triton/rows.py``.

Triton, LLVM and ptxas compute nothing again that is not written twice: a value lives from where it is computed to its
last use, and so does a float32 copy of an input. What stands between two exchanges of threads they put in an order of
their own, and so does the scan: the next statement is the one after which least is alive. That the same function traced
in two ways has its statements in two orders makes no difference to what ptxas gives it, but for a few registers, nor to
the count. A value has one element for each element of a row tile, for each column, for each row or for the whole tile,
and how many of these a thread has depends on the schedule. So amounts are kept apart by that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, reduce

from weft.backends.triton.schedule import Keeps
from weft.ir import dtypes
from weft.ir.online import online_along_rows
from weft.ir.ops import states_of
from weft.ir.program import Buffer, Program
from weft.ir.structure import Loops, loops_of, reachable

Amount = tuple[float, float, float, float]
"""Registers: for each element of a row tile, for each column of it, for each row of it, and for all of it."""
NOTHING: Amount = (0.0, 0.0, 0.0, 0.0)
_PREDICATE_BITS = 8
"""Of a bool that waits: it is packed, or compared again."""
_FOLDED = ("const", "iota")
"""Ops whose results are parts of instructions: columns of a thread are one number and known distances from it."""


@dataclass(frozen=True)
class Liveness:
    """Of a program under a split, whatever the schedule.

    across: what waits while a row is reduced, for each such moment. alive: what is there after each statement. sums:
    accumulators of outer reductions, but for the count of a variance, which is one for all columns. invariant: inputs
    that stay for all rows, in float32 or as they were loaded. tiles, row_inputs: inputs of rows that are loaded for
    each element and for each row. lasting: inputs of columns without rows. stores, outer, inner: vectors that are
    stored, added up over rows, and reduced along them. detached: those of the latter that are made from no vector
    input. exchanges: between threads. loops: inputs of each loop over columns.
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
    exchanges: int


@dataclass(frozen=True)
class _Statement:
    """kind: load, last (a load for all rows), value, use, reduce or result (of a reduction)."""

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
    keeps: Keeps = "values",
    persistent: bool = False,
) -> Liveness:
    """looped: whether each reduction has a loop over blocks of columns of its own, from which nothing with columns is
    kept; statistics are online then. keeps: as of a schedule; but for values, those with columns are computed again
    behind each exchange, from what was loaded. persistent: whether a program passes over many row tiles."""
    program = online_along_rows(program, columns) if looped else program
    loops = loops_of(program, rows, columns)
    return _Scan(program, loops, set(rows) - set(segments), set(columns), looped, keeps, persistent).found()


@dataclass(eq=False)
class _Scan:
    program: Program
    loops: Loops
    rows: set[str]
    columns: set[str]
    looped: bool
    keeps: Keeps
    persistent: bool

    def __post_init__(self) -> None:
        self.types, self.by_name = self.program.types(), self.program.by_name()
        self.is_input = {b.name for b in self.program.inputs}

    def found(self) -> Liveness:
        statements = self._with_least_alive(list(self._statements()))
        born: dict[tuple[str, int], int] = {}
        last: dict[tuple[str, int], int] = {}
        for at, statement in enumerate(statements):
            if statement.defined and statement.kind != "last":
                born.setdefault(self._key(statement.defined, statement.stage), at)
            for name in statement.used:
                last[self._key(name, statement.stage)] = at
        spans = [(start, last.get(key, start), self._registers(key[0])) for key, start in born.items()]
        alive, ended = _over_time(spans, len(statements))
        reduced = [at for at, statement in enumerate(statements) if statement.kind == "reduce"]
        columns = [b for b in self.used if set(b.dims) & self.columns]
        outputs = [o.buffer for stores in self.loops.stores for o in stores if set(o.buffer.dims) & self.columns]
        outer = [self.by_name[name] for names in self.loops.outer for name in names]
        return Liveness(
            across=_unique(_plus(alive[at], ended[at], -1) for at in reduced),
            alive=_unique(iter(alive)),
            sums=max(map(self._accumulators, self._added())),
            invariant=_total(self._staying(s.defined) for s in statements if s.kind == "last"),
            tiles=tuple(b for b in columns if set(b.dims) & self.rows),
            row_inputs=tuple(b for b in self.used if b not in columns and set(b.dims) & self.rows),
            lasting=tuple(b for b in columns if not set(b.dims) & self.rows),
            vectors=(*columns, *outputs),
            loops=tuple(tuple(b for b in columns if b.name in used) for used in self.loops.used),
            stores=len(outputs),
            outer=len(outer),
            inner=sum(map(len, self.loops.inner)),
            exchanges=sum(map(bool, self.loops.inner)),
            detached=sum(not self._is_attached(n) for names in self.loops.inner for n in names),
        )

    def _added(self) -> list[list[str]]:
        """Reductions that are added up at the same time: those over rows, and along each loop over the columns."""
        outer = [name for names in self.loops.outer for name in names]
        return [[*outer, *names] for names in self.loops.inner] if self.looped else [outer]

    def _accumulators(self, names: list[str]) -> Amount:
        values = [self.by_name[name] for name in names]
        return _total(self._amount(v.args[0], v.dtype, states_of(v.op)) for v in values)

    def _is_attached(self, name: str) -> bool:
        """Whether some input with columns is behind a reduction."""

        def is_vector(name: str) -> bool:
            return bool(set(self.types[name][1]) & self.columns)

        def vectors(name: str) -> Iterable[str]:
            return filter(is_vector, self.by_name[name].args if name in self.by_name else ())

        return not self.is_input.isdisjoint(reachable(vectors(name), vectors))

    def _key(self, name: str, stage: int) -> tuple[str, int]:
        """What has columns is another value in each loop over them, and where it is computed again."""
        new = self.looped or (self.keeps != "values" and name not in self.is_input)
        return name, stage if new and set(self.types[name][1]) & self.columns else -1

    @cached_property
    def used(self) -> tuple[Buffer, ...]:
        names = {a for n in self.loops.scalars for a in self.by_name[n].args}
        names = names.union(*self.loops.used)
        return tuple(b for b in self.program.inputs if b.name in names)

    def _statements(self) -> Iterator[_Statement]:
        done: set[str] = set()
        for buffer in self.used:
            if set(buffer.dims) & self.columns and (self.looped or self._is_late(buffer)):
                continue
            yield _Statement("last" if self._stays(buffer) else "load", buffer.name)
            done.add(buffer.name)
        yield from self._scalars(done)
        for stage, names in enumerate(self.loops.values):
            for buffer in self.used:
                if not (set(buffer.dims) & self.columns and buffer.name in self.loops.used[stage]):
                    continue
                if self.looped or buffer.name not in done:
                    yield _Statement("load", buffer.name, (), stage)
                    done.add(buffer.name)
            for name in names:
                if (self.looped or self.keeps != "values" or name not in done) and self.by_name[name].op not in _FOLDED:
                    yield _Statement("value", name, self._operands(name), stage)
            done |= set(names)
            for output in self.loops.stores[stage]:
                yield _Statement("use", "", (output.value,), stage)
            for name in self.loops.outer[stage]:
                yield _Statement("use", "", self.by_name[name].args, stage)
            for names in self._together(stage):
                yield _Statement("reduce", "", tuple(self.by_name[n].args[0] for n in names), stage)
                yield from (_Statement("result", name, (), stage) for name in names)
                done |= set(names)
            yield from self._scalars(done)

    def _with_least_alive(self, statements: list[_Statement]) -> list[_Statement]:
        """The same statements. Between two exchanges loads are first; then comes, with all that it takes, what nothing
        else there uses, each time the one after which least is alive."""
        uses = Counter(self._key(name, s.stage) for s in statements for name in set(s.used))
        waiting: list[_Statement] = []
        found: list[_Statement] = []
        for statement in statements:
            if statement.kind in ("value", "use"):
                waiting.append(statement)
                continue
            if statement.kind == "reduce":
                found.extend(self._ordered(waiting, uses))
                waiting = []
            found.append(statement)
            uses.subtract({self._key(name, statement.stage) for name in statement.used})
        return [*found, *self._ordered(waiting, uses)]

    def _ordered(self, waiting: list[_Statement], uses: Counter[tuple[str, int]]) -> list[_Statement]:
        """Statements between two exchanges. uses: how often each value is used from there on, counted down here."""
        by_key = {self._key(s.defined, s.stage): s for s in waiting if s.defined}
        inside = {self._key(n, s.stage) for s in waiting for n in s.used}
        ends = [s for s in waiting if not s.defined or self._key(s.defined, s.stage) not in inside]
        operands = {id(s): [by_key[key] for n in s.used if (key := self._key(n, s.stage)) in by_key] for s in waiting}
        height = dict[int, int]()
        for s in waiting:
            height[id(s)] = 1 + max((height[id(each)] for each in operands[id(s)]), default=0)
        found: list[_Statement] = []
        done: set[int] = set()

        def needed(statement: _Statement, seen: set[int]) -> list[_Statement]:
            """What is to be computed for it, and itself: of its operands first the one with most steps behind it."""
            chain: list[_Statement] = []
            stack = [(statement, iter([] if id(statement) in seen else [statement]))]
            while stack:
                outer, rest = stack[-1]
                each = next((s for s in rest if id(s) not in seen), None)
                if each is None:
                    chain.append(outer)
                    stack.pop()
                else:
                    seen.add(id(each))
                    stack.append((each, iter(sorted(operands[id(each)], key=lambda s: -height[id(s)]))))
            return chain[:-1]

        def alive(chain: list[_Statement]) -> tuple[Amount, Amount]:
            """By how much more is alive after some statements, and at most meanwhile."""
            left, grown, most = Counter[tuple[str, int]](), NOTHING, NOTHING
            for statement in chain:
                grown = _plus(grown, self._registers(statement.defined) if statement.defined else NOTHING)
                most = max(most, grown)
                for name in set(statement.used):
                    key = self._key(name, statement.stage)
                    left[key] += 1
                    if left[key] == uses[key]:
                        grown = _plus(grown, self._registers(name), -1)
            return grown, most

        while ends:
            chains = [needed(end, set(done)) for end in ends]
            taken = min(chains, key=alive)
            ends.remove(taken[-1])
            done.update(map(id, taken))
            found.extend(taken)
            for statement in taken:
                uses.subtract({self._key(n, statement.stage) for n in statement.used})
        return sorted(found, key=lambda s: s.kind == "use")  # what is stored and added up is so at the end

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
        return not (any(self.loops.outer) or set(buffer.dims) & self.rows or self._stays(buffer))

    def _stays(self, buffer: Buffer) -> bool:
        """Whether an input is loaded once for all rows."""
        passes_over_rows = self.persistent or any(self.loops.outer)
        return passes_over_rows and self.keeps != "tiles" and not set(buffer.dims) & self.rows

    def _staying(self, name: str) -> Amount:
        """What an input takes that stays for all rows."""
        return self._amount(name, self.types[name][0] if self.keeps == "inputs" else "f32")

    def _scalars(self, done: set[str]) -> Iterator[_Statement]:
        for name in self.loops.scalars:
            operands = self._operands(name)
            if name not in done and done.issuperset(operands):
                yield _Statement("value", name, operands)
                done.add(name)

    def _operands(self, name: str) -> tuple[str, ...]:
        args = self.by_name[name].args[self.by_name[name].op == "pick" :]  # the first one is nowhere whole
        return tuple(a for a in args if a in self.is_input or self.by_name[a].op not in _FOLDED)

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
    return reduce(_plus, amounts, NOTHING)


def _over_time(spans: Iterable[tuple[int, int, Amount]], count: int) -> tuple[list[Amount], list[Amount]]:
    """What is alive at each moment, and what of it is used for the last time there."""
    begun, ended, alive = [NOTHING] * count, [NOTHING] * count, list[Amount]()
    for start, end, amount in spans:
        begun[start], ended[end] = _plus(begun[start], amount), _plus(ended[end], amount)
    now = NOTHING
    for at in range(count):
        now = _plus(now, begun[at])
        alive.append(now)
        now = _plus(now, ended[at], -1)
    return alive, ended


def _plus(one: Amount, other: Amount, times: int = 1) -> Amount:
    return tuple(a + times * b for a, b in zip(one, other, strict=True))  # type: ignore[return-value]


def _unique(amounts: Iterator[Amount]) -> tuple[Amount, ...]:
    """Each once, and none that is nowhere more than another one."""
    found = set(amounts)
    return tuple(
        a
        for a in sorted(found, reverse=True)
        if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in found)
    )
