"""Kernels of one pass: of all ways to make some of it, the one that is predicted to take the least time. One kernel, if
registers hold what a thread has at a time; its rows and some of its column sums apart; or cut at a value that goes
through memory in between."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from weft.backends.listed import backends_of
from weft.errors import Refusal
from weft.ir.ops import lookup
from weft.ir.program import Size
from weft.options import ANY, MixedOrder
from weft.plan.cost import estimate, estimates, least_us
from weft.plan.cuts import cuts
from weft.plan.doubt import CLEARLY_FEWER, DOUBTFUL, DOUBTFUL_TIME
from weft.plan.grouping import Groups, check_mixed_order, groupings, is_mixed
from weft.plan.kernel import Decision, Estimate, Kernel
from weft.plan.partition import late_outputs, separate
from weft.plan.schedules import schedule_for
from weft.plan.split import Split

Products = dict[str, tuple[Size, ...]]
"""Run-time strides of intermediates as products of sizes, to which those of new buffers are added."""


def fitting(whole: Split, products: Products, mixed_order: MixedOrder = ANY) -> Sequence[Split]:
    """One pass or parts of it, whatever is predicted to take the least time."""
    best, cost = None, (math.inf, math.inf, math.inf)

    def is_wanted(parts: Sequence[Split]) -> bool:
        return all((0, us) < cost for us in _at_least_us(parts))

    for way in ways(whole, products, mixed_order, is_wanted):
        if (own := (*_cost(way), len(way))) < cost:
            best, cost = way, own
    return best or (whole,)


def ways(
    whole: Split,
    products: Products,
    mixed_order: MixedOrder,
    is_wanted: Callable[[Sequence[Split]], bool] = lambda parts: True,
) -> Iterator[Sequence[Split]]:
    """Ways to make kernels of a pass: one kernel if that is legal, then with column sums taken out of it, then cut
    where registers do not hold it. One kernel is the only way if it is legal where parts are not compared.
    is_wanted: whether parts are worth being looked into, before they have schedules."""
    if check_one_kernel(whole, mixed_order) is None:
        yield (whole,)
        if not compares_parts(whole):
            return
    shares = check_mixed_order(whole, mixed_order) is None
    late = tuple(output.buffer.name for output in late_outputs(whole.program, whole.rows))
    for groups in groupings(late) if is_mixed(whole) else [(late,)]:
        if not shares and sum(map(len, groups)) < len(late):
            continue
        made = [_separated(whole, groups, products, storing=storing) for storing in (False, True)]
        if len(made[0]) == 1 or check_row_fits(made[0][0]) is not None:
            continue
        if not compares_parts(whole) or [p.program for p in made[0]] == [p.program for p in made[1]]:
            made.pop()
        yield from (
            [each for part in map(_widened, way) for each in _cut_again(part, products)]
            for way in made
            if is_wanted(way)
        )
    if check_registers(whole) is not None:
        yield from _cut(whole, products)
        if shares and check_row_fits(whole) is None:
            yield (whole,)


def compares_parts(part: Split) -> bool:
    """Whether some backend's times say which of several ways to make kernels of a pass is the fastest."""
    return any(backend.compares_parts for backend in backends_of(part.target.kind))


def _cut_again(part: Split, products: Products) -> Sequence[Split]:
    """A part of a pass, cut where registers do not hold it."""
    if check_registers(part) is None:
        return (part,)
    return min([*_cut(part, products), (part,)], key=_cost)


def _cost(parts: Sequence[Split]) -> tuple[int, float]:
    """How many of some kernels do not fit registers, and predicted microseconds; those that may fit after all have to
    take clearly less."""
    beyond = sum(check_registers(part, DOUBTFUL) is not None for part in parts)
    times = zip(map(check_registers, parts), _estimates(parts), strict=True)
    return beyond, sum(each.predicted_us * (1 if refusal is None else DOUBTFUL_TIME) for refusal, each in times)


def _cut(whole: Split, products: Products) -> list[Sequence[Split]]:
    """The pass cut in two where the fewest bytes are moved so that both parts clearly fit: the first way that just does
    would be one of which too little is predicted. If they do nowhere, where the larger one has least to load, and that
    again in parts."""
    parts: Sequence[Split] = ()
    for way in cuts(whole.program, whole.rows, dict(whole.hints), products):
        parts = [whole.part(program) for program in way.programs]
        products |= way.products
        if not any(check_registers(part, CLEARLY_FEWER) for part in parts):
            return [parts]
    return [[each for part in parts for each in fitting(part, products)]] if parts else []


def separated(whole: Split, *, saving: bool = True) -> Sequence[Split]:
    """A pass in kernels of rows or of columns, but not both. saving: also where all that the rows would write are row
    results. What is summed up over rows is computed again, or stored, whichever is predicted to take less time."""
    made = [_separated(whole, None, {}, storing=storing, saving=saving) for storing in (False, True)]
    if not compares_parts(whole) or len(made[0]) == 1:
        return [_widened(part) for part in made[0]]
    return min(([_widened(part) for part in parts] for parts in made), key=predicted_us)


def _separated(
    whole: Split, groups: Groups | None, products: Products, *, storing: bool, saving: bool = True
) -> Sequence[Split]:
    """What ``separate`` makes of a pass."""
    made = separate(whole.program, whole.rows, saving=saving, storing=storing, groups=groups, products=products)
    return [whole.part(part) for part in made]


def _widened(part: Split) -> Split:
    """What is only summed up over rows, with all that its sums keep as columns if that is predicted to take less time:
    short rows of neighbouring segments lie beside each other."""
    sums = [value for value in part.program.values if lookup(value.op).kind == "reduction"]
    if not compares_parts(part) or part.has_inner or not all(set(part.segments) <= set(value.dims) for value in sums):
        return part
    kept = part.program.in_order((*part.segments, *part.columns))
    if kept == part.columns:
        return part
    wide = Split.of(part.program, part.inside, kept, part.target, dict(part.hints))
    return min((part, wide), key=lambda split: predicted_us([split]))


def predicted_us(parts: Sequence[Split]) -> float:
    """Of programs, a kernel each."""
    return sum(each.predicted_us for each in _estimates(parts))


def _at_least_us(parts: Sequence[Split]) -> Iterator[float]:
    """What kernels of these programs are predicted to take at the least, known better with each more that is found out:
    all of them move all of their tensors once; the first one has its time, with what it reads in the caches."""
    least = [least_us(sum(map(p.sizes.bytes, p.program.buffers)), p.target) for p in parts]
    yield sum(least)
    first = parts[0]
    if check_registers(first) is None:
        own = estimate(scheduled(first), first.target, dict(first.hints), warm=True)
        yield own.predicted_us + sum(least[1:])


def _estimates(parts: Sequence[Split]) -> tuple[Estimate, ...]:
    """Of programs, a kernel each, one after the other."""
    return estimates([scheduled(part) for part in parts], parts[0].target, dict(parts[0].hints))


def check_one_kernel(whole: Split, mixed_order: MixedOrder = ANY) -> Refusal | None:
    """A pass is one kernel if the options allow that and registers hold what it has to."""
    return check_mixed_order(whole, mixed_order) or check_registers(whole)


def check_registers(part: Split, slack: float = 1.0) -> Refusal | None:
    """Programs have to hold a row and its column sums, and registers what a thread has at a time. slack: by how much
    the latter may exceed them."""
    return check_row_fits(part) or check_fits(part, slack)


def check_row_fits(part: Split) -> Refusal | None:
    """Some backend's programs have to hold a row and its column sums."""
    return _every(backend.check_row(part) for backend in backends_of(part.target.kind))


def check_fits(part: Split, slack: float = 1.0) -> Refusal | None:
    """Registers have to hold what a thread has at a time under the schedule that a kernel of some backend would have.
    slack: by how much that may exceed them."""
    return _every(backend.check_fits(part, slack) for backend in backends_of(part.target.kind))


def _every(refusals: Iterable[Refusal | None]) -> Refusal | None:
    """The first refusal if all backends refuse. None of them is asked behind one that does not."""
    first = None
    for refusal in refusals:
        if refusal is None:
            return None
        first = first or refusal
    return first


def decision(whole: Split, parts: Sequence[Split], mixed_order: MixedOrder) -> Decision | None:
    """Why a pass is not one kernel, if it is not. Where registers are what it lacks, with the times of both ways: in
    one kernel without what spills would cost."""
    if whole in parts:
        return None
    reason = check_one_kernel(whole, mixed_order) or _apart(whole, parts)
    if reason.rule != "registers":
        return Decision(f"{whole.program.name}: rows and columns in one kernel", reason)
    together, apart = (_estimates(each) for each in ([whole], parts))
    return Decision(f"{whole.program.name}: in one kernel", reason, together, apart)


def _apart(whole: Split, parts: Sequence[Split]) -> Refusal:
    """Few rows, for instance, are read a second time, from the caches, sooner than partial sums are written and added
    up."""
    message = "rows and columns are predicted to take less time in several kernels"
    have, limit = (round(predicted_us(each), 1) for each in ([whole], parts))
    return Refusal("apart", whole.program.name, message, have, limit)


def scheduled(part: Split) -> Kernel:
    """The kernel of one pass."""
    return Kernel(part.program, schedule_for(part))
