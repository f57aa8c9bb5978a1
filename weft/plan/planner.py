"""Chooses the split of dimensions into rows and columns, cuts the program into kernels and schedules each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from weft.errors import Refusal
from weft.ir.online import online
from weft.ir.ops import lookup
from weft.ir.program import Program, Size
from weft.ir.structure import analyse, is_outer, split_straddling
from weft.ir.unroll import unrolled
from weft.plan.cost import estimates, ideal, most_gbps
from weft.plan.gpu_candidates import fits_registers, registers_of_widest
from weft.plan.kernel import Decision, Estimate, Kernel, Kind, Plan
from weft.plan.legality import (
    check_epilogue_pointwise,
    check_one_space,
    check_online,
    check_outer_dependency,
    check_whole_rows,
    check_written_once,
)
from weft.plan.partition import Passes, cut, late_outputs, separate
from weft.plan.resources import resources
from weft.plan.schedules import kind_of, schedule_for
from weft.plan.split import Split
from weft.plan.tuned import NONE, TunedSchedules, with_tuned
from weft.target import Target

MAX_DIMENSIONS = 8
"""Splits are enumerated: 2^8 of them at most."""
MAX_SUMS = 5
"""Column sums of a pass whose registers do not hold all of them: which ones share a kernel with the rows is enumerated,
too. Of more, none does."""


@dataclass(frozen=True)
class SplitPasses:
    """A program under a legal split. program: as it is computed under that; decisions: on where it is cut."""

    program: Program
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    passes: Passes
    decisions: tuple[Decision, ...]


DimensionSplit = tuple[tuple[str, ...], tuple[str, ...]]
"""Rows and columns."""
Cuts = Sequence[tuple[DimensionSplit, SplitPasses | Refusal]]
"""The passes under each split, or the rule that forbids it."""


def plan(
    program: Program, target: Target, hints: Mapping[str, int] | None = None, tuned: TunedSchedules = NONE
) -> Plan | Refusal:
    """The plan with the shortest predicted time over all splits, or the reason why there is none worth running.

    hints: likely values of run-time parameters, by name; they guide the choice and are not compiled in. tuned: measured
    schedules; they take the place of predicted ones in the kernels of that plan, and have no say in which plan it is.
    """
    best = _best(program, target, hints or {})
    if isinstance(best, Refusal):
        return best
    whole = best.decisions[0]
    refusal = check_worthwhile(best, whole.apart_us, program)
    if refusal is not None:
        return replace(refusal, figures=whole.to_dict())
    return with_tuned(best, target, tuned)


def ordinary_us(program: Program, target: Target, hints: Mapping[str, int]) -> float | None:
    """Predicted time of a program in well-made kernels that fuse along rows or along columns, but not both; None if
    there is no plan of it."""
    best = _best(program, target, hints)
    return None if isinstance(best, Refusal) else best.decisions[0].apart_us


def _best(program: Program, target: Target, hints: Mapping[str, int]) -> Plan | Refusal:
    """The plan with the shortest predicted time over all splits, or why there is none. Parts of an axis that are turned
    around are values of their own, if they stay in one kernel."""
    if (parts := unrolled(program)) is not program:
        found = _best_split(parts, target, hints)
        if isinstance(found, Plan) and has_whole_outputs(found):
            return found
    return _best_split(program, target, hints)


def has_whole_outputs(plan: Plan) -> bool:
    """Whether the parts of each tensor that is written by parts are written by one kernel."""
    written = [{o.buffer.within for o in kernel.program.outputs} - {""} for kernel in plan.kernels]
    return len(set[str]().union(*written)) == sum(map(len, written))


def _best_split(program: Program, target: Target, hints: Mapping[str, int]) -> Plan | Refusal:
    """The plan with the shortest predicted time over all splits, or why there is none."""
    if len(program.dims) > MAX_DIMENSIONS:
        message = "has more dimensions than splits are searched for"
        return Refusal("dimensions", program.name, message, len(program.dims), MAX_DIMENSIONS)
    cuts = [(split, cut_split(program, *split, hints)) for split in splits(program)]
    found = [
        (split, each if isinstance(each, Refusal) else scheduled(each, target, hints))
        for split, each in _without_strided(program, cuts)
    ]
    legal = [candidate for _, candidate in found if isinstance(candidate, Plan)]
    if not legal:
        return next(candidate for _, candidate in found if isinstance(candidate, Refusal))
    best = min(legal, key=lambda candidate: (candidate.predicted_us, len(candidate.kernels)))
    others = tuple(
        candidate.decisions[0] if isinstance(candidate, Plan) else Decision(_split_text(*split), candidate)
        for split, candidate in found
        if candidate is not best
    )
    return replace(best, alternatives=others)


def _without_strided(program: Program, cuts: Cuts) -> Iterator[tuple[DimensionSplit, SplitPasses | Refusal]]:
    """Splits with the refusal of those whose columns are scattered in memory with nothing saved by that."""
    along = stride_one_dims(program)
    near = [each for (_, columns), each in cuts if along & set(columns)]
    fewest = min((len(each.passes.programs) for each in near if isinstance(each, SplitPasses)), default=0)
    for split, each in cuts:
        if isinstance(each, Refusal) or along & set(split[1]):
            yield split, each
        else:
            yield split, check_strided(each, fewest) or each


def splits(program: Program) -> Iterator[DimensionSplit]:
    """All (rows, columns), those with the fastest dimensions as columns first."""
    names = [d.name for d in program.dims]
    fast_first = list(reversed(names))
    for count in range(len(names) + 1):
        for chosen in combinations(fast_first, count):
            yield tuple(n for n in names if n not in chosen), tuple(n for n in names if n in chosen)


def stride_one_dims(program: Program) -> set[str]:
    """Dimensions along which neighbours are neighbours in memory, in one of the buffers with most dimensions."""
    most = max((len(b.dims) for b in program.buffers), default=0)
    return {dim for b in program.buffers if len(b.dims) == most for dim in b.dims if b.stride_of[dim] == 1}


def plan_split(
    program: Program, rows: tuple[str, ...], columns: tuple[str, ...], target: Target, hints: Mapping[str, int]
) -> Plan | Refusal:
    """The plan under one split, or the rule that forbids it."""
    found = cut_split(program, rows, columns, hints)
    return found if isinstance(found, Refusal) else scheduled(found, target, hints)


def check_strided(found: SplitPasses, fewest: int) -> Refusal | None:
    """Columns that are not neighbours in memory have to save a pass: what is loaded of a row lies scattered. fewest:
    passes of splits whose columns are neighbours, 0 if none is legal."""
    count = len(found.passes.programs)
    if not 0 < fewest <= count:
        return None
    message = "columns would not be neighbours in memory, and no pass would be saved by that"
    return Refusal("strided_columns", found.program.name, message, count, fewest)


def cut_split(
    program: Program, rows: tuple[str, ...], columns: tuple[str, ...], hints: Mapping[str, int]
) -> SplitPasses | Refusal:
    """The passes under one split, or the rule that forbids it."""
    program = online(split_straddling(program, rows, columns), rows, columns)
    types = program.types()
    for value in program.values:
        if lookup(value.op).kind == "reduction":
            operand_dims = types[value.args[0]][1]
            refusal = check_whole_rows(value, operand_dims, columns) or check_online(value, operand_dims, rows, columns)
            if refusal is not None:
                return refusal
    found = analyse(program, rows)
    passes = cut(program, found, hints)
    for part in passes.programs:
        if (refusal := check_one_space(part)) is not None:
            return refusal
        own_rows = part.in_order(rows)
        structure = analyse(part, own_rows)
        for output in part.outputs:
            if (refusal := check_written_once(part, output, structure, own_rows)) is not None:
                return refusal
    decisions = (
        Decision(f"{c.value} with {c.operand}", check_outer_dependency(c) or check_epilogue_pointwise(c))
        for c in found.cuts
    )
    return SplitPasses(program, rows, columns, passes, tuple(decisions))


def scheduled(found: SplitPasses, target: Target, hints: Mapping[str, int]) -> Plan:
    """The plan under a split: kernels of its passes, each with its schedule."""
    program, rows, columns, passes = found.program, found.rows, found.columns, found.passes
    decisions, products = list(found.decisions), dict(passes.products)
    whole = [Split.of(each, each.in_order(rows), each.in_order(columns), target, hints) for each in passes.programs]
    parts = [part for each in whole for part in _fitting(each, products)]
    products = {name: sizes for name, sizes in products.items() if any(name in p.program.parameters for p in parts)}
    kernels = tuple(map(_scheduled, parts))
    predicted = estimates(kernels, target, hints)
    kinds: tuple[Kind, ...] = tuple(kind_of(k.program, k.schedule.columns) for k in kernels)
    name = f"{program.name} as {len(kernels)} kernel(s), {_split_text(rows, columns)}"
    decisions.insert(0, Decision(name, None, predicted, tuple(each for part in parts for each in apart(part))))
    for each in whole:
        if each not in parts and (reason := check_one_kernel(each)):
            decisions.append(Decision(f"{each.program.name}: rows and columns in one kernel", reason))
    held = tuple(resources(k, target) for k in kernels)
    return Plan(target, kernels, kinds, predicted, tuple(decisions), products, (), held, hints)


def _fitting(whole: Split, products: dict[str, tuple[Size, ...]]) -> Sequence[Split]:
    """One pass, or its rows and its columns apart, but for as many column sums as fit the registers beside a row:
    whatever is predicted to take the least time. products: run-time strides, to which those of new buffers are added.
    """
    refusal = check_one_kernel(whole)
    if refusal is None:
        return (whole,)
    found = [separated(whole, products=products)]
    if refusal.rule == "row_registers":
        found += _sharing(whole, products)
    return min(found, key=_predicted_us)


def separated(
    whole: Split, shared: Sequence[str] = (), products: dict[str, tuple[Size, ...]] | None = None, saving: bool = True
) -> Sequence[Split]:
    """What ``separate`` makes of a pass: what is summed up over rows is computed again, or stored, whichever is
    predicted to take less time."""
    known = {} if products is None else products

    def parts(storing: bool) -> list[Split]:
        made = separate(whole.program, whole.rows, saving=saving, storing=storing, shared=shared, products=known)
        return [whole.part(part) for part in made]

    again = [_widened(part) for part in parts(storing=False)]
    if whole.target.kind == "cpu" or len(again) == 1:
        return again
    stored = parts(storing=True)
    if _least_us(stored) >= _predicted_us(again):
        return again
    return min(again, [_widened(part) for part in stored], key=_predicted_us)


def _widened(part: Split) -> Split:
    """What is only summed up over rows, with all that its sums keep as columns if that is predicted to take less time:
    short rows of neighbouring segments lie beside each other."""
    sums = [value for value in part.program.values if lookup(value.op).kind == "reduction"]
    if part.target.kind == "cpu" or part.has_inner or not all(set(part.segments) <= set(value.dims) for value in sums):
        return part
    kept = part.program.in_order((*part.segments, *part.columns))
    if kept == part.columns:
        return part
    wide = Split.of(part.program, part.inside, kept, part.target, dict(part.hints))
    return min((part, wide), key=lambda split: _predicted_us([split]))


def _predicted_us(parts: Sequence[Split]) -> float:
    """Of programs, a kernel each."""
    kernels = [_scheduled(part) for part in parts]
    return sum(each.predicted_us for each in estimates(kernels, parts[0].target, dict(parts[0].hints)))


def _least_us(parts: Sequence[Split]) -> float:
    """What kernels of these programs are predicted to take at the least, under any schedule: each moves all of its
    tensors once."""
    buffers = ((part, b) for part in parts for b in part.program.buffers)
    return sum(part.sizes.bytes(buffer) for part, buffer in buffers) / most_gbps(parts[0].target) / 1e3


def _sharing(whole: Split, products: dict[str, tuple[Size, ...]]) -> list[Sequence[Split]]:
    """Parts of a pass of which the first has all that is not summed up over rows, and as many sums as fit. An H200 took
    0.62 to 0.73 of the time so at 14336 and 16384 columns, of norms with three column sums and with sums of segments.
    """
    late = [o.buffer.name for o in late_outputs(whole.program, whole.rows)]
    if len(late) > MAX_SUMS:
        return []
    for count in range(len(late) - 1, 0, -1):
        every = (separated(whole, s, products) for s in combinations(late, count))
        found = [parts for parts in every if check_fits(parts[0]) is None]
        if found:
            return found
    return []


def check_one_kernel(whole: Split) -> Refusal | None:
    """On a GPU the rows of a pass and its columns share a kernel if registers hold a row and its column sums, and if
    that is predicted to take less time than two: few rows are read a second time, from the caches, sooner than partial
    sums are written and added up."""
    if (refusal := check_fits(whole)) is not None:
        return refusal
    if whole.target.kind == "cpu":
        return None
    made = [separate(whole.program, whole.rows, saving=True, storing=storing) for storing in (False, True)]
    if len(made[0]) == 1:
        return None
    together = _predicted_us([whole])
    if together <= min(_least_us([whole.part(part) for part in parts]) for parts in made):
        return None
    apart = _predicted_us(separated(whole))
    if together <= apart:
        return None
    message = "rows and columns are predicted to take less time in two kernels"
    return Refusal("apart", whole.program.name, message, round(together, 1), round(apart, 1))


def check_fits(whole: Split) -> Refusal | None:
    """On a GPU registers have to hold a row and its column sums."""
    types = whole.program.types()
    operands = [v.args[0] for v in whole.program.values if is_outer(v, whole.rows)]
    sums_columns = any(set(types[name][1]) & set(whole.columns) for name in operands)
    if whole.target.kind == "cpu" or not (sums_columns and whole.has_inner) or fits_registers(whole):
        return None
    need, most = registers_of_widest(whole)
    message = "a row and all of its column sums take more registers than the threads of a multiprocessor have"
    return Refusal("row_registers", whole.program.name, message, need, most)


def _scheduled(part: Split) -> Kernel:
    """The kernel of one pass."""
    return Kernel(part.program, schedule_for(part))


def apart(part: Split) -> list[Estimate]:
    """The work of a kernel in well-made ones that fuse along rows or along columns, but not both, with one more launch
    to finish column sums of several chunks of rows (that is what pointwise-and-one-reduction compilers do)."""
    kernels, hints = [_scheduled(each) for each in separated(part, saving=False)], dict(part.hints)
    found = estimates(kernels, part.target, hints)
    return [ideal(kernel, plain, part.target, hints) for kernel, plain in zip(kernels, found, strict=True)]


def check_worthwhile(candidate: Plan, apart: float | None, program: Program) -> Refusal | None:
    """Fusing must be predicted to be no slower than leaving the region to a compiler that fuses pointwise work only; a
    reduction alone, which such a compiler does as well, must be predicted faster."""
    alone = is_lone_reduction(program)
    if apart is None or candidate.predicted_us < apart or (candidate.predicted_us == apart and not alone):
        return None
    message = "predicted to be slower than without fusion"
    if alone:
        message = "one reduction and nothing to fuse with it, predicted to be no faster than Inductor's"
    return Refusal("not_worthwhile", program.name, message, round(candidate.predicted_us, 1), round(apart, 1))


def is_lone_reduction(program: Program) -> bool:
    """Whether all there is to a program is one reduction, pointwise work on what it reduces, and on its result."""
    reductions = [v for v in program.values if lookup(v.op).kind == "reduction"]
    if len(reductions) != 1:
        return False
    types = program.types()
    return all(set(types[o.value][1]) <= set(reductions[0].dims) for o in program.outputs)


def _split_text(rows: tuple[str, ...], columns: tuple[str, ...]) -> str:
    return f"rows ({', '.join(rows)}), columns ({', '.join(columns)})"
