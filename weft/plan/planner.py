"""Chooses the split of dimensions into rows and columns, cuts the program into kernels and schedules each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from weft.errors import Refusal
from weft.ir.online import online
from weft.ir.ops import lookup
from weft.ir.program import Program, Size
from weft.ir.structure import analyse, split_straddling
from weft.ir.unroll import unrolled
from weft.options import ANY, MixedOrder
from weft.plan.alone import lone_reduction, with_inductors_time
from weft.plan.cost import estimates, ideal
from weft.plan.fitting import decision, fitting, scheduled, separated, ways
from weft.plan.kernel import Decision, Estimate, Plan
from weft.plan.legality import (
    Kind,
    check_epilogue_pointwise,
    check_one_space,
    check_online,
    check_outer_dependency,
    check_whole_rows,
    check_written_once,
    kind_of,
)
from weft.plan.partition import Passes, cut
from weft.plan.schedules import resources
from weft.plan.split import Split
from weft.target import Target

MAX_DIMENSIONS = 8
"""Splits are enumerated: 2^8 of them at most."""


@dataclass(frozen=True)
class SplitPasses:
    """A program under a legal split. program: as it is computed under that; decisions: on where it is cut."""

    program: Program
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    passes: Passes
    decisions: tuple[Decision, ...]

    def wholes(self, target: Target, hints: Mapping[str, int]) -> list[Split]:
        """The passes."""
        return [
            Split.of(each, each.only(self.rows), each.only(self.columns), target, hints)
            for each in self.passes.programs
        ]


DimensionSplit = tuple[tuple[str, ...], tuple[str, ...]]
"""Rows and columns."""
Cuts = Sequence[tuple[DimensionSplit, SplitPasses | Refusal]]
"""The passes under each split, or the rule that forbids it."""


def plan(
    program: Program,
    target: Target,
    hints: Mapping[str, int] | None = None,
    mixed_order: MixedOrder = ANY,
) -> Plan | Refusal:
    """The plan with the shortest predicted time over all splits, or the reason why there is none worth running.

    hints: likely values of run-time parameters, by name; they guide the choice and are not compiled in.
    mixed_order: what the user allows; a plan that this cuts is for comparison, and not asked whether it is worthwhile.
    """
    best = _best(program, target, hints or {}, mixed_order)
    if isinstance(best, Refusal):
        return best
    whole, limited = best.decisions[0], any(cut.rule in ("max_reads", "mix_order") for cut in best.cuts)
    refusal = None if limited else check_worthwhile(best, whole.apart_us, program)
    return best if refusal is None else replace(refusal, figures=whole.to_dict())


def ordinary_us(program: Program, target: Target, hints: Mapping[str, int]) -> float | None:
    """Predicted time of a program in well-made kernels that fuse along rows or along columns, but not both; None if
    there is no plan of it."""
    best = _best(program, target, hints)
    return None if isinstance(best, Refusal) else best.decisions[0].apart_us


def _best(program: Program, target: Target, hints: Mapping[str, int], mixed_order: MixedOrder = ANY) -> Plan | Refusal:
    """The plan with the shortest predicted time over all splits, or why there is none. Parts of an axis that are turned
    around are values of their own, if they stay in one kernel."""
    if (parts := unrolled(program)) is not program:
        found = _best_split(parts, target, hints, mixed_order)
        if isinstance(found, Plan) and has_whole_outputs(found):
            return found
    return _best_split(program, target, hints, mixed_order)


def has_whole_outputs(plan: Plan) -> bool:
    """Whether the parts of each tensor that is written by parts are written by one kernel."""
    written = [{o.buffer.within for o in kernel.program.outputs} - {""} for kernel in plan.kernels]
    return len(set[str]().union(*written)) == sum(map(len, written))


def _best_split(program: Program, target: Target, hints: Mapping[str, int], mixed_order: MixedOrder) -> Plan | Refusal:
    """The plan with the shortest predicted time over all splits, or why there is none."""
    if len(program.dims) > MAX_DIMENSIONS:
        message = "has more dimensions than splits are searched for"
        return Refusal("dimensions", program.name, message, len(program.dims), MAX_DIMENSIONS)
    cuts = [(split, cut_split(program, *split, hints)) for split in splits(program)]
    found = [
        (split, each if isinstance(each, Refusal) else planned(each, target, hints, mixed_order))
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
    return replace(best, decisions=_left(best), alternatives=others)


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
    """All (rows, columns), those with the fastest dimensions as columns first. Rows are in the order of the program,
    and once more with each last along which a large buffer is contiguous: a tile of rows reads that as it lies."""
    names = [d.name for d in program.dims]
    fast_first, near = list(reversed(names)), stride_one_dims(program)
    for count in range(len(names) + 1):
        for chosen in combinations(fast_first, count):
            rows, columns = (tuple(n for n in names if (n in chosen) is inside) for inside in (False, True))
            yield rows, columns
            for last in sorted(near.intersection(rows[:-1])):
                yield (*(r for r in rows if r != last), last), columns


def stride_one_dims(program: Program) -> set[str]:
    """Dimensions along which neighbours are neighbours in memory, in one of the buffers with most dimensions."""
    most = max((len(b.dims) for b in program.buffers), default=0)
    return {dim for b in program.buffers if len(b.dims) == most for dim in b.dims if b.stride_of[dim] == 1}


def plan_split(
    program: Program,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    target: Target,
    hints: Mapping[str, int],
    mixed_order: MixedOrder = ANY,
) -> Plan | Refusal:
    """The plan under one split with the shortest predicted time, or the rule that forbids the split."""
    found = cut_split(program, rows, columns, hints)
    return found if isinstance(found, Refusal) else planned(found, target, hints, mixed_order)


def plans_of_split(
    program: Program,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    target: Target,
    hints: Mapping[str, int],
    mixed_order: MixedOrder = ANY,
) -> Iterator[Plan]:
    """Every plan under one split of which ``plan_split`` takes the best; none if a rule forbids the split."""
    found = cut_split(program, rows, columns, hints)
    if isinstance(found, Refusal):
        return
    products, wholes = dict(found.passes.products), found.wholes(target, hints)
    for chosen in product(*(list(ways(whole, products, mixed_order)) for whole in wholes)):
        yield plan_of(found, wholes, chosen, products, mixed_order)


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
        own_rows = part.only(rows)
        structure = analyse(part, own_rows)
        for output in part.outputs:
            if (refusal := check_written_once(part, output, structure, own_rows)) is not None:
                return refusal
    decisions = (
        Decision(f"{c.value} with {c.operand}", check_outer_dependency(c) or check_epilogue_pointwise(c))
        for c in found.cuts
    )
    return SplitPasses(program, rows, columns, passes, tuple(decisions))


def planned(found: SplitPasses, target: Target, hints: Mapping[str, int], mixed_order: MixedOrder = ANY) -> Plan:
    """The plan under a split with the shortest predicted time: kernels of its passes, each with its schedule."""
    products, wholes = dict(found.passes.products), found.wholes(target, hints)
    chosen = [fitting(whole, products, mixed_order) for whole in wholes]
    return plan_of(found, wholes, chosen, products, mixed_order)


def plan_of(
    found: SplitPasses,
    wholes: Sequence[Split],
    chosen: Sequence[Sequence[Split]],
    products: Mapping[str, tuple[Size, ...]],
    mixed_order: MixedOrder,
) -> Plan:
    """The plan under a split with one way to make kernels of each of its passes. wholes: the passes; products: run-time
    strides of intermediates as products of sizes."""
    parts = [part for way in chosen for part in way]
    target, hints = parts[0].target, dict(parts[0].hints)
    used = {name for part in parts for name in part.program.parameters}
    kernels = tuple(map(scheduled, parts))
    predicted = estimates(kernels, target, hints)
    kinds: tuple[Kind, ...] = tuple(kind_of(k.program, k.schedule.columns) for k in kernels)
    name = f"{found.program.name} as {len(kernels)} kernel(s), {_split_text(found.rows, found.columns)}"
    decisions = [Decision(name, None, predicted)]
    decisions += found.decisions
    pairs = zip(wholes, chosen, strict=True)
    decisions += [reason for whole, way in pairs if (reason := decision(whole, way, mixed_order))]
    held = tuple(resources(k, target) for k in kernels)
    products = {name: sizes for name, sizes in products.items() if name in used}
    return Plan(target, kernels, kinds, predicted, tuple(decisions), products, (), held, hints)


def _left(taken: Plan) -> tuple[Decision, ...]:
    """The decisions of a plan, the first one with the time of all of it without fusion across rows and columns."""
    whole, *others = taken.decisions
    if len(taken.kernels) == 1:
        alone = with_inductors_time(taken.kernels[0], taken.estimates[0], taken.target, taken.hints)
        if alone is not None:
            return replace(whole, apart=(alone,)), *others
    parts = (Split.of_kernel(kernel, taken.target, taken.hints) for kernel in taken.kernels)
    return replace(whole, apart=tuple(each for part in parts for each in apart(part))), *others


def apart(part: Split) -> list[Estimate]:
    """The work of a kernel in well-made ones that fuse along rows or along columns, but not both, with one more launch
    to finish column sums of several chunks of rows (that is what pointwise-and-one-reduction compilers do)."""
    kernels, hints = [scheduled(each) for each in separated(part, saving=False)], dict(part.hints)
    found = estimates(kernels, part.target, hints)
    return [ideal(kernel, plain, part.target, hints) for kernel, plain in zip(kernels, found, strict=True)]


def check_worthwhile(candidate: Plan, apart: float | None, program: Program) -> Refusal | None:
    """Fusing must be predicted to be no slower than leaving the region to a compiler that fuses pointwise work only; a
    reduction alone, which such a compiler does as well, must be predicted faster."""
    alone = lone_reduction(program) is not None
    if apart is None or candidate.predicted_us < apart or (candidate.predicted_us == apart and not alone):
        return None
    message = "predicted to be slower than without fusion"
    if alone:
        message = "one reduction and nothing to fuse with it, predicted to be no faster than Inductor's"
    return Refusal("not_worthwhile", program.name, message, round(candidate.predicted_us, 1), round(apart, 1))


def _split_text(rows: tuple[str, ...], columns: tuple[str, ...]) -> str:
    return f"rows ({', '.join(rows)}), columns ({', '.join(columns)})"
