"""Registers that a thread of a CUDA C++ kernel wants, so that ptxas spills none: what it has, each with a weight.

The weights are fitted to kernels that were compiled, at shapes drawn at random, under schedules near the limit: whether
something was spilled says more than how many registers a kernel was given, since ptxas takes what there is to load
ahead (``tools/cuda_registers.py``).
"""

from __future__ import annotations

import json
from functools import cache
from importlib import resources as files

from weft.backends.cuda.schedule import MOST_LANES, CudaSchedule
from weft.backends.cuda.work import Work

WORD_BYTES = 4
FEW_STREAMS, FEW_WEIGHTS = 3, 2
"""Inputs that are copied ahead, and that wait in registers, which the kernels of norms have at the most: what there is
beyond these has a weight of its own."""


def wanted_registers(work: Work, schedule: CudaSchedule) -> float:
    """Of a thread."""
    weights = fitted_weights()
    return sum(weights[name] * count for name, count in counts(work, schedule).items())


def counts(work: Work, schedule: CudaSchedule) -> dict[str, float]:
    """What a thread has, by names that weights have. sums, weights, tile: words that it keeps from row to row, or for
    a row tile. terms: exponentials that wait; term_rows: those of rows behind the first; has_terms: sums of them.
    partials: numbers of row reductions. loads, stores: words of a vector that is computed with, of a row. vectors: of
    eight elements, that loops are unrolled for; steps: of row reductions in vectors. picks: elements of a row that are
    taken by their index. lag, lag_rows: a tile whose row reductions are under way, and its rows. edges, edge_rows: code
    for the first and the last vector of a row, of eight elements, twice where any of a thread may be the last one.
    more_streams: inputs that are copied ahead beyond a few; more_weights: words of inputs beyond a few that it keeps.
    clustered: what is sent to other blocks, if there are any."""
    rows, own = schedule.group_rows, schedule.vectors * work.lanes
    shared, is_ragged = schedule.weights == "shared", work.is_early or work.is_any_width
    terms = work.terms * (schedule.tile == "exponentials")
    edges = work.lanes / MOST_LANES * (1 + work.is_any_width) * (is_ragged and work.keeps_columns(schedule))
    more_weights = sum(sorted(work.weights, reverse=True)[FEW_WEIGHTS:])
    return {
        "thread": 1,
        "sums": own * work.sums,
        "weights": own * sum(work.weights) / WORD_BYTES * (not shared),
        "tile": rows * own * sum(work.copied) / WORD_BYTES * (schedule.tile == "registers"),
        "terms": terms * rows * own,
        "term_rows": terms * (rows - 1) * own,
        "has_terms": terms,
        "partials": work.partials * rows,
        "loads": work.lanes * (sum(work.copied) + sum(work.kept) * shared) / WORD_BYTES,
        "stores": work.lanes * len(work.written),
        "vectors": own / MOST_LANES,
        "steps": schedule.vectors * work.partials,
        "picks": work.picks,
        "lag": schedule.lag,
        "lag_rows": schedule.lag * len(work.copied) * rows,
        "edges": edges,
        "edge_rows": edges * rows,
        "more_streams": max(0, len(work.copied) - FEW_STREAMS),
        "more_weights": own * more_weights / WORD_BYTES * (not shared),
        "clustered": int(schedule.cluster > 1),
    }


@cache
def fitted_weights() -> dict[str, float]:
    """Of what ``counts`` counts."""
    file = files.files("weft.plan") / "calibration" / "clusters" / "registers.json"
    return json.loads(file.read_text())
