"""Triton kernels under Triton's interpreter: ``python -m tests.triton_kernels GROUP...``, with ``TRITON_INTERPRET=1``.

Prints JSON: group -> case -> what is wrong with it, or null.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from math import gcd
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from tests import only_triton, triton_runner
from tests.cases import NAMES, POINTWISE_OF_ONE_ROW, Case, make_case, plan_or_refusal, planned
from tests.exact_inputs import exact_inputs
from tests.fuzz.memory import input_tensor
from tests.fuzz.outcome import Mismatch
from tests.sweep.cases import DTYPES, ILL_CONDITIONED
from tests.sweep.layouts import LAYOUTS, lay_out
from tests.triton_programs import FAR, PROGRAMS, Written
from tests.triton_runner import run_plan
from tests.triton_schedules import alternatives, drawn, in_pieces
from weft.backends.triton.division import is_persistent
from weft.backends.triton.places import Places
from weft.bench.workloads import WORKLOADS
from weft.errors import Refusal
from weft.ir.interpret import interpret, sizes_of
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.plan import planner
from weft.plan.kernel import Plan
from weft.plan.planner import plan_split
from weft.plan.schedule import Schedule
from weft.runtime.check import compare
from weft.target import Target

GPU = replace(Target.named("h200"), units=4)
"""With so few multiprocessors that the rows here are many."""
WHOLE_GPU = Target.named("h200")
SHAPES = ((1, 37), (7, 1000))
FEW_ROWS = (23, 200)
OTHER_SHAPE = (20, 72)
MORE_SHAPES = ((24, 96), (300, 130), (13, 5120), (1024, 48))
EXACT_SHAPE = (40, 96)
FORCED = 4
"""Schedules of a workload, drawn from all alternatives; several times as many in the slow group."""
EARLY = {
    "rms_norm_backward": (200, 101, 13, 121),
    "layer_norm_backward_bias": (100,),
    "modulated_layer_norm_backward": (200,),
    "add_rms_norm_forward": (101,),
    "layer_norm_forward": (100, 121),
    "softmax_forward": (13,),
}
"""Columns of each, of bf16: rows begin in the middle of a sector, between two vectors, and anywhere."""
EARLY_COLUMNS = {"backward": (200, 100, 101, 40, 13, 121), "forward": (101, 40, 13, 121)}
"""All of them. A forward's rows that begin with a vector are left as they are."""
SECTOR = 16
"""Elements of bf16."""
BEFORE = {121: 7}
"""Columns that a tile has place for before its row, where these are a vector's and no sector's."""
LIMITS = (2**31, 2, 1)
"""Programs of a persistent launch at the most."""
LAID_OUT = ("rms_norm_backward", "cross_entropy_forward", "modulated_layer_norm_backward", "gelu_backward_bias")
OF_RUN_TIME_ROWS = NAMES[1::4]
"""Backwards, forwards and sums; others in the slow group."""
IN_ONE_KERNEL = patch.object(planner, "fitting", lambda part, *_: [part])
"""Rows and columns, whether that takes longer or not."""
Check = Callable[[], str | None]


def main(groups: Sequence[str]) -> None:
    torch.set_num_threads(1)  # the interpreter has one as well
    print(json.dumps({group: {name: _finding(check) for name, check in GROUPS[group]()} for group in groups}))


def _finding(check: Check) -> str | None:
    try:
        return check()
    except Exception as error:
        return f"{type(error).__name__}: {error}"


# workloads


def shapes() -> Iterator[tuple[str, Check]]:
    """Of each workload two cases: one of few rows, and one of three others in turn."""
    for at, (shape, kind) in enumerate(((SHAPES[0], "bf16"), (SHAPES[1], "bf16"), (OTHER_SHAPE, "f32"))):
        yield from _at_shapes((shape,), (kind,), NAMES[at::3])
    for name in NAMES:  # no more rows than multiprocessors
        yield f"{name} of few rows", lambda n=name: _agrees(n, FEW_ROWS, "bf16", WHOLE_GPU)


def more_shapes() -> Iterator[tuple[str, Check]]:
    yield from _at_shapes((*SHAPES, *MORE_SHAPES), ("bf16",))
    yield from _at_shapes((OTHER_SHAPE,), ("f32",))
    yield from _at_shapes(SHAPES[1:2], ("f16", "f64"))


def _at_shapes(
    sizes: Iterable[tuple[int, int]], kinds: Iterable[str], names: Sequence[str] = NAMES
) -> Iterator[tuple[str, Check]]:
    for kind in kinds:
        for shape in sizes:
            for name in (n for n in names if shape[0] > 1 or n not in POINTWISE_OF_ONE_ROW):
                yield f"{name} {kind} {shape[0]}x{shape[1]}", lambda n=name, s=shape, k=kind: _agrees(n, s, k)


def _inputs(name: str, shape: tuple[int, int], kind: str) -> tuple[Tensor, ...]:
    return WORKLOADS[name].make_inputs(shape, DTYPES[kind], "cpu", 3)


def _agrees(name: str, shape: tuple[int, int], kind: str, target: Target = GPU) -> str | None:
    """What is wrong with the schedule that is chosen."""
    inputs = _inputs(name, shape, kind)
    case = make_case(name, inputs)
    return _compared(case.program, planned(case, target), case.bind(inputs))


def _compared(
    program: Program,
    plan: Plan,
    inputs: Sequence[Tensor],
    parameters: Sequence[int] = (),
    limits: Sequence[int] = LIMITS[:2],
) -> str | None:
    """What is wrong with the results of one plan; they have the same bits with few programs."""
    if not any(map(is_persistent, plan.kernels)):
        limits = limits[:1]
    made = [run_plan(plan, program, inputs, parameters, limit) for limit in limits]
    for others in made[1:]:
        if not all(torch.equal(_bits(a), _bits(b)) for a, b in zip(made[0], others, strict=True)):
            return f"other bits with few programs, {_schedules(plan)}"
    finding = compare(program, inputs, made[0], parameters)
    return None if finding is None else f"{finding}, {_schedules(plan)}"


def _bits(x: Tensor) -> Tensor:
    """Of a whole storage, poison and all: tensors of different runs lie alike."""
    return torch.empty(0, dtype=torch.uint8).set_(x.untyped_storage())


def _schedules(plan: Plan) -> str:
    return "; ".join(str(kernel.schedule) for kernel in plan.kernels)


# schedules


def schedules() -> Iterator[tuple[str, Check]]:
    for name in NAMES:
        yield name, lambda n=name: _forced(n, EXACT_SHAPE, "bf16", FORCED)


def more_schedules() -> Iterator[tuple[str, Check]]:
    for name in NAMES:
        for kind in ("f32", "bf16"):
            yield f"{name} {kind}", lambda n=name, k=kind: _forced(n, (40, 160), k, 8 * FORCED)


def _forced(name: str, shape: tuple[int, int], kind: str, count: int) -> str | None:
    """What is wrong with some schedules, chosen or not, on inputs of which every sum is exact."""
    inputs = exact_inputs(name, shape, DTYPES[kind], "cpu", 3)
    case = make_case(name, inputs)
    base, draw = planned(case, GPU), random.Random(name)
    exact = interpret(case.program, case.bind(inputs))
    for number in range(count):
        chosen = _drawn(base, case, draw, number)
        made = run_plan(chosen, case.program, case.bind(inputs), programs=draw.choice(LIMITS))
        for mine, right in zip(made, exact, strict=True):
            if not torch.equal(mine, right.to(mine.dtype)):
                return f"not exact: {_schedules(chosen)}"
    return None


def _drawn(base: Plan, case: Case, draw: random.Random, number: int) -> Plan:
    """Another schedule of each kernel: of each scheme in turn."""
    kernels = list(base.kernels)
    for i, kernel in enumerate(kernels):
        ways: dict[tuple[Any, ...], list[Schedule]] = {}
        for schedule in alternatives(kernel, sizes_of(kernel.program, ())):
            ways.setdefault((schedule.scheme, schedule.pieces), []).append(schedule)
        if ways:  # none of them takes long
            kernels[i] = replace(kernel, schedule=draw.choice(list(ways.values())[number % len(ways)]))
    return replace(base, kernels=tuple(kernels))


def looped() -> Iterator[tuple[str, Check]]:
    """Rows of several thousand columns, looped over, and held in three pieces."""
    for name in ("layer_norm_forward", "softmax_backward", "log_softmax_forward", "rms_norm_fp8"):
        yield name, lambda n=name: _long(n)


def _long(name: str) -> str | None:
    inputs = _inputs(name, (2, 9003), "bf16")
    case = make_case(name, inputs)
    base = planned(case, GPU)
    (kernel,) = base.kernels
    ways = (("LOOP", (1, 2048), 1), ("LOOP", (4, 256), 1), ("LOOP", (1, 1024), 2), ("ONE_SHOT", in_pieces(9003, 3), 1))
    for scheme, (pieces, each), rows in ways:
        tile = {"pieces": pieces, "piece_columns": each, "rows_per_tile": rows}
        schedule = replace(kernel.schedule, scheme=scheme, **tile)
        finding = _compared(
            case.program, replace(base, kernels=(replace(kernel, schedule=schedule),)), case.bind(inputs)
        )
        if finding is not None:
            return finding
    return None


def early() -> Iterator[tuple[str, Check]]:
    """Rows that begin between sectors of memory, and between vectors, loaded from where these do."""
    for name, widths in EARLY.items():
        yield from _early_of(name, widths)
        yield f"{name} of run-time rows", lambda n=name: _early(n, 13, dynamic_rows=True)


def more_early() -> Iterator[tuple[str, Check]]:
    for name, widths in EARLY.items():
        every = EARLY_COLUMNS["forward" if "forward" in name else "backward"]
        yield from _early_of(name, [columns for columns in every if columns not in widths])


def _early_of(name: str, widths: Iterable[int]) -> Iterator[tuple[str, Check]]:
    for columns in widths:
        yield f"{name} {columns}", lambda c=columns: _early(name, c)


def _early(name: str, columns: int, *, dynamic_rows: bool = False) -> str | None:
    phases = SECTOR // gcd(SECTOR, columns)
    tall = 128 if name.startswith("modulated") else (2 if dynamic_rows else 4) * phases + 6  # of each some in a tile
    inputs = exact_inputs(name, (tall, columns), DTYPES["bf16"], "cpu", 3)
    case = make_case(name, inputs, dynamic_rows=dynamic_rows)
    program, given, sizes = case.program, case.bind(inputs), case.parameters_for(inputs)
    with IN_ONE_KERNEL:
        base = planned(case, WHOLE_GPU)
    (kernel,) = base.kernels
    exact = interpret(program, given, sizes)
    start = replace(kernel.schedule, scheme="STREAM", remat="none", hoisted=False, stages=2, chunks=16)
    for rows, count, finish in ((1, 1, "separate"), (1, 3, "same"), (2, 2, "separate"), (4, 1, "same")):
        pieces, each = in_pieces(columns + BEFORE.get(columns, SECTOR - 1), count if columns > 64 else 1)
        streamed = replace(start, rows_per_tile=rows, pieces=pieces, piece_columns=each, finish=finish)
        streamed = replace(streamed, remat="inputs" if count == 3 else "none")
        at_once = replace(
            streamed, scheme="ONE_SHOT", remat="none", hoisted=count > 1, stages=1, chunks=0, finish="none"
        )
        splits = columns % 8 != 0
        ways = [replace(streamed, finish="none"), *[at_once] * splits] if "forward" in name else [streamed]
        for schedule in ways if rows == 1 or not dynamic_rows else ():
            chosen = replace(base, kernels=(replace(kernel, schedule=schedule),))
            if Places(chosen.kernels[0]).early is None:
                return f"not early: {schedule}"
            made = run_plan(chosen, program, given, sizes, programs=LIMITS[rows % 2])
            for mine, right in zip(made, exact, strict=True):
                if not torch.equal(mine, right.to(mine.dtype)):
                    return f"not exact: {schedule}"
    return None


# sizes and layouts


def rows() -> Iterator[tuple[str, Check]]:
    """Numbers of rows, or of batches, that are known at run time only."""
    yield from _of_run_time_rows(OF_RUN_TIME_ROWS)


def more_rows() -> Iterator[tuple[str, Check]]:
    yield from _of_run_time_rows(name for name in NAMES if name not in OF_RUN_TIME_ROWS)


def _of_run_time_rows(names: Iterable[str]) -> Iterator[tuple[str, Check]]:
    for name in names:
        yield name, lambda n=name: _run_time_rows(n)


def _run_time_rows(name: str) -> str | None:
    made = _inputs(name, (64, 40), "bf16")
    case = make_case(name, made, dynamic_rows=True)
    chosen = planned(case, GPU)
    batched = any(t.ndim > 2 for t in made)
    first = next(t.shape[0] for t in made if t.ndim > 1)
    for count in (1, 3) if batched else (1, 65):
        inputs = _inputs(name, (count, 40), "bf16")
        if batched:
            inputs = tuple(t[:count] if t.ndim > 1 and t.shape[0] == first else t for t in made)
        finding = _compared(case.program, chosen, case.bind(inputs), case.parameters_for(inputs))
        if finding is not None:
            return f"{count}: {finding}"
    return None


def layouts() -> Iterator[tuple[str, Check]]:
    """Two workloads for each layout, of four in turn."""
    for at, name in enumerate(LAID_OUT):
        yield from _laid_out((name,), tuple(LAYOUTS)[at % 2 :: 2])


def more_layouts() -> Iterator[tuple[str, Check]]:
    yield from _laid_out(NAMES, LAYOUTS)


def _laid_out(names: Iterable[str], layouts: Iterable[str]) -> Iterator[tuple[str, Check]]:
    for name in names:
        for layout in layouts:
            if layout != "contiguous" and (name, layout) not in ILL_CONDITIONED:
                yield f"{name} {layout}", lambda n=name, k=layout: _lies(n, k)


def _lies(name: str, layout: str) -> str | None:
    rows = 140 if layout == "transposed" else 15  # of few columns as rows, a kernel is not worth it
    inputs = lay_out(_inputs(name, (rows, 70), "bf16"), layout, 70)
    case = make_case(name, inputs)
    found = plan_or_refusal(case, GPU)
    if isinstance(found, Refusal) and found.rule == "separate_dimensions":
        return None  # of an expanded input its rows or its columns are all that is left
    assert isinstance(found, Plan), found
    return _compared(case.program, found, case.bind(inputs))


# programs


def programs() -> Iterator[tuple[str, Check]]:
    for name, given in PROGRAMS.items():
        yield name, lambda g=given: _all_schedules(g)


def _all_schedules(given: Written) -> str | None:
    """What is wrong with a program that was written down, under a few schedules of each split that it names."""
    program, draw = parse(given.text), random.Random(0)
    for parameters in given.parameters:
        sizes = sizes_of(program, parameters)
        inputs = [input_tensor(b, sizes, "random", 1) for b in program.inputs]
        for columns in given.columns:
            rows = tuple(d.name for d in program.dims if d.name not in columns)
            with IN_ONE_KERNEL if given.keeps_names else nullcontext():
                base = plan_split(program, rows, columns, GPU, {})
            assert isinstance(base, Plan), base
            if given.keeps_names:
                (kernel,) = base.kernels
                base = replace(base, kernels=(replace(kernel, program=program),))
            if given.ops is not None:
                assert given.ops in {v.op for k in base.kernels for v in k.program.values}
            plans = [base, *(drawn(base, sizes, draw) for _ in range(given.schedules))]
            for plan in plans:
                limits = LIMITS[:2] if plan is base else [draw.choice(LIMITS)]
                finding = _compared(program, plan, inputs, parameters, limits)
                if finding is not None:
                    return f"{parameters} {columns}: {finding}"
    return None


# outputs in the place of inputs


def overwriting() -> Iterator[tuple[str, Check]]:
    """An output that a loop writes before another loop reads what lies there: the watch on memory finds it."""
    yield "too early", _too_early


def _too_early() -> str | None:
    text = """
program p()
  dim m = 3
  dim n = 80
  input x: f32 [m:80, n:1]
  double: f32{m, n} = add(x, x)
  total: f32{m} = sum[n](double)
  scaled: f32{m, n} = mul(x, total)
  output out0: f32 [m:80, n:1] = double
  output out1: f32 [m:80, n:1] = scaled
end
"""
    program = parse(text)
    base = plan_split(program, ("m",), ("n",), GPU, {})
    assert isinstance(base, Plan)
    (kernel,) = base.kernels
    looped = replace(
        kernel, schedule=replace(kernel.schedule, scheme="LOOP", piece_columns=32, pieces=1, rows_per_tile=1)
    )
    inputs = [torch.randn(3, 80)]
    for output, wrong in (("out1", False), ("out0", True)):
        with patch.object(triton_runner, "overwritable", lambda _, name=output: {name: ("x",)}):
            try:
                triton_runner.run(looped, inputs)
            except Mismatch as error:
                if not wrong or "is read where out0 is written" not in str(error):
                    return str(error)
            else:
                if wrong:
                    return "nothing is found"
    return None


# addresses


def wide() -> Iterator[tuple[str, Check]]:
    """Elements that lie further apart than indices of 32 bits reach."""
    for bits, steps in ((64, 2), (32, 1)):
        yield f"{bits} bits", lambda s=steps: _far(s)


def _far(steps: int) -> str | None:
    """Rows 2^30 + 1 elements apart: the third one of them lies behind 2^31. Memory that is never touched is none."""
    apart = 2**30 + 1
    data = torch.empty(steps * apart + 8, dtype=torch.uint8)
    x = data.as_strided((steps + 1, 8), (apart, 1))
    x.copy_(torch.arange(8 * (steps + 1)).reshape(steps + 1, 8))
    program = parse(FAR.format(rows=steps + 1, apart=apart))
    plan = plan_split(program, ("m",), ("n",), GPU, {})
    assert isinstance(plan, Plan)
    (made,) = run_plan(plan, program, [x])
    if any(Places(kernel).is_wide != (steps > 1) for kernel in plan.kernels):
        return "indices have another width"
    return None if torch.equal(made, x.int().sum(1).int()) else f"sums are {made.tolist()}"


GROUPS: dict[str, Callable[[], Iterator[tuple[str, Check]]]] = {
    f.__name__: f
    for f in (
        *(shapes, schedules, looped, early, rows, layouts, programs, overwriting, wide),
        *(more_shapes, more_schedules, more_layouts, more_early, more_rows),
    )
}
"""What ``main`` takes."""

if __name__ == "__main__":
    only_triton.for_good()
    main(sys.argv[1:])
