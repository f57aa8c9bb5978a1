"""Chooses the split of dimensions into rows and columns, cuts the program into kernels and schedules each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

from weft.errors import Refusal
from weft.ir.online import online
from weft.ir.ops import lookup
from weft.ir.program import Program, Size
from weft.ir.structure import Cut, analyse, split_straddling
from weft.ir.unroll import unrolled
from weft.options import MixedOrder
from weft.plan.cost import estimates, ideal
from weft.plan.grouping import check_one_kernel, parts_us, scheduled, separated, ways
from weft.plan.kernel import Decision, Estimate, Kind, Plan
from weft.plan.legality import (
    check_epilogue_pointwise,
    check_one_space,
    check_online,
    check_outer_dependency,
    check_whole_rows,
    check_written_once,
)
from weft.plan.partition import cut
from weft.plan.resources import resources
from weft.plan.schedules import kind_of
from weft.plan.split import Split
from weft.plan.tuned import NONE, TunedSchedules, with_tuned
from weft.target import Target

MAX_DIMENSIONS = 8
"""Splits are enumerated: 2^8 of them at most."""
ANY = MixedOrder()


def plan(
    program: Program,
    target: Target,
    hints: Mapping[str, int] | None = None,
    tuned: TunedSchedules = NONE,
    mixed_order: MixedOrder = ANY,
) -> Plan | Refusal:
    """The plan with the shortest predicted time over all splits, or the reason why there is none worth running.

    hints: likely values of run-time parameters, by name; they guide the choice and are not compiled in. tuned: measured
    schedules; they take the place of predicted ones in the kernels of that plan, and have no say in which plan it is.
    mixed_order: what the user allows; a plan that this cuts is for comparison, and not asked whether it is worthwhile.
    """
    best = _best(program, target, hints or {}, mixed_order)
    if isinstance(best, Refusal):
        return best
    whole, limited = best.decisions[0], any(cut.rule in ("max_reads", "mix_order") for cut in best.cuts)
    refusal = None if limited else check_worthwhile(best, whole.apart_us, program)
    if refusal is not None:
        return replace(refusal, figures=whole.to_dict())
    return with_tuned(best, target, tuned)


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
    found = [(split, plan_split(program, *split, target, hints, mixed_order=mixed_order)) for split in splits(program)]
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


def splits(program: Program) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """All (rows, columns), those with the fastest dimensions as columns first."""
    names = [d.name for d in program.dims]
    fast_first = list(reversed(names))
    for count in range(len(names) + 1):
        for chosen in combinations(fast_first, count):
            yield tuple(n for n in names if n not in chosen), tuple(n for n in names if n in chosen)


def plan_split(
    program: Program,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    target: Target,
    hints: Mapping[str, int],
    *,
    mixed_order: MixedOrder = ANY,
) -> Plan | Refusal:
    """The plan under one split with the shortest predicted time, or the rule that forbids the split."""
    found = _Passes.of(program, rows, columns, target, hints, mixed_order)
    return found if isinstance(found, Refusal) else found.plan([min(own, key=_order) for own in found.ways])


def plans_of_split(
    program: Program,
    rows: tuple[str, ...],
    columns: tuple[str, ...],
    target: Target,
    hints: Mapping[str, int],
    *,
    mixed_order: MixedOrder = ANY,
) -> Iterator[Plan]:
    """Every plan under one split that ``plan_split`` takes the best of; none if a rule forbids the split."""
    found = _Passes.of(program, rows, columns, target, hints, mixed_order)
    if not isinstance(found, Refusal):
        yield from map(found.plan, product(*found.ways))


def _order(parts: Sequence[Split]) -> tuple[float, int]:
    return parts_us(parts), len(parts)


@dataclass(frozen=True)
class _Passes:
    """A program under one split. wholes: its passes; ways: to make kernels of each of them. products: run-time strides
    of intermediates as products of sizes."""

    program: Program
    split: tuple[tuple[str, ...], tuple[str, ...]]
    mixed_order: MixedOrder
    cuts: Sequence[Cut]
    wholes: Sequence[Split]
    ways: Sequence[Sequence[Sequence[Split]]]
    products: Mapping[str, tuple[Size, ...]]

    @staticmethod
    def of(
        program: Program,
        rows: tuple[str, ...],
        columns: tuple[str, ...],
        target: Target,
        hints: Mapping[str, int],
        mixed_order: MixedOrder,
    ) -> _Passes | Refusal:
        """Or the rule that forbids the split."""
        program = online(split_straddling(program, rows, columns), rows, columns)
        types = program.types()
        for value in program.values:
            if lookup(value.op).kind == "reduction":
                dims = types[value.args[0]][1]
                refusal = check_whole_rows(value, dims, columns) or check_online(value, dims, rows, columns)
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
        products = dict(passes.products)
        wholes = [
            Split.of(each, each.in_order(rows), each.in_order(columns), target, hints) for each in passes.programs
        ]
        every = [list(ways(each, mixed_order, products)) for each in wholes]
        return _Passes(program, (rows, columns), mixed_order, found.cuts, wholes, every, products)

    def plan(self, chosen: Sequence[Sequence[Split]]) -> Plan:
        """The plan with one way for each pass."""
        parts = [part for own in chosen for part in own]
        target, hints = parts[0].target, dict(parts[0].hints)
        kernels = tuple(map(scheduled, parts))
        predicted = estimates(kernels, target, hints)
        kinds: tuple[Kind, ...] = tuple(kind_of(k.program, k.schedule.columns) for k in kernels)
        name = f"{self.program.name} as {len(kernels)} kernel(s), {_split_text(*self.split)}"
        decisions = [Decision(name, None, predicted, tuple(each for part in parts for each in apart(part)))]
        for each in self.cuts:
            refusal = check_outer_dependency(each) or check_epilogue_pointwise(each)
            decisions.append(Decision(f"{each.value} with {each.operand}", refusal))
        for whole, own in zip(self.wholes, chosen, strict=True):
            if len(own) > 1:
                reason = check_one_kernel(whole, self.mixed_order) or _apart(whole, own)
                decisions.append(Decision(f"{whole.program.name}: rows and columns in one kernel", reason))
        used = {name for part in parts for name in part.program.parameters}
        products = {name: sizes for name, sizes in self.products.items() if name in used}
        held = tuple(resources(k, target) for k in kernels)
        return Plan(target, kernels, kinds, predicted, tuple(decisions), products, (), held, hints)


def _apart(whole: Split, parts: Sequence[Split]) -> Refusal:
    """Few rows, for instance, are read a second time, from the caches, sooner than partial sums are written and added
    up."""
    message = "rows and columns are predicted to take less time in several kernels"
    return Refusal("apart", whole.program.name, message, round(parts_us([whole]), 1), round(parts_us(parts), 1))


def apart(part: Split) -> list[Estimate]:
    """The work of a kernel in well-made ones that fuse along rows or along columns, but not both, with one more launch
    to finish column sums of several chunks of rows (that is what pointwise-and-one-reduction compilers do)."""
    kernels, hints = [scheduled(each) for each in separated(part, saving=False)], dict(part.hints)
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
