"""Every candidate schedule of a kernel, timed: ``python -m weft.bench.gpu_sweep --csv FILE``.

For each workload and shape the kernel that the planner chose is rendered under all its candidate schedules, compiled
by several processes, run once on poisoned outputs and compared with the reference, and timed: all candidates and a
copy of the same bytes in turn, the level-two cache flushed before each, sums of device kernel durations. The file has
a line a candidate; what the planner's constants are fitted to is in ``plan/calibration``.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from weft.bench.arguments import add_workloads, require_gpu
from weft.bench.case import traffic_bytes, workload_case
from weft.bench.gpu_timing import medians_us
from weft.bench.inputs import Shape
from weft.bench.kernel_run import KernelRun, what_is_wrong
from weft.bench.peers import copy_candidate, view_of
from weft.bench.workloads import WORKLOADS
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.interpret import sizes_of
from weft.ir.online import online
from weft.ir.simplify import simplify
from weft.ir.structure import analyse, split_straddling
from weft.options import Options
from weft.plan.candidates import SLACK
from weft.plan.demand import Demand
from weft.plan.gpu_candidates import candidates
from weft.plan.kernel import Finish, Kernel, Plan, parse_kernel
from weft.plan.planner import plan
from weft.plan.resources import registers_per_thread, shared_bytes
from weft.plan.split import Split
from weft.render import triton
from weft.runtime import gpu, triton_build
from weft.runtime.layout import allocate
from weft.runtime.triton_build import GpuTarget, Job, Variant
from weft.target import Target

TARGET = Target.named("h200")
Cell = tuple[str, Shape]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write one line a candidate."""
    parser = argparse.ArgumentParser(prog="python -m weft.bench.gpu_sweep", description=__doc__)
    add_workloads(parser, ["rms_norm_backward"])
    parser.add_argument("--columns", type=int, nargs="+", default=[1024, 4096])
    parser.add_argument("--elements", type=int, default=2**26, help="rows times columns")
    parser.add_argument("--rows", type=int, nargs="+", help="in place of those that have so many elements")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--most", type=int, default=40, help="candidates of a cell, evenly thinned")
    parser.add_argument("--finish", choices=["same", "separate"], help="of all kernels with column sums")
    parser.add_argument("--pieces", type=_numbers, help="of all rows, in place of the planner's, e.g. 1024+256")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--csv", type=Path, required=True)
    given = parser.parse_args(arguments)
    require_gpu(parser)
    dtype, options = getattr(torch, given.dtype), Options.read()
    shapes = [(m, n) for n in given.columns for m in given.rows or [given.elements // n]]
    cells = [(name, shape) for name in given.workload for shape in shapes]
    kernels = {
        cell: [_changed(k, given.finish, given.pieces) for k in _kernels(cell, dtype, given.most)] for cell in cells
    }
    capability = torch.cuda.get_device_capability()
    texts = [(str(kernel), 10 * capability[0] + capability[1]) for found in kernels.values() for kernel in found]
    start = time.perf_counter()
    with ProcessPoolExecutor(given.processes, mp_context=get_context("spawn")) as pool:
        failures = dict(zip((text for text, _ in texts), pool.map(_compile, texts, chunksize=4), strict=True))
    print(f"{len(texts)} kernels compiled in {time.perf_counter() - start:.0f} s", flush=True)
    with given.csv.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for cell, found in kernels.items():
            rows = list(_measure(cell, dtype, [k for k in found if not failures[str(k)]], options, given.rounds))
            rows += [_described(cell, k) | {"failure": why} for k in found if (why := failures[str(k)])]
            writer.writerows(rows)
            file.flush()
            _print_best(cell, rows)
    return 0


COLUMNS = (
    *("workload", "rows", "columns", "chosen", "scheme", "rows_per_tile", "pieces", "warps", "stages", "chunks"),
    *("finish", "keeps", "predicted_registers", "registers", "spill_bytes", "shared_bytes"),
    *("us", "of_copy", "wrong", "failure"),
)


def _kernels(cell: Cell, dtype: torch.dtype, most: int) -> Iterator[Kernel]:
    """The chosen kernel first, if it is one."""
    name, shape = cell
    case = workload_case(WORKLOADS[name], shape, dtype, "cuda")
    (region,) = capture(trace(case.function, case.inputs).graph, name).regions
    program = simplify(region.program)
    chosen = plan(program, TARGET)
    if not isinstance(chosen, Plan):
        print(f"{name} {shape}: {chosen}")
        return
    first = chosen.kernels[0].schedule
    rows, columns = program.in_order(first.rows), program.in_order(first.columns)
    whole = online(split_straddling(program, rows, columns), rows, columns)
    if analyse(whole, rows).pass_count != 1:
        print(f"{name} {shape}: more than one pass")
        return
    split = Split.of(whole, rows, columns, TARGET, {})
    found = list(dict.fromkeys((*candidates(split), *candidates(split, SLACK))))
    step = max(1, -(-len(found) // most))
    yield from dict.fromkeys(
        (*(chosen.kernels if len(chosen.kernels) == 1 else ()), *(Kernel(whole, s) for s in found[::step]))
    )


def _changed(kernel: Kernel, finish: Finish | None, pieces: tuple[int, ...] | None) -> Kernel:
    schedule = kernel.schedule
    if finish is not None and schedule.finish != "none":
        schedule = replace(schedule, finish=finish)
    return replace(kernel, schedule=replace(schedule, pieces=pieces or schedule.pieces))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split("+")))


def _compile(job: tuple[str, int]) -> str:
    """Into the cache; why not, if that fails."""
    text, arch = job
    kernel = parse_kernel(text)
    try:
        found = Job(kernel, triton.render(kernel), Variant.expected(kernel, {}), GpuTarget(arch))
        triton_build.binaries(found, Options.read())
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:120]}"
    return ""


def _described(cell: Cell, kernel: Kernel) -> dict[str, Any]:
    name, (rows, columns) = cell
    s = kernel.schedule
    demand = Demand.of(kernel.program, s)
    return {
        "workload": name,
        "rows": rows,
        "columns": columns,
        "scheme": s.scheme,
        "rows_per_tile": s.rows_per_tile,
        "pieces": "+".join(map(str, s.pieces)),
        "warps": s.warps,
        "stages": s.stages,
        "chunks": s.chunks,
        "finish": s.finish,
        "keeps": s.keeps,
        "predicted_registers": registers_per_thread(demand, s),
        "shared_bytes": shared_bytes(demand, s),
    }


def _measure(
    cell: Cell, dtype: torch.dtype, kernels: Sequence[Kernel], options: Options, rounds: int
) -> Iterator[dict[str, Any]]:
    if not kernels:
        return
    name, shape = cell
    case = workload_case(WORKLOADS[name], shape, dtype, "cuda")
    module = trace(case.function, case.inputs)
    (region,) = capture(module.graph, name).regions
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    known = dict(zip(placeholders, case.inputs, strict=True))
    inputs = {b.name: view_of(n, known, module) for b, n in zip(region.program.inputs, region.inputs, strict=True)}
    program = kernels[0].program
    device = case.inputs[0].device
    bound = [inputs[b.name] for b in program.inputs]
    outputs = [allocate(o.buffer, sizes_of(program, ()), device) for o in program.outputs]
    expected: list[Tensor] = []
    runs: list[tuple[KernelRun, dict[str, Any]]] = []
    for kernel in kernels:
        row = _described(cell, kernel) | {"chosen": int(kernel is kernels[0])}
        if (refusal := triton.supports(kernel)) is not None:
            yield row | {"failure": refusal.rule}
            continue
        try:
            run = KernelRun(kernel, bound, outputs, (), options)
            run.run_poisoned()
        except Exception as error:
            yield row | {"failure": f"{type(error).__name__}: {str(error)[:120]}"}
            continue
        row["wrong"] = what_is_wrong(program, bound, outputs, (), expected)
        expected = expected or [t.clone() for t in outputs]
        usage = run.function.binaries(Variant.expected(kernel, {}), gpu.target_of(device))[
            triton.render(kernel).entry
        ].usage
        row |= {"registers": usage.registers, "spill_bytes": usage.spill_bytes, "shared_bytes": usage.shared_bytes}
        runs.append((run, row))
    copied = copy_candidate(traffic_bytes((*bound, *outputs)), device)
    times = medians_us([copied.run, *(run for run, _ in runs)], rounds, device)
    for (_, row), own in zip(runs, times[1:], strict=True):
        yield row | {"us": round(own, 2), "of_copy": round(times[0] / own, 4)}


def _print_best(cell: Cell, rows: Sequence[dict[str, Any]]) -> None:
    done = sorted((r for r in rows if r.get("us") and not r["wrong"]), key=lambda r: r["us"])
    wrong = [r for r in rows if r.get("wrong")]
    shown = ("rows_per_tile", "pieces", "warps", "stages", "chunks", "registers", "spill_bytes", "us", "of_copy")
    print(f"{cell[0]} {cell[1][0]}x{cell[1][1]}: {len(done)} right, {len(wrong)} wrong, {len(rows)} in all")
    for row in [*(r for r in done if r["chosen"]), *done[:3]]:
        print("   ", "*" if row["chosen"] else " ", *(row[key] for key in shown))
    if wrong:
        print("    wrong:", wrong[0]["wrong"])
    failed = [r for r in rows if r.get("failure")]
    if failed:
        print(f"    {len(failed)} failed:", failed[0]["failure"])


if __name__ == "__main__":
    raise SystemExit(main())
