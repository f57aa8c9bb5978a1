"""What a CUDA C++ kernel can be: one function a rule."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from weft.backends.binary import ALIGNMENT_BYTES
from weft.backends.cuda.beginnings import MOST_COUNTED
from weft.backends.cuda.inputs import IN_ONE_PASS
from weft.backends.cuda.schedule import SHARES, WARP_THREADS, CudaKernel
from weft.backends.cuda.view import View
from weft.errors import Refusal
from weft.ir.ops import ONLINE
from weft.ir.program import Buffer

LEAST_ARCHITECTURE = 90
"""The first compute capability with clusters and bulk copies."""
MOST_SHARED_BYTES = 227 * 1024
"""Of a block, from Hopper on (CUDA Programming Guide, compute capabilities)."""


def check_program(view: View) -> Refusal | None:
    """What it computes, and where that lies. view: of a kernel whose schedule does not matter for it."""
    refusal = check_online(view) or check_copies(view) or check_columns(view) or check_segments(view)
    return refusal or check_beginnings(view)


def check_nvrtc(kernel: CudaKernel) -> Refusal | None:
    """Kernels can be compiled here."""
    from weft.backends.cuda import build

    package = build.missing()
    return Refusal("cuda_nvrtc", kernel.name, f"no NVRTC: {package} is missing") if package else None


def check_planned(view: View, *, begins_between: bool) -> Refusal | None:
    """There is a row reduction, or rows that begin between two vectors, as far as is known, and nothing reduced at all:
    what Triton loads element by element."""
    return None if begins_between and not view.outer else check_rows(view)


def check_rows(view: View) -> Refusal | None:
    """Something is reduced along rows."""
    if any(view.loops.inner):
        return None
    return Refusal("cuda_rows", view.program.name, "nothing is reduced along rows", 0, 1)


def check_architecture(kernel: CudaKernel, architecture: int) -> Refusal | None:
    """A GPU has clusters and bulk copies. architecture: its compute capability, as 90 of 9.0."""
    if architecture >= LEAST_ARCHITECTURE:
        return None
    message = "copies rows ahead and shares them in clusters, which GPUs before Hopper cannot"
    return Refusal("cuda_architecture", kernel.name, message, architecture, LEAST_ARCHITECTURE)


def check_online(view: View) -> Refusal | None:
    """No column sum has a moving centre."""
    online = [value for value in view.program.values if value.op in ONLINE]
    found = [value for value in online if value.op not in IN_ONE_PASS or value in view.outer]
    if not found:
        return None
    message = f"no CUDA C++ is written for {found[0].op} over {', '.join(map(str, found[0].attributes))}"
    return Refusal("cuda_online", found[0].name, message, len(found), 0)


def check_copies(view: View) -> Refusal | None:
    """Rows of some input are copied ahead: they tell where vectors begin."""
    if view.streamed():
        return None
    return Refusal("cuda_copies", view.program.name, "reads no rows that could be copied ahead", 0, 1)


def check_columns(view: View) -> Refusal | None:
    """The columns of a row lie next to each other, in all tensors that have them."""
    buffers = [*view.streamed(), *view.weights(), *view.row_outputs()]
    apart = [buffer for buffer in buffers if not _lie_together(view, buffer)]
    if not apart:
        return None
    message = f"the columns of {apart[0].name} do not lie next to each other"
    return Refusal("cuda_columns", view.program.name, message, len(apart), 0)


def check_segments(view: View) -> Refusal | None:
    """Column sums keep all segments or none."""
    for value in view.outer:
        kept = [s for s in view.segments if s in value.dims]
        if len(kept) not in (0, len(view.segments)):
            message = f"keeps {', '.join(kept)} of the segments ({', '.join(view.segments)}), not all or none"
            return Refusal("cuda_segments", value.name, message, len(kept), len(view.segments))
    return None


def check_beginnings(view: View) -> Refusal | None:
    """Rows that begin at one place between two vectors are equally far apart, where a thread keeps something of its
    columns."""
    if view.apart == 1 or view.is_one_index(view.reference):
        return None
    message = (
        f"rows of {view.reference.name} are not equally far apart and begin at different places between two vectors"
    )
    return Refusal("cuda_beginnings", view.program.name, message, view.apart, 1)


def check_groups(view: View) -> Refusal | None:
    """Groups have equal numbers of warps, or are halves or quarters of one, and have equal numbers of rows of a tile, a
    lane copies each of these, and the rows of a group begin alike where threads keep something of their columns."""
    message = _against_groups(view) if view.schedule.groups > 1 else ""
    return Refusal("cuda_groups", view.program.name, message, view.schedule.groups, 1) if message else None


def _against_groups(view: View) -> str:
    """What stands against groups of warps, if anything does."""
    schedule = view.schedule
    groups, rows = schedule.groups, schedule.rows_per_tile
    if schedule.cluster > 1:
        return "groups of warps have whole rows, not those of a cluster"
    if (schedule.warps % groups and groups not in [each * schedule.warps for each in SHARES]) or rows % groups:
        return (
            "groups have equal numbers of warps, or are halves or quarters of one, and equal numbers of rows of a tile"
        )
    if schedule.lag and not schedule.group_warps:
        return "groups that share a warp wait for no row reductions"
    if rows > WARP_THREADS:
        return "a tile has more rows than a warp has lanes that copy them"
    if view.keeps_columns and groups % view.alike:
        return "rows of a group begin at different places between two vectors"
    if view.weights() and schedule.weights == "shared" and not view.shifts_weights:
        return "groups have weights of their own, which are in registers then"
    if not all(map(view.sums_vectors, view.outer)):
        return "groups add up columns, not numbers of rows"
    return ""


def check_lag(view: View) -> Refusal | None:
    """Row tiles come behind where they have row reductions, and a block has a stage for each that it is at."""
    lag, have = view.schedule.lag, view.schedule.stages
    if lag and (refusal := check_rows(view)) is not None:
        return refusal
    if lag and view.schedule.tile != "shared":
        message = "its row tiles come behind, and their rows are not in shared memory then"
        return Refusal("cuda_tile", view.program.name, message, lag, 0)
    if have >= 1 + lag:
        return None
    message = "its row tiles come behind by more than it has stages"
    return Refusal("cuda_stages", view.program.name, message, have, 1 + lag)


def check_terms(view: View) -> Refusal | None:
    """Exponentials wait where they are terms of a sum, and used again, and a float32 that is off by a few units in the
    last place will do."""
    if view.terms or view.schedule.tile != "exponentials":
        return None
    message = "has no exponentials that are added up, and used again for numbers of 16 bits"
    return Refusal("cuda_exponentials", view.program.name, message, 0, 1)


def check_shared_memory(kernel: CudaKernel, needed_bytes: int) -> Refusal | None:
    """A block has place for its stages."""
    if needed_bytes <= MOST_SHARED_BYTES:
        return None
    message = "its stages take more shared memory than a block can have"
    return Refusal("cuda_shared_memory", kernel.name, message, needed_bytes, MOST_SHARED_BYTES)


def check_width(view: View, sizes: Mapping[str, int]) -> Refusal | None:
    """The blocks of a cluster have place for the columns of a row. sizes: of dimensions, by name."""
    columns = prod(sizes[dim] for dim in view.columns)
    most = view.most_columns(divisible=any(sizes[size] % ALIGNMENT_BYTES == 0 for size in view.unknown_sizes))
    if columns <= most:
        return None
    message = "has rows that are wider than what the blocks of a cluster were given place for"
    return Refusal("cuda_width", view.program.name, message, columns, most)


def check_counts(view: View, sizes: Mapping[str, int]) -> Refusal | None:
    """Parts of chunks, and their row tiles, can be counted in 32 bits, in which they are where sizes are known at run
    time only. sizes: of dimensions, by name."""
    if not view.has_parts or view.part_type != "int":
        return None
    rows, segments = (prod(sizes[dim] for dim in dims) for dims in (view.inside, view.segments))
    if (most := view.most_counted(rows, segments)) <= MOST_COUNTED:
        return None
    message = "counts row tiles of a chunk in 32 bits"
    return Refusal("cuda_index", view.program.name, message, most, MOST_COUNTED)


def _lie_together(view: View, buffer: Buffer) -> bool:
    expected: int | None = 1
    for dim in reversed(view.columns):
        size = view.program.size_of(dim)
        if size == 1:
            continue
        if expected is None or buffer.stride_of.get(dim) != expected:
            return False
        expected = expected * size if isinstance(size, int) else None
    return True
