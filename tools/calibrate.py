"""Measures CPU kernels over a sweep of shapes and fits the constants of the cost model to it.

``python -m tools.calibrate`` writes ``weft/plan/calibration/cpu.json`` (the constants; on a machine by AMD
``cpu_amd.json``) and ``tools/sweeps/cpu_sweep.csv`` (what they were fitted to). The fit minimises the squared logarithm
of predicted over measured time.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from tools.swept import SWEEPS
from weft.backends.cpp import text as cpp
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.interpret import sizes_of
from weft.ir.simplify import simplify
from weft.options import Options
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan_split
from weft.runtime import build
from weft.runtime.layout import allocate
from weft.target import Target

CALIBRATION = Path(str(resources.files("weft.plan"))) / "calibration"
NAMES = ("rms_norm_forward", "layer_norm_forward", "softmax_forward", "rms_norm_backward", "layer_norm_backward_bias")
SEGMENT_SHAPES = ((64, 32), (2048, 32), (16384, 32), (2048, 256), (256, 1024))
SHAPES = (
    *((1, 32), (64, 64), (512, 32), (4096, 32), (65536, 32), (16384, 64), (512, 256), (4096, 256), (32768, 256)),
    *((64, 1024), (1024, 1024), (8192, 1024), (512, 4096), (4096, 4096), (8192, 4096), (64, 16384), (2048, 16384)),
)
FITTED = ("bandwidth_gbps", "launch_us", "vector_op_us_per_mega", "row_overhead_us", "chunk_overhead_us")


@dataclass(frozen=True)
class Sample:
    """One measured kernel."""

    name: str
    rows: int
    columns: int
    measured_us: float
    kernel: Kernel


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, fit, write; prints how well the model fits."""
    parser = argparse.ArgumentParser(prog="python -m tools.calibrate", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder to write both files to")
    options = parser.parse_args(arguments)
    cases = [(name, *shape) for name in NAMES for shape in SHAPES]
    cases += [("segment_sum", *shape) for shape in SEGMENT_SHAPES]
    samples = [measure(*case) for case in track(cases, description="measuring")]
    target, worst, typical = fit(samples)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    with ((options.out or SWEEPS) / f"{target.name}_sweep.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["workload", "rows", "columns", "dtype", "measured_us", "predicted_us"])
        for s in samples:
            predicted = estimate(s.kernel, target, {}).predicted_us
            writer.writerow([s.name, s.rows, s.columns, "bf16", f"{s.measured_us:.2f}", f"{predicted:.2f}"])
    ((options.out or CALIBRATION) / f"{target.name}.json").write_text(json.dumps(vars(target), indent=2) + "\n")
    print(f"{len(samples)} kernels; predicted over measured: {typical:.2f}x typical, {worst:.2f}x worst")
    return 0


def measure(name: str, rows: int, columns: int) -> Sample:
    """Median time of a bf16 kernel on warm outputs, random inputs."""
    if name == "segment_sum":
        function, inputs = segment_sum, (torch.randn(rows, 2, columns).bfloat16(),)
    else:
        function, inputs = WORKLOADS[name].fn, WORKLOADS[name].make_inputs((rows, columns), torch.bfloat16)
    graph = trace(function, inputs)
    (region,) = capture(graph.graph, name).regions
    program = simplify(region.program)
    dims = [d.name for d in program.dims]
    plan = plan_split(program, tuple(d for d in dims if d != "n"), ("n",), Target.current(), {})
    assert isinstance(plan, Plan)
    (kernel,) = plan.kernels
    placeholders = [n for n in graph.graph.nodes if n.op == "placeholder"]
    by_name = dict(zip((b.name for b in region.program.inputs), region.inputs, strict=True))
    sizes = sizes_of(program, ())
    tensors = [inputs[placeholders.index(by_name[b.name])] for b in program.inputs]
    tensors += [allocate(o.buffer, sizes, torch.device("cpu")).zero_() for o in program.outputs]
    compiled = build.load(cpp.render(kernel), Options.read())
    pointers = (ctypes.c_void_p * len(tensors))(*[t.data_ptr() for t in tensors])
    numbers, threads = (ctypes.c_int64 * 1)(0), torch.get_num_threads()
    return Sample(name, rows, columns, median_us(lambda: compiled(pointers, numbers, threads)), kernel)


def segment_sum(x: Tensor) -> Tensor:
    """Many short column sums: a chunk for every two rows."""
    return x.sum(1)


def median_us(run: Callable[[], Any], seconds: float = 0.15) -> float:
    """Median wall time in microseconds of at least 5 calls over ``seconds``, after one to warm up."""
    run()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times)


def fit(samples: Sequence[Sample]) -> tuple[Target, float, float]:
    """The fitted target, and the worst and the typical (geometric mean) factor between prediction and measurement."""
    import numpy as np
    from scipy.optimize import least_squares

    machine = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    start = replace(
        Target.current(),
        units=torch.get_num_threads(),
        lanes=16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8,
        measured=True,
        origin=f"fitted by tools.calibrate on {machine}, {torch.backends.cpu.get_cpu_capability()}, "
        f"torch {torch.__version__}; strided accesses are a guess: one nanosecond each",
    )

    def with_constants(logs: Any) -> Target:
        return replace(start, **{name: float(np.exp(value)) for name, value in zip(FITTED, logs, strict=True)})

    def errors(logs: Any) -> Any:
        target = with_constants(logs)
        return [np.log(estimate(s.kernel, target, {}).predicted_us / s.measured_us) for s in samples]

    found = least_squares(errors, [np.log(getattr(start, name)) for name in FITTED], loss="soft_l1")
    rounded = {name: float(f"{np.exp(value):.3g}") for name, value in zip(FITTED, found.x, strict=True)}
    target = replace(start, **rounded)
    factors = np.exp(np.abs(errors(np.log(list(rounded.values())))))
    return target, float(factors.max()), float(np.exp(np.mean(np.log(factors))))


if __name__ == "__main__":
    raise SystemExit(main())
