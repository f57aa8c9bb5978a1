"""Which column sums of a pass share a kernel with its rows: every way that there is, and the rules that forbid some."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from weft.errors import Refusal
from weft.ir.ops import lookup
from weft.ir.program import Size
from weft.ir.structure import is_outer
from weft.options import MixedOrder
from weft.plan.cost import estimates
from weft.plan.gpu_candidates import fits_registers, registers_of_widest
from weft.plan.kernel import Kernel
from weft.plan.partition import late_outputs, separate
from weft.plan.schedules import schedule_for
from weft.plan.split import Split

MOST_PARTED = 3
"""Column sums of a pass up to which every partition of them and of the rows is a way."""
MOST_SHARED = 5
"""Column sums up to which every choice of those that stay with the rows is one, the others in one kernel. Of more,
there are all in one kernel and none."""
Products = dict[str, tuple[Size, ...]]
"""Run-time strides of intermediates as products of sizes, to which those of new buffers are added."""
Groups = tuple[tuple[str, ...], ...]


def ways(whole: Split, mixed_order: MixedOrder, products: Products) -> Iterator[Sequence[Split]]:
    """Every way to make kernels of a pass, each as their splits: in one if that is legal, then with column sums taken
    out of it. On a CPU one kernel is the only way if it is legal."""
    if check_one_kernel(whole, mixed_order) is None:
        yield (whole,)
        if whole.target.kind == "cpu" or not is_mixed(whole):
            return
    shares = check_mixed_order(whole, mixed_order) is None
    late = [output.buffer.name for output in late_outputs(whole.program, whole.rows)]
    for groups in groupings(late):
        if shares or sum(map(len, groups)) == len(late):
            parts = separated(whole, groups, products)
            if len(parts) > 1 and all(check_fits(part) is None for part in parts):
                yield parts


def groupings(sums: Sequence[str]) -> Iterator[Groups]:
    """Ways to take column sums out of a kernel of rows and columns: those of a group share a kernel of their own, what
    is in no group stays. At least one is taken out, and all of them in one group come first."""
    if len(sums) > MOST_SHARED:
        yield (tuple(sums),)
        return
    for count in range(len(sums), 0, -1):
        for taken in combinations(sums, count):
            yield from partitions(taken) if len(sums) <= MOST_PARTED else [(taken,)]


def partitions(names: Sequence[str]) -> Iterator[Groups]:
    """Every partition of a set, the one of a single group first."""
    if not names:
        yield ()
        return
    first, *rest = names
    for count in range(len(rest), -1, -1):
        for others in combinations(rest, count):
            left = [name for name in rest if name not in others]
            for groups in partitions(left):
                yield ((first, *others), *groups)


def separated(
    whole: Split, groups: Groups | None = None, products: Products | None = None, saving: bool = True
) -> Sequence[Split]:
    """What ``separate`` makes of a pass."""
    parts = separate(whole.program, whole.rows, saving=saving, groups=groups, products=products)
    return [_widened(whole.part(part)) for part in parts]


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
    return min((part, wide), key=lambda split: parts_us([split]))


def parts_us(parts: Sequence[Split]) -> float:
    """Predicted time of programs, a kernel each."""
    kernels = [scheduled(part) for part in parts]
    return sum(each.predicted_us for each in estimates(kernels, parts[0].target, dict(parts[0].hints)))


def scheduled(part: Split) -> Kernel:
    """The kernel of one pass."""
    return Kernel(part.program, schedule_for(part))


def is_mixed(part: Split) -> bool:
    """Whether rows and columns are reduced."""
    return part.has_inner and part.has_outer


def check_one_kernel(whole: Split, mixed_order: MixedOrder) -> Refusal | None:
    """A pass is one kernel if the options allow that and registers hold what it has to."""
    return check_mixed_order(whole, mixed_order) or check_fits(whole)


def check_mixed_order(whole: Split, mixed_order: MixedOrder) -> Refusal | None:
    """Rows and columns are reduced in one kernel if the options allow that."""
    if not is_mixed(whole):
        return None
    return check_mix_order(whole, mixed_order.allowed) or check_max_reads(whole, mixed_order.max_reads)


def check_mix_order(whole: Split, allowed: bool) -> Refusal | None:
    """Whether any kernel may reduce rows and columns is an option."""
    if allowed:
        return None
    count = sum(is_outer(value, whole.rows) for value in whole.program.values)
    return Refusal("mix_order", whole.program.name, "reduces rows and columns, and mix_order is off", count, 0)


def check_max_reads(whole: Split, limit: int) -> Refusal | None:
    """How many buffers a kernel of rows and columns may read is an option, 0 for any number. Parts of a tensor are one
    buffer."""
    count = len({buffer.within or buffer.name for buffer in whole.program.inputs})
    if not limit or count <= limit:
        return None
    message = "reduces rows and columns, and reads more buffers than max_reads"
    return Refusal("max_reads", whole.program.name, message, count, limit)


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
