"""Runs one case in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

import weft
from tests.accuracy import is_averaged, rounding_excess
from tests.cases import Case, captured, case_of, plan_or_refusal
from tests.exact_inputs import WEIGHT_OUTPUTS
from tests.fuzz.memory import check_untouched, output_tensor, written
from tests.fuzz.outcome import Mismatch
from tests.sweep.cases import DTYPES, SweepCase
from tests.sweep.layouts import data_elements, lay_out
from weft.backends.cpp import text as cpp
from weft.bench.workloads import WORKLOADS, Workload
from weft.capture.regions import Capture
from weft.errors import Refusal
from weft.integration.report import Report
from weft.ir.interpret import interpret
from weft.ir.program import Buffer
from weft.options import Options
from weft.plan.kernel import Plan
from weft.runtime.check import compare
from weft.runtime.launch import run_plan

SEED = 5
RUN_TIME_ROWS = (1, 2, 7, 63, 64, 65)
RUN_TIME_BATCHES = (1, 2, 3, 5)
RUN_TIME_SHAPES = ((60, 257), (24, 768), (210, 31), (120, 1000), (80, 64), (16, 5120))
"""Shapes in turn of one function with run-time sizes; all but the first two find compiled code. No number of batches,
heads or positions is one, and none are equal in the first: such sizes are compiled in."""
ELEMENT_EPSILONS = 4
MOVES = 2
"""Evaluations with moved inputs: one alone may leave a single number where it was."""
FEW = 8
"""Numbers among whose errors eager's largest may be small by luck."""
EACH_CHECKED = 2**18
"""Up to that many elements of data each result is compared with what rounding may do to it, which takes long."""


@dataclass(frozen=True)
class Outcome:
    """A case in which nothing is wrong. refused: why there was no kernel, or why a part was left out."""

    kernels: int
    compared: int
    refused: tuple[str, ...] = ()


def check(case: SweepCase) -> Outcome:
    """Raise Mismatch, or whatever weft raises, if anything about a case goes wrong."""
    run = {"static": _static, "rows": _rows, "fuse": _fuse, "dynamic": _dynamic}[case.mode]
    with torch.no_grad():
        return run(case)


def inputs_of(case: SweepCase, rows: int | None = None, columns: int | None = None) -> tuple[Tensor, ...]:
    """Random inputs in the layout of the case."""
    shape = (case.rows if rows is None else rows, columns or case.columns)
    made = WORKLOADS[case.workload].make_inputs(shape, DTYPES[case.dtype], "cpu", SEED)
    return lay_out(made, case.layout, shape[1])


def _static(case: SweepCase) -> Outcome:
    inputs = inputs_of(case)
    found = captured(case.workload, inputs)
    if not _is_one_region(found):
        return _fuse(case)
    program = case_of(case.workload, found, inputs)
    chosen = _plan(program)
    if isinstance(chosen, Refusal):
        return Outcome(0, 0, (str(chosen),))
    return Outcome(len(chosen.kernels), run_and_compare(program, chosen, inputs))


def _rows(case: SweepCase) -> Outcome:
    """One kernel for every number of rows; where rows are batches of sequences, for every number of batches."""
    inputs = inputs_of(case)
    found = captured(case.workload, inputs, dynamic_rows=True)
    if not _is_one_region(found):
        return Outcome(0, 0, tuple(map(str, found.refusals)) or (f"{len(found.regions)} regions",))
    program = case_of(case.workload, found, inputs, dynamic_rows=True)
    chosen = _plan(program)
    if isinstance(chosen, Refusal):
        return Outcome(0, 0, (str(chosen),))
    compared = run_and_compare(program, chosen, inputs)
    first = next(t.shape[0] for t in inputs if t.ndim > 1)
    batched = any(t.ndim > 2 for t in inputs)
    for rows in (0, *(RUN_TIME_BATCHES if batched else RUN_TIME_ROWS)):
        if rows < first:
            fewer = tuple(t[:rows] if t.ndim and t.shape[0] == first and t.ndim != 1 else t for t in inputs)
            if not batched:
                fewer = inputs_of(case, rows) if rows else tuple(_without_rows(t, case.rows) for t in inputs)
            compared += run_and_compare(program, chosen, fewer, program.parameters_for(fewer))
    return Outcome(len(chosen.kernels), compared)


def _without_rows(tensor: Tensor, rows: int) -> Tensor:
    return tensor[:0] if tensor.ndim and tensor.shape[0] == rows else tensor


def _is_one_region(found: Capture) -> bool:
    return len(found.regions) == 1 and not found.refusals


def _plan(program: Case) -> Plan | Refusal:
    chosen = plan_or_refusal(program)
    if isinstance(chosen, Refusal):
        return chosen
    return next((no for kernel in chosen.kernels if (no := cpp.supports(kernel)) is not None), chosen)


def run_and_compare(
    case: Case, chosen: Plan, inputs: tuple[Tensor, ...], parameters: tuple[int, ...] | None = None
) -> int:
    """Run into poisoned memory and compare with the interpreter, as far as eager's errors allow; how many outputs were
    compared. Raises Mismatch."""
    parameters = case.parameters if parameters is None else parameters
    bound = case.bind(inputs)
    made = run_poisoned(chosen, case, bound, parameters)
    if (
        data_elements(inputs) <= EACH_CHECKED
        and (finding := compare(case.program, bound, made, parameters)) is not None
    ):
        raise Mismatch("element", str(finding))
    exact = interpret(case.program, bound, parameters)
    moved = moved_by_inputs(case.workload, inputs) if data_elements(inputs) else (0.0,) * len(case.results)
    if case.program.parameters:  # shapes of the function are symbols: buffers are compared, not what it returns
        by_buffer = dict(zip((buffer for buffer, _ in case.results), moved, strict=True))
        changes = [by_buffer[i] for i in range(len(made))]
        compare_all(made, interpret(case.program, bound, parameters, exact=False), exact, (), changes)
    else:
        eager = case.workload.outputs(*inputs)
        compare_all(case.outputs(made), eager, case.outputs(exact), WEIGHT_OUTPUTS.get(case.workload.name, ()), moved)
    return len(made)


def run_poisoned(chosen: Plan, case: Case, bound: Sequence[Tensor], parameters: Sequence[int]) -> list[Tensor]:
    """Outputs of the program, in memory that was poison; Mismatch if anything beside them was written."""
    outputs: list[tuple[Buffer, Tensor]] = []

    def allocate(buffer: Buffer, sizes: dict[str, int], device: torch.device) -> Tensor:
        outputs.append((buffer, output_tensor(buffer, sizes)))
        return outputs[-1][1]

    before = [_bytes(t).clone() for t in bound]
    made = run_plan(chosen, case.program, bound, parameters, Options.read(), allocate)
    for buffer, tensor in outputs:
        check_untouched(buffer, tensor)
    if not all(torch.equal(kept, _bytes(t)) for kept, t in zip(before, bound, strict=True)):
        raise Mismatch("input", "an input was written")
    return [written(o.buffer, t) for o, t in zip(case.program.outputs, made, strict=True)]


def _bytes(tensor: Tensor) -> Tensor:
    """All of a tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def compare_all(
    made: Sequence[Tensor],
    eager: Sequence[Tensor],
    exact: Sequence[Tensor],
    weight_outputs: Sequence[int],
    moved: Sequence[float],
) -> None:
    """Raise Mismatch for the first output that is wrong. moved: as ``moved_by_inputs`` says, one number an output."""
    for index, (mine, theirs, reference, change) in enumerate(zip(made, eager, exact, moved, strict=True)):
        if (mine.dtype, mine.shape) != (theirs.dtype, theirs.shape):
            message = f"{mine.dtype} {tuple(mine.shape)}, eager has {theirs.dtype} {tuple(theirs.shape)}"
            raise Mismatch("type", f"output {index} is {message}")
        finite = reference.double().isfinite()
        if not torch.equal(theirs.double().isfinite(), mine.double().isfinite()) and bool(finite.all()):
            raise Mismatch(
                "finite", f"output {index}: {int((~mine.double().isfinite()).sum())} elements are not finite"
            )
        if not finite.all() or not mine.numel():
            if not torch.allclose(mine.double(), theirs.double(), rtol=0.05, atol=0.05, equal_nan=True):
                raise Mismatch("value", f"output {index} is not eager's, which is not finite everywhere")
            continue
        _check_elements(index, mine, theirs, reference, change)
        averaged = mine.is_floating_point() and mine.dtype != torch.float64 and is_averaged(reference)
        excess = rounding_excess(mine, theirs, reference, index in weight_outputs) if averaged else None
        if excess is not None:
            raise Mismatch("error", f"output {index}: {excess}")


def _check_elements(index: int, mine: Tensor, eager: Tensor, exact: Tensor, moved: float) -> None:
    """Each element may be off by four times eager's largest error, or what rounded inputs would change if that is more,
    and four epsilons of the largest element."""
    error, eagers = ((t.double() - exact.double()).abs().max().item() for t in (mine, eager))
    eps = torch.finfo(mine.dtype).eps if mine.is_floating_point() else 0.0
    bound = ELEMENT_EPSILONS * (max(eagers, moved) + eps * exact.double().abs().max().item())
    if error > bound:
        allowed = f"eager's {eagers:.3g}, by moved inputs {moved:.3g}"
        raise Mismatch("value", f"output {index}: largest error {error:.3g} > {bound:.3g} ({allowed})")


def moved_by_inputs(workload: Workload, inputs: Sequence[Tensor]) -> tuple[float, ...]:
    """For each float64 result, and each of a few float32 numbers, the largest change of an element when every element
    of the inputs of its dtype is moved to the next number above or below it, at random; zero for other results.

    The reference of a float64 result is rounded as often as the result is: eager's distance from it, the yardstick
    elsewhere, is zero where both do the same steps, however much these cancel. An algorithm of no fault may give what
    is exact for inputs that differ by a rounding, and a result that changes by much then is known no better. The same
    goes for a single float32 sum of a thousand terms that cancel: eager's one error may happen to be next to nothing.
    """
    outputs = workload.outputs(*inputs)
    most = [0.0] * len(outputs)

    def counts(tensor: Tensor) -> bool:
        return tensor.dtype == torch.float64 or (tensor.dtype == torch.float32 and 0 < tensor.numel() <= FEW)

    if not any(map(counts, outputs)):
        return tuple(most)
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(MOVES):
        moved = workload.outputs(*(_moved(t, generator) for t in inputs))
        for i, (before, after) in enumerate(zip(outputs, moved, strict=True)):
            if counts(before) and before.numel():
                most[i] = max(most[i], (after - before).abs().nan_to_num(0.0).max().item())
    return tuple(most)


def _moved(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """A dense tensor: elements that share memory are moved each by itself."""
    if tensor.dtype not in (torch.float64, torch.float32):
        return tensor
    signs = torch.randint(0, 2, tensor.shape, generator=generator).to(tensor.dtype) * 2 - 1
    return torch.nextafter(tensor, signs * torch.inf)


def _fuse(case: SweepCase) -> Outcome:
    return _through_fuse(case, [(case.rows, case.columns)], dynamic=False)


def _dynamic(case: SweepCase) -> Outcome:
    return _through_fuse(case, RUN_TIME_SHAPES, dynamic=True)


def _through_fuse(case: SweepCase, shapes: Sequence[tuple[int, int]], dynamic: bool) -> Outcome:
    """``weft.fuse`` on inputs of these shapes in turn. With run-time sizes two shapes may be compiled, not more."""
    workload = WORKLOADS[case.workload]
    torch._dynamo.reset()
    weft.counters.reset()
    weft.runtime.failures.forget()
    fused = weft.fuse(workload.fn, dynamic=dynamic)
    compared, compiled = 0, 0
    refused: dict[str, None] = {}
    for number, (rows, columns) in enumerate(shapes):
        inputs = inputs_of(case, rows, columns)
        try:
            eager = workload.outputs(*inputs)
        except (RuntimeError, IndexError) as error:
            _check_raises(fused, inputs, error)
            continue
        before = weft.counters.launches
        made = fused(*inputs)
        if weft.counters.launches > before:  # else all of it was left to TorchInductor, whose rounding is its own
            exact = [t.double() for t in workload.outputs(*(_widened(t) for t in inputs))]
            moved = moved_by_inputs(workload, inputs)
            compare_all(
                [made] if isinstance(made, Tensor) else made, eager, exact, WEIGHT_OUTPUTS.get(workload.name, ()), moved
            )
            compared += len(eager)
        if weft.counters.pass_calls > compiled:
            made_here = [each for each in weft.last_reports() if isinstance(each, Report)]
            refused |= {f"{r.rule}: {r.message}": None for r in made_here[-1].refusals}
            if dynamic and number > 1:
                raise Mismatch("compiled", f"compiled again for {rows} x {columns}")
        compiled = weft.counters.pass_calls
    if weft.counters.fallbacks:
        raise Mismatch("fallback", f"{weft.counters.fallbacks} launches ran on ATen")
    return Outcome(weft.counters.kernels, compared, tuple(refused))


def _widened(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def _check_raises(fused: object, inputs: tuple[Tensor, ...], error: Exception) -> None:
    """What eager refuses is an error of the compiled function as well."""
    try:
        fused(*inputs)  # type: ignore[operator]
    except Exception:
        return
    raise Mismatch("raises", f"eager raises {error}, the fused function does not")
