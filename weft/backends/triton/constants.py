"""The constants of the model of time on GPUs. Those of one GPU are fitted by ``python -m tools.gpu_fit`` to
``tools/sweeps/h200_schedules.csv``, measured at sizes drawn at random; other GPUs have the same ones, scaled by what is
known of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import resources
from typing import Any

from weft.backends.overlap import Count
from weft.target import Target

FITTED = "h200"
"""The target whose constants are measured."""
CROWD_BYTES = 65536
"""In flight of a multiprocessor: what the price of too many is counted in."""
OPEN_ROWS = 100
"""What the cost of rows that begin between vectors is counted by."""


@dataclass(frozen=True)
class Constants:
    """Of one way to take rows. bandwidth: of the target's copy bandwidth. in_flight_bytes: of a multiprocessor, below
    which memory waits, beside those of the tile that arrives, and sharpness, how suddenly. crowded: what each
    ``CROWD_BYTES`` in flight cost, as a part of the time of memory. cached: time of bytes that are read again, as a
    part of the time of copying as many. issue_ns: of an operation on an element in a thread, where other programs wait
    for it; latency_ns: where nobody does. again: of one that is repeated, in those that are not. edge: of an element
    that is stored by itself, for each output, operations. access: of a load or store of a vector, in so many
    operations. shuffle: of a row sum among the threads of a warp, or of an access to shared memory, operations.
    overhead: of a tile in a warp, operations. tile_ns, block_reduction_ns: that a program waits for a tile, and for
    each block-wide reduction. compute_power, power: how much the two parts of a tile's time and memory and tiles add
    up, in a program that has a multiprocessor for itself, and overlap, by how much less they do so with many programs
    on it. cold: time of bytes for which the cache has to write back what is in it, as a part of that of copying as
    many. start_us: of a launch. program_ns: until a multiprocessor has started one more program. later_us: where some
    start only when others have ended. tail: tiles that end after memory has. step_us: of each load of the finish that
    waits for another one. finish_us: of a finish that is launched by itself; barrier_us: of one that all programs wait
    for. segment_bytes: that are moved with each part of a row that a program has, where it has not the whole row: lines
    of the caches that others have a part of. gather_us: of each column sum at the end of its chunk, and of each block-
    wide reduction of threads that have rows of it; level_us: of each doubling of these threads. spread_us: by how much
    the last of the loads that are asked for first arrives later, for each doubling of their bytes. fill_ns: that a
    program waits for loads that nothing runs ahead of. same_ns: of each load of a weight by programs that start
    together, which all ask for the same lines, where no others follow. sm_share: of the bandwidth that one
    multiprocessor may have, in those that there would be for each if all had the same. open: what each ``OPEN_ROWS``
    that begin between vectors and are on their way to a multiprocessor cost, as a part of the time of what is moved."""

    bandwidth: float
    in_flight_bytes: float
    sharpness: float
    crowded: float
    cached: float
    cold: float
    issue_ns: float
    latency_ns: float
    again: float
    edge: float
    access: float
    shuffle: float
    overhead: float
    tile_ns: float
    block_reduction_ns: float
    compute_power: float
    power: float
    overlap: float
    start_us: float
    program_ns: float
    later_us: float
    tail: float
    step_us: float
    finish_us: float
    barrier_us: float
    segment_bytes: float
    gather_us: float
    level_us: float
    spread_us: float
    fill_ns: float
    same_ns: float
    sm_share: float
    open: float

    def warm(self) -> Constants:
        """Where the second cache has what a kernel reads."""
        waits = {name: WARM_LATENCY * getattr(self, name) for name in _WAITS}
        return replace(self, cold=0.0, **waits)


WARM_LATENCY = 0.4
"""Of what programs wait for memory, that for the second cache, where the kernel before has left what they read; it
sends no more bytes at a time. With it 772 second kernels of sums along rows and columns, 256 to 1000 rows, scatter
least around what is predicted (H200)."""
_WAITS = ("in_flight_bytes", "tile_ns", "fill_ns", "spread_us")


@lru_cache(maxsize=16)
def constants(target: Target) -> dict[str, Constants]:
    """Of a GPU, by way."""
    return {
        way: scaled(known, target, target.instruction_ratio, target.start_ratio)
        for way, known in fitted_constants().items()
    }


def scaled(known: Constants, target: Target, instruction_ratio: Count, start_ratio: Count) -> Constants:
    """What was fitted on one GPU for another one. By Little's law a multiprocessor has more bytes in flight the more
    bandwidth it has for itself and the longer memory takes; what caches and one multiprocessor can move goes with its
    clock."""
    fitted, waits, starts = Target.named(FITTED), instruction_ratio, start_ratio
    share = target.bandwidth_gbps / target.units / (fitted.bandwidth_gbps / fitted.units)
    slower = {"issue_ns": waits, "latency_ns": waits, "block_reduction_ns": waits, "cached": share * waits}
    slower |= dict.fromkeys(_STARTS, starts) | {"in_flight_bytes": share * starts, "crowded": 1 / (share * starts)}
    slower |= {"sm_share": 1 / (share * waits)}
    return replace(known, **{name: getattr(known, name) * ratio for name, ratio in slower.items()})


_STARTS = (
    *("start_us", "later_us", "program_ns", "tile_ns", "fill_ns", "same_ns"),
    *("step_us", "finish_us", "barrier_us", "gather_us", "level_us", "spread_us"),
)


@cache
def fitted_constants() -> dict[str, Constants]:
    """Of the GPU ``FITTED``, by way."""
    file = resources.files("weft.plan") / "calibration" / "schedules" / f"{FITTED}.json"
    found: dict[str, dict[str, Any]] = json.loads(file.read_text())
    return {way: Constants(**values) for way, values in found.items()}
