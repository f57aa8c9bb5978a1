"""What the threads of a Triton kernel hold at the same time: one scan of the statements that it is lowered to.

Triton, LLVM and ptxas compute nothing again that is not written twice: a value lives from where it is computed to its
last use, and so does a float32 copy of an input. What stands between two block-wide reductions they put in an order of
their own, and so does the scan: the next statement is the one after which least is alive. That the same function traced
in two ways has its statements in two orders makes no difference to what ptxas gives it, but for a few registers, nor to
the count. A value has one element for each element of a row tile, for each column, for each row or for the whole tile,
and how many of these a thread has depends on the schedule. So amounts are kept apart by that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from weft.backends.triton.least_alive import Amount, Key, Step, alive_over_time, largest, plus, total, with_least_alive
from weft.backends.triton.schedule import Remat, TritonKernel, TritonSchedule
from weft.ir import dtypes
from weft.ir.online import online_along_rows
from weft.ir.ops import states_of
from weft.ir.program import Buffer, Program, Value
from weft.ir.structure import reachable
from weft.lowering.lower import Lowering
from weft.lowering.nest import Accumulate, Compute, Load, Reduce, Statement, Store
from weft.plan.kernel import Kernel
from weft.plan.schedule import Scheme

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
    input. block_reductions: across threads. loops: inputs of each loop over columns.
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
    block_reductions: int


def liveness(
    program: Program,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    segments: tuple[str, ...] = (),
    scheme: Scheme = "ONE_SHOT",
    remat: Remat = "none",
) -> Liveness:
    """scheme: as of a schedule. Where rows are looped over, each reduction has a loop over blocks of columns of its
    own, from which nothing with columns is kept, and statistics are online; streamed rows are many tiles of a program.
    remat: as of a schedule; but for none, values with columns are computed again behind each block-wide reduction, from
    what was loaded."""
    program = online_along_rows(program, columns) if scheme == "LOOP" else program
    return _Scan(Kernel(program, TritonSchedule(scheme, rows, columns, segments, remat=remat))).found()


class _Scan(Lowering[TritonSchedule]):
    """The statements of a tile in one piece, whatever is loaded when."""

    def __init__(self, kernel: TritonKernel) -> None:
        super().__init__(kernel)
        self.looped, self.remat = self.schedule.scheme == "LOOP", self.schedule.remat
        self.persistent = self.schedule.scheme == "STREAM" or bool(self.outer)
        self.used = self.used_inputs()
        self.inside = set(self.rows) - set(self.segments)
        self.stored = {output.buffer.name: output.value for output in self.program.outputs}

    def found(self) -> Liveness:
        steps = with_least_alive(self._steps(), self._registers)
        alive, ended = alive_over_time(steps, self._registers)
        columns = [b for b in self.used if self.has_columns(b)]
        outputs = [output.buffer for stage in range(len(self.loops.values)) for output in self.stores(stage)]
        return Liveness(
            across=largest(plus(alive[at], ended[at], -1) for at, step in enumerate(steps) if step.kind == "reduce"),
            alive=largest(alive),
            sums=max(map(self._accumulators, self._added())),
            invariant=total(self._staying(s.defined[0]) for s in steps if s.kind == "last" and s.defined),
            tiles=tuple(b for b in columns if self._has_rows(b)),
            row_inputs=tuple(b for b in self.used if b not in columns and self._has_rows(b)),
            lasting=tuple(b for b in columns if not self._has_rows(b)),
            vectors=(*columns, *outputs),
            loops=tuple(tuple(b for b in columns if b.name in used) for used in self.loops.used),
            stores=len(outputs),
            outer=len(self.outer),
            inner=sum(map(len, self.loops.inner)),
            block_reductions=sum(map(bool, self.loops.inner)),
            detached=sum(not self._is_attached(n) for names in self.loops.inner for n in names),
        )

    def _added(self) -> list[list[str]]:
        """Reductions that are added up at the same time: those over rows, and along each loop over the columns."""
        outer = [value.name for value in self.outer]
        return [[*outer, *names] for names in self.loops.inner] if self.looped else [outer]

    def _accumulators(self, names: list[str]) -> Amount:
        values = [self.by_name[name] for name in names]
        return total(self._amount(v.args[0], v.dtype, states_of(v.op)) for v in values)

    def _is_attached(self, name: str) -> bool:
        """Whether some input with columns is behind a reduction."""

        def vectors(name: str) -> Iterable[str]:
            return filter(self.is_vector, self.by_name[name].args if name in self.by_name else ())

        return not self.inputs.keys().isdisjoint(reachable(vectors(name), vectors))

    def _steps(self) -> Iterator[Step]:
        for buffer in self.used:
            if not (self.has_columns(buffer) and (self.looped or self._is_late(buffer))):
                yield from self._of(self.load(buffer), 0)
        yield from self._of(self.scalars(), 0)
        for stage in range(len(self.loops.values)):
            if self.looped:  # nothing with columns is kept from loop to loop
                self.defined = {name for name in self.defined if not self.is_vector(name)}
            yield from self._of(self.columns_of(stage), stage)
            # numbers are stored and added up as soon as they are there
            results = sorted(self.results(stage), key=lambda each: not isinstance(each, Store | Accumulate))
            yield from self._of(results, stage)

    def _of(self, statements: Iterable[Statement], stage: int) -> Iterator[Step]:
        """What statements of a stage define and use."""

        def keys(*names: str) -> tuple[Key, ...]:
            return tuple(self._key(name, stage) for name in names)

        for each in statements:
            match each:
                case Load(buffer=name):
                    kind = "last" if self._stays(self.inputs[name]) else "load"
                    yield Step(kind, self._key(name, stage))
                case Compute(value=name) if self.by_name[name].op not in _FOLDED or not self.is_vector(name):
                    yield Step("value", self._key(name, stage), keys(*self._operands(name)))
                case Store(output=name):
                    yield Step("use", None, keys(self.stored[name]))
                case Accumulate(value=name):
                    yield Step("use", None, keys(*self.by_name[name].args))
                case Reduce(values=names):
                    yield Step("reduce", None, keys(*(self.by_name[name].args[0] for name in names)))
                    yield from (Step("result", key) for key in keys(*names))
                case _:
                    pass

    def _key(self, name: str, stage: int) -> Key:
        """What has columns is another value in each loop over them, and where it is computed again."""
        new = self.looped or (self.remat != "none" and name not in self.inputs)
        return name, stage if new and self.is_vector(name) else -1

    def recomputes(self, stage: int) -> bool:
        return self.remat != "none"

    def is_const(self, name: str) -> bool:
        """Weights of registers were fitted with constants counted where they are written."""
        return False

    def block_reductions(self, values: Sequence[Value]) -> Iterator[Sequence[Value]]:
        """Sums of one type and shape together, however many."""
        groups: dict[tuple[object, ...], list[Value]] = {}
        for value in values:
            alone = value.name if value.op != "sum" or self.looped else ""
            groups.setdefault((value.dtype, frozenset(self.types[value.args[0]][1]), alone), []).append(value)
        yield from groups.values()

    def _is_late(self, buffer: Buffer) -> bool:
        """Whether an input without rows is loaded where it is needed first: no loop over rows keeps it."""
        return not (self.outer or self._has_rows(buffer) or self._stays(buffer))

    def _stays(self, buffer: Buffer) -> bool:
        """Whether an input is loaded once for all rows."""
        again = self.remat == "tiles" or (self.looped and self.has_columns(buffer))
        return self.persistent and not again and not self._has_rows(buffer)

    def _has_rows(self, buffer: Buffer) -> bool:
        """Whether rows of a tile have elements of their own."""
        return bool(self.inside.intersection(buffer.dims))

    def _staying(self, name: str) -> Amount:
        """What an input takes that stays for all rows."""
        return self._amount(name, self.types[name][0] if self.remat == "inputs" else "f32")

    def _operands(self, name: str) -> tuple[str, ...]:
        args = self.by_name[name].args[self.by_name[name].op == "pick" :]  # the first one is nowhere whole
        return tuple(a for a in args if a in self.inputs or self.by_name[a].op not in _FOLDED)

    def _registers(self, key: Key) -> Amount:
        return self._amount(key[0], self.types[key[0]][0])

    def _amount(self, name: str, dtype: str, states: int = 1) -> Amount:
        dims = set(self.types[name][1])
        bits = _PREDICATE_BITS if dtype == "bool" else 8 * dtypes.itemsize(dtype)
        rows, columns = not dims.isdisjoint(self.inside), not dims.isdisjoint(self.columns)
        place = (0 if rows else 1) if columns else 2 if rows else 3
        found = [0.0] * 4
        found[place] = states * bits / 32
        return found[0], found[1], found[2], found[3]
