"""Kernels in CUDA C++ of workloads, under schedules that a test chooses."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import pytest
import torch

from tests.cases import Case, make_case
from tests.exact_inputs import exact_inputs
from tools.gpu_cells import Cell, parts_of
from tools.swept import TARGET
from weft.backends.binary import Job, Variant
from weft.backends.cuda import build
from weft.backends.cuda.choice import chosen
from weft.backends.cuda.schedule import CudaKernel, CudaSchedule
from weft.backends.cuda.work import Work
from weft.backends.listed import backend_of, render
from weft.ir.parser import parse
from weft.ir.program import Buffer, Program
from weft.ir.structure import loops_of
from weft.plan.kernel import Kernel
from weft.plan.planner import SplitPasses, cut_split, splits
from weft.plan.split import Split, segments_of
from weft.target import Target

needs_nvrtc = pytest.mark.skipif(build.missing() != "", reason=f"{build.missing()} is missing")
SOME: dict[str, dict[str, Any]] = {
    "one block": {"warps": 4, "vectors": 2},
    "a cluster": {"cluster": 4, "warps": 4, "vectors": 1, "stages": 3},
    "a finish of its own": {"cluster": 2, "warps": 4, "vectors": 1, "finish": "separate"},
    "several rows": {"warps": 4, "vectors": 2, "rows_per_tile": 3},
    "a tile behind": {"cluster": 2, "warps": 4, "vectors": 1, "stages": 3, "lag": 1},
    "tiles of several rows behind": {"warps": 4, "vectors": 2, "stages": 2, "rows_per_tile": 2, "lag": 1},
    "weights in shared memory": {"warps": 4, "vectors": 2, "weights": "shared"},
    "a tile in registers": {"cluster": 2, "warps": 4, "vectors": 1, "stages": 1, "tile": "registers"},
    "tiles of several rows in registers": {"warps": 4, "vectors": 2, "rows_per_tile": 2, "tile": "registers"},
    "groups of warps": {"warps": 12, "groups": 4, "vectors": 6, "lanes": 4, "rows_per_tile": 4},
    "short vectors": {"warps": 8, "groups": 2, "vectors": 8, "lanes": 2, "rows_per_tile": 2, "finish": "separate"},
}
"""Fields of schedules by what they try."""
EXPONENTIALS = {
    way: fields | {"tile": "exponentials"}
    for way, fields in SOME.items()
    if "lag" not in fields and "tile" not in fields and "weights" not in fields
}
"""Those of kernels whose exponentials wait in registers."""
QUEUED: dict[str, dict[str, Any]] = {
    "one block": {"warps": 4, "vectors": 2, "stages": 2},
    "a stage": {"warps": 4, "vectors": 2, "stages": 1, "blocks": 2},
    "a cluster": {"cluster": 8, "warps": 1, "vectors": 1, "stages": 2},
    "tiles of two rows": {"cluster": 2, "warps": 4, "vectors": 1, "stages": 3, "rows_per_tile": 2},
    "a tile behind": {"cluster": 2, "warps": 4, "vectors": 1, "stages": 2, "lag": 1},
    "tiles of two rows behind": {"cluster": 4, "warps": 2, "vectors": 1, "stages": 3, "rows_per_tile": 2, "lag": 1},
    "a tile in registers": {"cluster": 8, "warps": 1, "vectors": 1, "stages": 1, "tile": "registers"},
    "groups of warps": {"warps": 8, "groups": 8, "vectors": 3, "stages": 2, "rows_per_tile": 8},
    "short vectors": {"warps": 8, "groups": 4, "vectors": 5, "lanes": 2, "stages": 2, "rows_per_tile": 8},
    "quarters of a warp": {"warps": 2, "groups": 8, "vectors": 17, "lanes": 4, "stages": 2, "rows_per_tile": 8},
}
"""Those of kernels whose row tiles are taken from a queue."""
OF_ONE_GROUP = [way for way, fields in QUEUED.items() if "groups" not in fields]
"""Those of them that have weights in shared memory, wherever rows begin."""
WORKLOADS_OF_ROWS = (
    *("rms_norm_forward", "rms_norm_backward", "layer_norm_forward", "layer_norm_backward", "softmax_forward"),
    *("softmax_backward", "add_rms_norm_forward", "add_rms_norm_backward", "layer_norm_backward_bias", "rms_norm_fp8"),
    *("modulated_layer_norm_forward", "modulated_layer_norm_backward", "thunder_layer_norm_backward"),
    *("cross_entropy_forward", "log_softmax_forward", "log_softmax_backward"),
)


ROWS_OF_EXPONENTIALS = ("softmax_forward", "log_softmax_forward", "cross_entropy_forward")
"""Those whose rows have a sum of exponentials of differences from the largest."""
WAYS_OF_EXPONENTIALS = [
    (name, way)
    for name in ROWS_OF_EXPONENTIALS
    for way, fields in SOME.items()
    if name != "cross_entropy_forward" or "groups" not in fields
]
"""These, and names of schedules that they have: cross-entropy adds up numbers of rows, which groups of warps do not."""


def of_any_width(apart: int | str = "s0", **fields: Any) -> CudaKernel:
    """Rows from which their largest is taken, of a width that is known at run time only, and the sums of their columns;
    the vector of float32 has four elements. apart: from one row to the next."""
    parameters = ", ".join(sorted({"s0", *([apart] if isinstance(apart, str) else [])}))
    program = parse(
        f"program p({parameters})\n  dim m = 8\n  dim n = s0\n"
        f"  input x: f32 [m:{apart}, n:1]\n  largest: f32{{m}} = max[n](x)\n"
        "  rest: f32{m, n} = sub(x, largest)\n  total: f32{n} = sum[m](rest)\n"
        f"  output y: f32 [m:{apart}, n:1] = rest\n  output z: f32 [n:1] = total\nend\n"
    )
    chosen = {"rows_per_tile": 1, "stages": 2, "chunks": 8, "finish": "same"} | fields
    return Kernel(program, CudaSchedule("CLUSTER", ("m",), ("n",), (), **chosen))


def with_any_width(kernel: CudaKernel) -> CudaKernel:
    """The same of rows whose width is known at run time only: s0, in place of a number that is no parameter yet. They
    are as far apart as they are wide."""
    program, (columns,) = kernel.program, kernel.schedule.columns
    width = program.size_of(columns)

    def told(buffer: Buffer) -> Buffer:
        return replace(buffer, strides=tuple("s0" if stride == width else stride for stride in buffer.strides))

    made = replace(
        program,
        parameters=("s0",),
        dims=tuple(replace(dim, size="s0") if dim.name == columns else dim for dim in program.dims),
        inputs=tuple(map(told, program.inputs)),
        outputs=tuple(replace(output, buffer=told(output.buffer)) for output in program.outputs),
    )
    return replace(kernel, program=made)


def planned_for(
    name: str, shape: tuple[int, int], dtype: torch.dtype = torch.bfloat16
) -> tuple[CudaKernel, Split, dict[str, Any]]:
    """A workload of any width, as it is planned for an H200 if rows are likely as wide as that; what for; and the
    fields of its schedule."""
    kernel = with_any_width(kernel_of(name, (8, shape[1]), dtype)[1])
    (rows,) = kernel.schedule.rows
    dims = tuple(replace(dim, size=shape[0]) if dim.name == rows else dim for dim in kernel.program.dims)
    kernel = replace(kernel, program=replace(kernel.program, dims=dims))
    split = Split.of_kernel(kernel, Target.named("h200"), {"s0": shape[1]})
    schedule = chosen(split)
    assert schedule is not None
    fields = {each.name: getattr(schedule, each.name) for each in dataclasses.fields(schedule)}
    own = {key: value for key, value in fields.items() if key not in ("scheme", "rows", "columns", "segments")}
    return replace(kernel, schedule=schedule), split, own


def with_any_rows(kernel: CudaKernel) -> CudaKernel:
    """The same with a number of rows that is known at run time only: rows."""
    program, (rows,) = kernel.program, kernel.schedule.rows
    dims = tuple(replace(dim, size="rows") if dim.name == rows else dim for dim in program.dims)
    return replace(kernel, program=replace(program, parameters=(*program.parameters, "rows"), dims=dims))


def of_rows(body: str, columns: int = 16, **fields: Any) -> CudaKernel:
    """Of 8 rows, m, with 16 columns, n, or others, and no sums of columns."""
    program = parse(f"program p()\n  dim m = 8\n  dim n = {columns}\n{body}end\n")
    chosen = {"rows_per_tile": 1, "warps": 4, "vectors": 1, "stages": 2, "chunks": 8, "finish": "none"} | fields
    return Kernel(program, CudaSchedule("CLUSTER", ("m",), ("n",), (), **chosen))


def kernel_of(
    name: str, shape: tuple[int, int], dtype: torch.dtype = torch.bfloat16, *, dynamic: bool = False, **fields: Any
) -> tuple[Case, CudaKernel]:
    """All of a workload that is one pass, under the first split with row reductions."""
    case, program, rows, columns = _one_pass(name, shape, dtype, dynamic)
    segments = segments_of(program, rows)
    ordered = (*segments, *(r for r in rows if r not in segments))
    chosen = {"rows_per_tile": 1, "stages": 2, "chunks": 64, "finish": "same"} | fields
    if not any(loops_of(program, rows, columns).outer):
        chosen["finish"] = "none"
    return case, Kernel(program, CudaSchedule("CLUSTER", ordered, columns, segments, **chosen))


@cache
def _one_pass(
    name: str, shape: tuple[int, int], dtype: torch.dtype, dynamic: bool
) -> tuple[Case, Program, tuple[str, ...], tuple[str, ...]]:
    """Its case, its program, and the rows and columns of that; a workload is traced once for all schedules."""
    case = make_case(name, exact_inputs(name, shape, dtype, "cpu", 3), dynamic)
    for rows, columns in splits(case.program):
        found = cut_split(case.program, rows, columns, {})
        if not isinstance(found, SplitPasses) or len(found.passes.programs) != 1 or not columns or not rows:
            continue
        (program,) = found.passes.programs
        if any(loops_of(program, rows, columns).inner):
            return case, program, rows, columns
    raise ValueError(f"{name} has no such split")


def split_of(name: str, rows: int, columns: int, dtype: str = "bf16", target: Target = TARGET) -> Split:
    """The whole of a workload."""
    return parts_of(Cell(name, dtype, rows, columns), target)[name]


def work_of(split: Split) -> Work:
    """What a program under it has to do."""
    work = Work.of(split)
    assert isinstance(work, Work)
    return work


def compiled(kernel: Kernel, architecture: int, *, aligned: bool = True) -> None:
    """Have NVRTC compile it; it must not spill, and nothing of its text must be in vain."""
    variant, logs = Variant.expected(kernel, {}), list[str]()
    job = Job(kernel, render(kernel), variant if aligned else variant.without_alignment(), architecture)

    def logged(*arguments: Any, real: Any = build.compiled) -> tuple[bytes, str]:
        content, log = real(*arguments)
        logs.append(log)
        return content, log

    with patch.object(build, "compiled", logged):
        binaries = backend_of(kernel).compile(job)
    assert [line for line in "".join(logs).splitlines() if "warning" in line] == []
    for binary in binaries:
        assert binary.usage.spill_bytes == 0, binary.entry
