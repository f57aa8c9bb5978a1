"""What functions a CUDA C++ kernel has, how they are called, and what lies where in shared memory."""

from __future__ import annotations

from functools import lru_cache

from weft.backends.abi import FUNCTIONS, Abi, Launch, Partial, at_most, ceil_div, largest, plus, product
from weft.backends.c_expressions import C_WORDS
from weft.backends.cuda import legality
from weft.backends.cuda.finish import gather_bytes, task_count
from weft.backends.cuda.inputs import in_one_pass
from weft.backends.cuda.lower import CudaLowering
from weft.backends.cuda.schedule import WARP_THREADS, CudaKernel
from weft.backends.cuda.view import View, rounded_up
from weft.backends.free_names import with_free_names
from weft.backends.source import entry_of
from weft.errors import Refusal
from weft.ir.program import Size
from weft.ir.structure import KEPT
from weft.lowering.nest import GridSync, Nest, Reduce, Send, Tasks

_OURS = (
    "w lanes cluster warps stages threads tile_rows columns divisible early ragged own thread_vectors memory ring "
    "exchange rank first beginning begins has_vector padded rows segments chunks next part parts apart tiles stride "
    "first_row end_row first_part own_parts turn surely at_edge queue counter next_row next_rows whole sent Tile "
    "row_lanes vector_of held fresh ahead inner segment chunk row r k i vector column before begin end kept wide "
    "task_columns blocks task exists barrier thread groups group group_threads group_thread stage_rows lane one tile "
    "threadIdx blockIdx gridDim blockDim warpSize count min max barriers"
)
TAKEN = frozenset(_OURS.split()) | C_WORDS
"""Names that no dimension, parameter, buffer or value has in the text."""
DERIVED = (
    *("_at", "_tile", "_stage", "_number", "_lanes", "_vector", "_partial", "_together", "_memory"),
    *("_state", "_block", "_row", "_columns", "_largest", "_terms", "_factor"),
)
"""What the renderer puts behind the name of a value or a buffer to make another."""
BARRIER, COUNTER = "barrier", "counter"
"""The argument that is the counter of a barrier, or of the queue of row tiles."""


@lru_cache(maxsize=KEPT)
def lowered(kernel: CudaKernel) -> tuple[CudaKernel, tuple[Nest, ...]]:
    """A kernel as it is computed, whose names are free, and the nests of its functions."""
    plain = with_free_names(in_one_pass(kernel), TAKEN, DERIVED, FUNCTIONS)
    return plain, CudaLowering(plain).functions()


def shared_bytes(kernel: CudaKernel) -> int:
    """Of a block of the first function."""
    return Layout(*lowered(kernel)).end


def launch_bytes(kernel: CudaKernel) -> dict[str, int]:
    """Shared memory that functions are started with, by their names."""
    entry, *others = (launch.entry for launch in abi(kernel).launches)
    return {entry: shared_bytes(kernel), **dict.fromkeys(others, 0)}


class Layout(View):
    """What lies where in the shared memory of a block: stages, weights, parts of row reductions, barriers. A finish has
    the place of the stages."""

    def __init__(self, kernel: CudaKernel, nests: tuple[Nest, ...]) -> None:
        super().__init__(kernel)
        schedule = kernel.schedule
        reduces = [s for s in nests[0].statements() if isinstance(s, Reduce | Send)]
        words = (sum(self.words_of(self.by_name[n]) for n in s.values if n not in self.centres) for s in reduces)
        self.most = schedule.group_rows * max(words, default=1)
        """Words that a group reduces together."""
        at = schedule.stages * self.stage_bytes
        at = max(at, rounded_up(gather_bytes(self, nests[0], schedule.warps)))
        self.weights_at = dict[str, int]()
        for weights in self.kept(shifted=self.shifts_weights) * (schedule.weights == "shared"):
            self.weights_at[weights[0].name], at = at, at + self.kept_bytes(weights)
        self.sums_at = dict[str, int]()
        for value in self.outer if self.is_grouped else ():
            self.sums_at[value.name], at = at, at + self.sums_bytes(value)
        self.exchange_at = at
        self.exchange_bytes = schedule.exchange_places * 8 * schedule.cluster * schedule.group_warps * self.most
        """Of a group."""
        at += schedule.groups * self.exchange_bytes
        self.next_rows_at = at
        at += 8 * schedule.stages * self.has_next_rows
        self.told_at = at
        at += 8 * schedule.queue_places * self.is_queued
        self.barriers_at = at
        self.exchange_barriers = 2 * schedule.stages
        self.queue_barriers = self.exchange_barriers + schedule.groups * schedule.exchange_places
        self.end = rounded_up(at + 8 * (self.queue_barriers + schedule.queue_places * self.is_queued))


def supports(kernel: CudaKernel) -> Refusal | None:
    """What CUDA C++ is written for."""
    view = View(in_one_pass(kernel))
    refusal = legality.check_program(view) or legality.check_lag(view) or legality.check_groups(view)
    refusal = refusal or legality.check_terms(view)
    return refusal or legality.check_shared_memory(kernel, shared_bytes(kernel))


def _chunk_count(kernel: CudaKernel) -> Size:
    """Chunks of all rows: no more than there are of these."""
    return at_most(_elements(kernel, kernel.schedule.rows), kernel.schedule.chunks)


def _part_count(kernel: CudaKernel) -> Size:
    """Partial results, at the most."""
    places = product([_elements(kernel, kernel.schedule.segments), View(kernel).apart])
    return plus(_chunk_count(kernel), places, -1)


def _elements(kernel: CudaKernel, dims: tuple[str, ...] | list[str]) -> Size:
    return product([kernel.program.size_of(d) for d in dims])


def abi(kernel: CudaKernel) -> Abi:
    """How its functions are called."""
    plain, nests = lowered(kernel)
    schedule, entry = plain.schedule, entry_of(kernel.name)
    syncs = has_grid_sync(nests)
    launches = [
        Launch(
            entry,
            (product([_chunk_count(plain), schedule.cluster]), 1),
            schedule.threads + WARP_THREADS,
            True,
            syncs,
            schedule.cluster,
        )
    ]
    for nest in nests[1:]:
        warps = View(plain).finish_warps
        tasks = largest([task_count(View(plain), s, warps) for s in nest.body if isinstance(s, Tasks)])
        launches.append(Launch(f"{entry}_finish", (tasks, 1), WARP_THREADS * warps, persistent=True))
    return Abi(
        tuple(b.name for b in plain.program.buffers),
        _partials(plain),
        syncs or View(plain).is_queued,
        plain.program.parameters,
        tuple(launches),
    )


def _partials(kernel: CudaKernel) -> tuple[Partial, ...]:
    """A number for each segment, part of a chunk and column, with place for vectors that begin before a row and end
    behind it."""
    view, parts = View(kernel), _part_count(kernel)
    vectors = ceil_div(plus(_elements(kernel, view.columns), view.lanes - 1), view.lanes)
    return tuple(
        Partial(
            f"{v.name}_partial", v.dtype, product([parts, vectors, view.lanes] if view.sums_vectors(v) else [parts])
        )
        for v in view.outer
    )


def has_grid_sync(nests: tuple[Nest, ...]) -> bool:
    """Whether programs of the first function wait for each other."""
    return any(isinstance(s, GridSync) for s in nests[0].body)
