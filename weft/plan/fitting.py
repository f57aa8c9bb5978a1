"""Kernels of one pass: one, if registers hold what a thread has at a time and that is predicted to take less time than
two; otherwise its rows and its columns apart, or cut at a value that goes through memory in between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations

from weft.errors import Refusal
from weft.ir.ops import lookup
from weft.ir.program import Size
from weft.ir.structure import is_outer
from weft.plan.cost import estimates, most_gbps
from weft.plan.cuts import cuts
from weft.plan.demand import Demand
from weft.plan.gpu_candidates import DOUBTFUL, fits_registers, registers_of_widest
from weft.plan.gpu_schedules import CLEARLY_FEWER, DOUBTFUL_TIME, fits, gpu_schedule
from weft.plan.kernel import Decision, Estimate, Kernel
from weft.plan.partition import late_outputs, separate
from weft.plan.resources import demanded
from weft.plan.schedules import schedule_for
from weft.plan.split import Split

MAX_SUMS = 5
"""Column sums of a pass whose registers do not hold all of them: which ones share a kernel with the rows is enumerated,
too. Of more, none does."""


def fitting(whole: Split, products: dict[str, tuple[Size, ...]]) -> Sequence[Split]:
    """One pass or parts of it, whatever is predicted to take the least time. products: run-time strides, to which those
    of new buffers are added."""
    refusal = check_one_kernel(whole)
    if refusal is None:
        return (whole,)
    ways = [separated(whole, products=products)]
    if refusal.rule != "apart":
        ways += _sharing(whole, products)
        ways = [[each for part in way for each in _of_part(part, way, products)] for way in ways]
        ways += _cut(whole, products)
    if refusal.rule == "registers":
        ways.append((whole,))
    return min(ways, key=_cost)


def _cost(parts: Sequence[Split]) -> tuple[int, float]:
    """How many of some kernels do not fit registers, and predicted microseconds; those that may fit after all have to
    take clearly less."""
    beyond = sum(check_registers(part, DOUBTFUL) is not None for part in parts)
    times = zip(map(check_registers, parts), _estimates(parts), strict=True)
    return beyond, sum(each.predicted_us * (1 if refusal is None else DOUBTFUL_TIME) for refusal, each in times)


def _of_part(part: Split, way: Sequence[Split], products: dict[str, tuple[Size, ...]]) -> Sequence[Split]:
    """A part of a pass, itself in parts where that takes less. way: all parts of the pass; one is the pass itself."""
    return fitting(part, products) if len(way) > 1 else (part,)


def _cut(whole: Split, products: dict[str, tuple[Size, ...]]) -> list[Sequence[Split]]:
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
    if _least_us(stored) >= predicted_us(again):
        return again
    return min(again, [_widened(part) for part in stored], key=predicted_us)


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
    return min((part, wide), key=lambda split: predicted_us([split]))


def predicted_us(parts: Sequence[Split]) -> float:
    """Of programs, a kernel each."""
    return sum(each.predicted_us for each in _estimates(parts))


def _least_us(parts: Sequence[Split]) -> float:
    """What kernels of these programs are predicted to take at the least, under any schedule: each moves all of its
    tensors once."""
    buffers = ((part, b) for part in parts for b in part.program.buffers)
    return sum(part.sizes.bytes(buffer) for part, buffer in buffers) / most_gbps(parts[0].target) / 1e3


def _estimates(parts: Sequence[Split]) -> tuple[Estimate, ...]:
    """Of programs, a kernel each, one after the other."""
    return estimates([scheduled(part) for part in parts], parts[0].target, dict(parts[0].hints))


def _sharing(whole: Split, products: dict[str, tuple[Size, ...]]) -> list[Sequence[Split]]:
    """Parts of a pass of which the first has all that is not summed up over rows, and as many sums as fit. An H200 took
    0.62 to 0.73 of the time so at 14336 and 16384 columns, of norms with three column sums and with sums of segments.
    """
    late = [o.buffer.name for o in late_outputs(whole.program, whole.rows)]
    if len(late) > MAX_SUMS:
        return []
    for count in range(len(late) - 1, 0, -1):
        every = (separated(whole, s, products) for s in combinations(late, count))
        found = [parts for parts in every if check_row_fits(parts[0]) is None]
        if found:
            return found
    return []


def check_one_kernel(whole: Split) -> Refusal | None:
    """On a GPU the rows of a pass and its columns share a kernel if registers hold a row and its column sums, and if
    that is predicted to take less time than two: few rows are read a second time, from the caches, sooner than partial
    sums are written and added up."""
    if (refusal := check_registers(whole)) is not None:
        return refusal
    if whole.target.kind == "cpu":
        return None
    made = [separate(whole.program, whole.rows, saving=True, storing=storing) for storing in (False, True)]
    if len(made[0]) == 1:
        return None
    together = predicted_us([whole])
    if together <= min(_least_us([whole.part(part) for part in parts]) for parts in made):
        return None
    apart = predicted_us(separated(whole))
    if together <= apart:
        return None
    message = "rows and columns are predicted to take less time in two kernels"
    return Refusal("apart", whole.program.name, message, round(together, 1), round(apart, 1))


def check_registers(part: Split, slack: float = 1.0) -> Refusal | None:
    """On a GPU registers have to hold a row and its column sums, and what a thread has at a time. slack: by how much
    the latter may exceed them."""
    return check_row_fits(part) or check_fits(part, slack)


def check_row_fits(whole: Split) -> Refusal | None:
    """On a GPU registers have to hold a row and its column sums."""
    types = whole.program.types()
    operands = [v.args[0] for v in whole.program.values if is_outer(v, whole.rows)]
    sums_columns = any(set(types[name][1]) & set(whole.columns) for name in operands)
    if whole.target.kind == "cpu" or not (sums_columns and whole.has_inner) or fits_registers(whole):
        return None
    need, most = registers_of_widest(whole)
    message = "a row and all of its column sums take more registers than the threads of a multiprocessor have"
    return Refusal("row_registers", whole.program.name, message, need, most)


def check_fits(part: Split, slack: float = 1.0) -> Refusal | None:
    """On a GPU registers have to hold what a thread has at a time under the schedule that a kernel would have. slack:
    by how much that may exceed them."""
    if part.target.kind == "cpu" or fits(part, slack):
        return None
    schedule = gpu_schedule(part)
    need, most = demanded(Demand.of(part.program, schedule), schedule, part.target)
    message = "what a thread has to hold at a time takes more registers than it can have"
    return Refusal("registers", part.program.name, message, math.ceil(need), int(most))


def decision(whole: Split, parts: Sequence[Split]) -> Decision | None:
    """Why a pass is not one kernel, if it is not. Where registers are what it lacks, with the times of both ways: in
    one kernel without what spills would cost."""
    if whole in parts or (reason := check_one_kernel(whole)) is None:
        return None
    if reason.rule != "registers":
        return Decision(f"{whole.program.name}: rows and columns in one kernel", reason)
    together, apart = (_estimates(each) for each in ([whole], parts))
    return Decision(f"{whole.program.name}: in one kernel", reason, together, apart)


def scheduled(part: Split) -> Kernel:
    """The kernel of one pass."""
    return Kernel(part.program, schedule_for(part))
