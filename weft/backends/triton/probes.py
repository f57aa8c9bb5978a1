"""What a GPU without fitted constants is like: copies and a few kernels of weft's own are timed on it.

Copies say its bandwidth. Of kernels the model of time has predictions, with constants that were fitted on another GPU;
two ratios, of its instructions and of its starts (``weft.target.Target``), are what brings them nearest to the times.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from weft.backends.listed import render
from weft.backends.triton.candidates import candidates
from weft.backends.triton.constants import fitted_constants, scaled
from weft.backends.triton.cost import Load, times_us, way_of
from weft.backends.triton.demand import Demand
from weft.backends.triton.schedule import TritonKernel, TritonSchedule
from weft.backends.triton.work import Work
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.plan.split import Split
from weft.runtime.gpu import calls as gpu
from weft.runtime.layout import Fitting, allocate
from weft.target import Found, Target

FLUSH_BYTES, COPIED_BYTES = 256 * 2**20, 128 * 2**20
ROUNDS = 9
ELEMENTS = 2**24
"""Of the rows of a large probe: 32 MiB are read, and as many are written."""
ONE_SHOT = ((2, 1024), (64, 4096), (ELEMENTS // 256, 256), (ELEMENTS // 1024, 1024), (ELEMENTS // 8192, 8192))
STREAM = ((64, 1024), (ELEMENTS // 512, 512), (ELEMENTS // 2048, 2048), (ELEMENTS // 8192, 8192))
"""Rows and columns of probes that are scaled rows, and of those with sums over these rows."""
SLOWER = 2.0
"""Beside the best schedule of a probe that one is timed which is no slower than so many times the best, by the model,
and waits for instructions more than all others: memory says nothing of these."""
RATIOS = tuple(2 ** (k / 12) for k in range(-18, 19))
"""Of what the driver says, to choose from."""
GAPS_US = tuple(0.1 * k for k in range(31))
"""That the events around a kernel may add to its time: found beside the ratios, and of no further use."""
LIKELY = 2.0
"""Ratios of so much in either direction are expected: further ones want a reason."""

ROWS = """program probe()
  dim m = {rows}
  dim n = {columns}
  input x: bf16 [m:{columns}, n:1]
  input w: bf16 [n:1]
  a: f32{{m, n}} = cast(x)
  b: f32{{n}} = cast(w)
  square: f32{{m, n}} = mul(a, a)
  sum: f32{{m}} = sum[n](square)
  scaled: f32{{m, n}} = mul(a, sum)
  weighted: f32{{m, n}} = mul(scaled, b)
  result: bf16{{m, n}} = cast(weighted)
  output y: bf16 [m:{columns}, n:1] = result
"""
SUMS = """  over_rows: f32{{n}} = sum[m](scaled)
  output s: f32 [n:1] = over_rows
"""


@dataclass(frozen=True)
class Probe:
    """A kernel whose time is predicted by a way's constants."""

    kernel: TritonKernel
    load: Load
    way: str


def measure(target: Target, device: torch.device, options: Options) -> Found:
    """Of a GPU: target is what is known of it. Raises BuildError if Triton cannot compile for it, and what PyTorch
    raises without 0.7 GB of free memory."""
    with _disable_current_modes(), torch.no_grad(), torch.cuda.device(device):
        # whoever shares the GPU may compute meanwhile: no probe's programs wait for each other
        target = replace(target, bandwidth_gbps=copied_gbps(device), exclusive=False)
        found = probes(target)
        kernels = [probe.kernel for probe in found]
        functions = gpu.build_all(kernels, [*map(render, kernels)], [{}] * len(kernels), options)
        tensors = {program: _tensors(program, device) for program in dict.fromkeys(k.program for k in kernels)}
        runs = [_run(function, *tensors[k.program]) for k, function in zip(kernels, functions, strict=True)]
        measured_us = times_of(runs, device)
        del tensors, runs
        torch.cuda.empty_cache()
        return fit(target, found, measured_us)


def probes(target: Target) -> list[Probe]:
    """Kernels to time, by what is known of a GPU."""
    shapes = [(ROWS, shape) for shape in ONE_SHOT] + [(ROWS + SUMS, shape) for shape in STREAM]
    found = list[Probe]()
    for text, (rows, columns) in shapes:
        program = parse(text.format(rows=rows, columns=columns) + "end\n")
        split = Split.of(program, ("m",), ("n",), target, {})
        chosen = [s for s in candidates(split) if s.scheme != "LOOP"]
        timed = [(times_us(split, s), s) for s in chosen]
        best_us, best = min(((times.all, s) for times, s in timed), key=lambda each: each[0])
        waiting = max(
            ((times.tiles / times.memory, s) for times, s in timed if times.all <= SLOWER * best_us),
            key=lambda each: each[0],
        )
        found += [_probe(program, split, schedule, target) for schedule in dict.fromkeys((best, waiting[1]))]
    return found


def _probe(program: Program, split: Split, schedule: TritonSchedule, target: Target) -> Probe:
    work, demand = Work.of(split), Demand.of(program, schedule)
    load = Load.of(work, demand, schedule, target)
    return Probe(Kernel(program, schedule), load, way_of(schedule, work, demand))


def fit(target: Target, found: Sequence[Probe], measured_us: Sequence[float]) -> Found:
    """The ratios that bring predictions nearest to times, by the mean of the logarithms."""
    import numpy as np

    grid: Any = np.meshgrid(RATIOS, RATIOS, GAPS_US, indexing="ij")
    ratios = {"instruction_ratio": target.instruction_ratio * grid[0], "start_ratio": target.start_ratio * grid[1]}
    known = fitted_constants()
    with_ratios: dict[str, Any] = {way: scaled(known[way], target, **ratios) for way in {p.way for p in found}}
    errors: Any = sum(
        abs(np.log((probe.load.us(with_ratios[probe.way]) + grid[2]) / us))
        for probe, us in zip(found, measured_us, strict=True)
    )
    unlikely = sum((np.log(ratio) / np.log(LIKELY)) ** 2 for ratio in grid[:2]) / 10
    best = np.unravel_index(np.argmin(errors + unlikely), grid[0].shape)
    return Found(
        target.bandwidth_gbps,
        float(ratios["instruction_ratio"][best]),
        float(ratios["start_ratio"][best]),
        float(np.exp(errors[best] / len(found))),
        len(found),
    )


def copied_gbps(device: torch.device) -> float:
    """Bandwidth of a copy, in 10^9 bytes a second, from what one more copy takes."""
    source, result = (torch.empty(COPIED_BYTES, dtype=torch.uint8, device=device).zero_() for _ in range(2))

    def copies(count: int) -> None:
        for _ in range(count):
            result.copy_(source)

    found = times_of([partial(copies, count) for count in (1, 3)], device)
    (us,) = (more - less for less, more in pairwise(found))
    return 2 * 2 * COPIED_BYTES / us / 1e3


def times_of(runs: Sequence[Callable[[], Any]], device: torch.device) -> list[float]:
    """Medians in microseconds of device time between two events, caches flushed before each. What is written for that
    takes longer than the host needs for what follows, so that nothing waits for the host."""
    flush = torch.empty(FLUSH_BYTES // 4, dtype=torch.int32, device=device)
    events = [[[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(ROUNDS)] for _ in runs]
    for run in runs:
        run()
    for at in range(ROUNDS):
        for run, (begin, end) in zip(runs, (own[at] for own in events), strict=True):
            flush.zero_()
            begin.record()
            run()
            end.record()
        torch.cuda.synchronize(device)
    return [statistics.median(1e3 * begin.elapsed_time(end) for begin, end in own) for own in events]


def _tensors(program: Program, device: torch.device) -> tuple[list[Tensor], list[Tensor]]:
    """Inputs and outputs of a probe, the former random."""
    sizes = {d.name: int(d.size) for d in program.dims}
    generator = torch.Generator(device).manual_seed(0)
    inputs: list[Tensor] = []
    for buffer in program.inputs:
        tensor = torch.empty([sizes[d] for d in buffer.dims], dtype=TORCH_DTYPES[buffer.dtype], device=device)
        inputs.append(tensor.normal_(generator=generator))
    return inputs, [allocate(output.buffer, sizes, device) for output in program.outputs]


def _run(function: Any, inputs: list[Tensor], outputs: list[Tensor]) -> Callable[[], Any]:
    """A call of a kernel."""
    fitting = Fitting.of(inputs, outputs, (), None)
    return lambda: gpu.call(function, fitting, inputs, outputs, 0)
