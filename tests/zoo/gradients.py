"""Gradients of a model compiled by weft against float64, measured by the errors of eager and of TorchInductor."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import weft
from tests.zoo.exact import Gradients, exact_gradients, gradients_of
from weft.errors import Refusal
from weft.integration.report import Report

FACTOR = 2.0
"""Of eager's error, as in PyTorch's own check of accuracy."""
EPSILONS = 1.0
"""Of the dtype, times the norm of the gradient: where eager rounds less than once, by luck or since a sum is short."""
SHORT = 4
"""Elements of a gradient whose error is one draw of what rounding may do, eager's as well: over ten batches of CLIP's
eager's error of the one logit scale was 2e-8 to 9e-7. Such a gradient that is beyond the rule is compared over further
batches, as one vector of all of them."""
RIGHTLY = ("unsupported_op", "no_reduction", "not_worthwhile", "interrupted")
"""Rules by which a graph may be left whole; of a model that is one graph both ends have a region."""
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Error:
    """Norms of a parameter's gradient less float64's, over float64's norm. excess: weft's over what is allowed."""

    parameter: str
    weft: float
    eager: float
    inductor: float | None
    excess: float


@dataclass(frozen=True)
class Compared:
    """What a comparison found. worst: of all parameters; wrong: those beyond the rule, and all else that is wrong.
    graphs: handed to weft; left_whole: those of them with reductions and without a region."""

    dtype: str
    parameters: int
    worst: Error | None
    wrong: list[str]
    graphs: int
    left_whole: int
    regions: int
    kernels: int
    launches: int
    fallbacks: int
    refusals: dict[str, int] = field(default_factory=dict[str, int])

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    make: Callable[[], nn.Module],
    batch: Sequence[Tensor],
    dtype: str,
    device: str,
    *,
    fullgraph: bool = True,
    further: Iterable[Sequence[Tensor]] = (),
) -> Compared:
    """Gradients of every parameter of what ``make`` makes, the same weights each time.

    dtype: "f32", or "bf16" for autocast with weights in float32. TorchInductor is asked only where weft's errors are
    beyond twice eager's: what it does is allowed too. further: batches for gradients that are short.
    """
    torch._dynamo.reset()
    weft.clear_reports()
    weft.counters.reset()
    batch = [t.to(device) for t in batch]
    model = make().to(device).train()
    exact = exact_gradients(copy.deepcopy(model), batch)[1]
    eager = Differentiated(model, dtype, device)(batch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mine = Differentiated(model, dtype, device, "weft", fullgraph)(batch)
    wrong = [str(w.message) for w in caught if "weft" in str(w.message)]
    if mine.keys() != exact.keys():
        wrong.append(f"other parameters have gradients: {sorted(mine.keys() ^ exact.keys())}")
        return _result(dtype, [], wrong, fullgraph)
    inductor: Gradients | None = None
    if any(excess_of(mine[name], eager[name], None, exact[name], dtype) > 1 for name in exact):
        torch._dynamo.reset()
        inductor = Differentiated(model, dtype, device, "inductor")(batch)
    errors = [
        error_of(name, mine[name], eager[name], None if inductor is None else inductor[name], exact[name], dtype)
        for name in exact
    ]
    short = [e.parameter for e in errors if not e.excess <= 1 and exact[e.parameter].numel() <= SHORT]
    batches = [batch, *([t.to(device) for t in each] for each in further)] if short else []
    if len(batches) > 1:
        again = _over(batches, model, short, dtype, device)
        errors = [again.get(error.parameter, error) for error in errors]
    wrong += [f"{e.parameter}: {e.weft:.3g} from float64, eager {e.eager:.3g}" for e in errors if not e.excess <= 1]
    return _result(dtype, errors, wrong, fullgraph)


def excess_of(mine: Tensor, eager: Tensor, inductor: Tensor | None, exact: Tensor, dtype: str) -> float:
    """The error of ``mine`` over what is allowed; more than one is wrong, and so is what is not a number."""
    allowed = FACTOR * _norm(eager, exact) + EPSILONS * torch.finfo(DTYPES[dtype]).eps * exact.norm().item()
    if inductor is not None:
        allowed = max(allowed, _norm(inductor, exact))
    error = _norm(mine, exact)
    return error / allowed if allowed else float(error > 0) * float("inf") if error else 0.0


def error_of(name: str, mine: Tensor, eager: Tensor, inductor: Tensor | None, exact: Tensor, dtype: str) -> Error:
    """Relative errors; of a gradient that is zero they are the errors themselves."""
    norm = exact.norm().item() or 1.0
    other = None if inductor is None else _norm(inductor, exact) / norm
    excess = excess_of(mine, eager, inductor, exact, dtype)
    return Error(name, _norm(mine, exact) / norm, _norm(eager, exact) / norm, other, excess)


class Differentiated:
    """A copy of a model that is run by a backend: called with a batch it says the gradients."""

    def __init__(
        self, model: nn.Module, dtype: str, device: str, backend: str = "eager", fullgraph: bool = False
    ) -> None:
        self._model, self._dtype, self._device = copy.deepcopy(model), dtype, device
        self._run: Callable[..., Any] = self._model
        if backend != "eager":
            self._run = torch.compile(self._model, backend=backend, fullgraph=fullgraph)

    def __call__(self, batch: Sequence[Tensor]) -> Gradients:
        self._model.zero_grad()
        # which algorithm cuDNN chooses for a convolution, one that rounds to tf32 or not, depends on how its neighbours
        # lie in memory
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
            with torch.autocast(self._device, torch.bfloat16, enabled=self._dtype == "bf16"):
                loss = self._run(*batch)
            loss.backward()
        return gradients_of(self._model)


def _over(
    batches: Sequence[Sequence[Tensor]], model: nn.Module, names: Sequence[str], dtype: str, device: str
) -> dict[str, Error]:
    """Errors of some gradients, each over all batches."""
    found = [[exact_gradients(copy.deepcopy(model), batch)[1] for batch in batches]]
    for backend in ("eager", "weft", "inductor"):
        torch._dynamo.reset()
        found.append(list(map(Differentiated(model, dtype, device, backend), batches)))
    joined = [{name: torch.cat([each[name].flatten() for each in own]) for name in names} for own in found]
    exact, eager, mine, inductor = joined
    return {n: error_of(n, mine[n], eager[n], inductor[n], exact[n], dtype) for n in names}


def _norm(one: Tensor, exact: Tensor) -> float:
    return (one.double() - exact).norm().item()


def _result(dtype: str, errors: Sequence[Error], wrong: Sequence[str], fullgraph: bool) -> Compared:
    reports, counted = [each for each in weft.last_reports() if isinstance(each, Report)], weft.counters
    found = list(wrong)
    if counted.fallbacks:
        found.append(f"{counted.fallbacks} calls ran on ATen")
    refusals = [refusal for report in reports for refusal in report.refusals]
    found += [str(refusal) for refusal in refusals if refusal.rule == "internal_error"]
    whole = sum(is_left_whole(report.regions, report.refusals) for report in reports)
    if whole:
        found.append(f"{whole} graphs are left whole")
    if fullgraph and not all(report.regions for report in reports):
        found.append("the forward or the backward has no region")
    if not counted.launches:
        found.append("weft launched no kernel")
    return Compared(
        dtype=dtype,
        parameters=len(errors),
        worst=max(errors, key=lambda error: error.excess, default=None),
        wrong=found,
        graphs=counted.pass_calls,
        left_whole=whole,
        regions=counted.regions,
        kernels=counted.kernels,
        launches=counted.launches,
        fallbacks=counted.fallbacks,
        refusals=dict(counted.refusals),
    )


def is_left_whole(regions: Sequence[object], refusals: Sequence[Refusal]) -> bool:
    """Whether of a graph nothing was taken for another reason than that it has nothing for weft, or is not worth it."""
    return not regions and any(refusal.rule not in RIGHTLY for refusal in refusals)
