"""Predicted time of a C++ kernel: bytes over bandwidth, arithmetic in cache, starts of threads."""

from __future__ import annotations

from dataclasses import replace

from weft.plan.kernel import Estimate
from weft.target import Target


def timed(counts: Estimate, target: Target) -> Estimate:
    """The estimate of a kernel with its times: each is a count by a constant of the target."""
    moved = counts.bytes_read + counts.bytes_written + 2 * counts.workspace_bytes
    compute_us = (
        counts.vector_operations / 2**20 * target.vector_op_us_per_mega
        + counts.row_loops * target.row_overhead_us
        + counts.chunks * target.chunk_overhead_us
    ) / max(target.units, 1)
    start_us, memory_us = counts.starts * target.launch_us, moved / target.bandwidth_gbps / 1e3
    strided_us = counts.strided_elements / 2**20 * target.strided_us_per_mega
    return replace(
        counts,
        start_us=start_us,
        memory_us=memory_us,
        compute_us=compute_us,
        strided_us=strided_us,
        predicted_us=start_us + max(memory_us, compute_us) + strided_us,
    )


def ideal(plain: Estimate, target: Target, splits_sums: bool) -> Estimate:
    """As a well-made kernel does the same work: without strided access, and without partial sums in memory where each
    chunk of rows is a whole segment."""
    if splits_sums:
        return timed(replace(plain, strided_elements=0, starts=plain.starts + 1), target)
    return timed(replace(plain, strided_elements=0, starts=1, launches=1, workspace_bytes=0, chunks=0), target)
