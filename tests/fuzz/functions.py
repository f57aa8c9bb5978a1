"""Random functions of tensors, forward and backward, against float64 eager mode."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from tests.fuzz.backend import GraphBackend, reset
from tests.fuzz.function_generator import Function, Generator, compiled, fits, make_inputs, namespace
from tests.fuzz.function_shrink import smaller_functions
from tests.fuzz.memory import overlaps
from tests.fuzz.outcome import Mismatch, Outcome, check_close
from weft.integration.fuse import fuse
from weft.runtime.counters import counters

How = Literal["fuse", "compiled", "evaluated"]
FUSE_EVERY = 25
"""One case in so many goes through TorchInductor, which takes seconds."""
DISTURBANCES = 2
WITHOUT: dict[How, str] = {
    "fuse": "inductor",
    "compiled": "aot_eager_decomp_partition",
    "evaluated": "aot_eager_decomp_partition",
}
"""What compiles a function in the same way without weft: a wrong result with the same bits is not weft's."""


@dataclass(frozen=True)
class Case:
    """how: through ``weft.fuse`` as users call it; else through the graph backend, with plans drawn from the seed, its
    kernels compiled or their programs evaluated."""

    seed: int
    function: Function
    how: How


def make(seed: int) -> Case:
    return Case(seed, Generator(seed).run(), how_of(seed))


def how_of(seed: int) -> How:
    return "fuse" if seed % FUSE_EVERY == 0 else "compiled" if seed % 4 == 1 else "evaluated"


def describe(case: Case) -> str:
    gradients = " with gradients" if case.function.gradients else ""
    return f"# seed {case.seed}, {case.how}{gradients}\n{case.function.inputs_source()}\n{case.function.source()}"


def check(case: Case) -> Outcome:
    """Raise Mismatch, or whatever weft raises, if forward or backward go wrong."""
    reset()
    function = case.function
    if not function.outputs:
        return Outcome(0, 0)
    native = compiled(function.source(), reference=False)
    reference = compiled(function.source(), reference=True)
    inputs = make_inputs(function, case.seed)
    wanted = [function.gradients and has_gradient(t) for t in inputs]
    try:
        theirs = evaluate(native, inputs, wanted, case.seed)
        exact = evaluate(reference, [_double(t) for t in inputs], wanted, case.seed)
    except RuntimeError:  # an in-place operation on what the backward needs
        if not any(wanted):
            raise
        wanted = [False] * len(inputs)
        theirs = evaluate(native, inputs, wanted, case.seed)
        exact = evaluate(reference, [_double(t) for t in inputs], wanted, case.seed)
    unit = _unit(function, inputs)
    disturbed = [
        evaluate(reference, _disturb(inputs, unit, number), wanted, case.seed) for number in range(DISTURBANCES)
    ]
    counters.reset()
    backend = GraphBackend(case.seed, native=case.how == "compiled")
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="weft:.*")
        if case.how == "fuse":
            fused = fuse(native)
        else:
            fused = torch.compile(native, backend=backend, fullgraph=True, dynamic=False)
        mine = evaluate(fused, inputs, wanted, case.seed)
    torchs: dict[str, Tensor] | None = None
    wrong_without = 0
    for name, value in mine.items():
        try:
            _compare(name, value, theirs[name], exact[name], [other[name] for other in disturbed])
        except Mismatch:
            if torchs is None:
                reset()
                alone = torch.compile(native, backend=WITHOUT[case.how], fullgraph=True, dynamic=False)
                torchs = evaluate(alone, inputs, wanted, case.seed)
            if not _same_bits(value, torchs[name]):
                raise
            wrong_without += 1
    return Outcome(counters.kernels if case.how == "fuse" else backend.kernels, len(mine), wrong_without)


def _compare(name: str, value: Tensor, eager: Tensor, accurate: Tensor, disturbed: Sequence[Tensor]) -> None:
    """Raise Mismatch if a result has another type than in eager mode, or another value than rounding explains."""
    if (value.shape, value.dtype) != (eager.shape, eager.dtype):
        raise Mismatch("type", f"{name} is {value.dtype}{list(value.shape)}, eager {eager.dtype}{list(eager.shape)}")
    if not eager.is_floating_point() and not all(torch.equal(other, accurate) for other in (eager, *disturbed)):
        return  # rounding decides
    if eager.is_floating_point() and not (eager.isfinite().all() and accurate.isfinite().all()):
        return
    check_close(name, value, accurate, eager, disturbed)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    return (
        (a.shape, a.dtype) == (b.shape, b.dtype)
        and torch.equal(a.isnan(), b.isnan())
        and torch.equal(a.nan_to_num(), b.nan_to_num())
    )


def has_gradient(t: Tensor) -> bool:
    """Whether a gradient of an input can lie as the input does: no element of it shares memory with another."""
    return t.is_floating_point() and not overlaps(list(t.shape), list(t.stride()))


def evaluate(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor], wanted: Sequence[bool], seed: int
) -> dict[str, Tensor]:
    """Results by name and gradients of the inputs that want them, for random gradients of the results."""
    given = [t.detach().requires_grad_(wants) for t, wants in zip(inputs, wanted, strict=True)]
    outputs = function(*given)
    found = {f"output {i}": t.detach().clone() for i, t in enumerate(outputs)}
    wanting = [t for t in given if t.requires_grad]
    roots = [(i, t) for i, t in enumerate(outputs) if t.requires_grad]
    if wanting and roots:
        generator = torch.Generator().manual_seed(seed)
        along = {i: torch.randn(t.shape, generator=generator, dtype=torch.float64) for i, t in enumerate(outputs)}
        grads = torch.autograd.grad(
            [t for _, t in roots],
            wanting,
            [along[i].to(torch.bfloat16).to(t.dtype) for i, t in roots],
            allow_unused=True,
        )
        names = [f"gradient of x{i}" for i, t in enumerate(given) if t.requires_grad]
        found |= {name: g for name, g in zip(names, grads, strict=True) if g is not None}
    return found


def _double(t: Tensor) -> Tensor:
    return t.double() if t.is_floating_point() else t.clone()


def _unit(function: Function, inputs: Sequence[Tensor]) -> float:
    """The coarsest rounding in the function."""
    text = function.source()
    dtypes = [t.dtype for t in inputs if t.is_floating_point()]
    dtypes += [
        d for name, d in (("f32", torch.float32), ("bf16", torch.bfloat16), ("f16", torch.float16)) if name in text
    ]
    return max((torch.finfo(d).eps for d in dtypes), default=torch.finfo(torch.float32).eps)


def _disturb(inputs: Sequence[Tensor], unit: float, number: int) -> list[Tensor]:
    """Inputs off by a rounding error: how far the results move says how well-conditioned they are."""
    generator = torch.Generator().manual_seed(number)
    found: list[Tensor] = []
    for t in map(_double, inputs):
        noise = 2 * torch.rand(t.shape, generator=generator, dtype=torch.float64) - 1
        found.append(t * (1 + unit * noise) if t.is_floating_point() else t)
    return found


# smaller cases


def is_valid(case: Case) -> bool:
    """Whether the function runs in eager mode and all its values are fit to be compared."""
    native, exact = namespace(False, case.seed), namespace(True, case.seed)
    try:
        for statement in case.function.inputs:
            native[statement.target] = eval(statement.text, native)
            exact[statement.target] = _double(native[statement.target])
        for statement in case.function.body:
            for env in (native, exact):
                env[statement.target] = eval(statement.text, env)
            if not fits(native[statement.target], exact[statement.target]):
                return False
    except (RuntimeError, IndexError, ValueError, TypeError, NameError):
        return False
    return bool(case.function.outputs)


def smaller(case: Case) -> Iterator[Case]:
    """Cases with less in them, the largest steps first."""
    if case.how != "evaluated":
        yield replace(case, how="evaluated")
    if case.how == "fuse":
        yield replace(case, how="compiled")
    for function in smaller_functions(case.function, case.seed):
        yield replace(case, function=function)


def script(case: Case, error: str) -> str:
    """A Python file that shows the failure without this package."""
    comment = "\n".join(f"# {line}" for line in error.splitlines()[:12])
    function = case.function
    names = ", ".join(i.target for i in function.inputs)
    made = zip(function.inputs, make_inputs(function, case.seed), strict=True)
    wants = [i.target for i, t in made if function.gradients and has_gradient(t)]
    return f"""{comment}
import torch
import torch.nn.functional as F

import weft

f64, f32, bf16, f16 = torch.float64, torch.float32, torch.bfloat16, torch.float16
generator = torch.Generator().manual_seed({case.seed})


def draw(*shape):
    return torch.randn(shape, generator=generator, dtype=f64).clamp(-3, 3)


def integers(low, high, *shape):
    return torch.randint(low, high, shape, generator=generator)


{function.source()}

{function.inputs_source()}
inputs = [{names}]
wanting = [t.detach().requires_grad_() for t in ({"".join(f"{n}, " for n in wants)})]
given = dict(zip({wants!r}, wanting))
inputs = [given.get(name, t) for name, t in zip({[i.target for i in function.inputs]!r}, inputs)]
eager, mine = function(*inputs), weft.fuse(function)(*inputs)
for theirs, ours in zip(eager, mine):
    print(theirs.dtype, tuple(theirs.shape), "largest difference", (theirs.double() - ours.double()).abs().max().item())
if wanting:
    for name, results in (("eager", eager), ("weft", mine)):
        roots = [t for t in results if t.requires_grad]
        along = [torch.ones_like(t) for t in roots]
        gradients = torch.autograd.grad(roots, wanting, along, allow_unused=True)
        print(name, [None if g is None else g.double().sum().item() for g in gradients])
print(weft.last_reports()[-1].text())
"""
