"""Random small modules, forward and backward, against float64 eager mode."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.fuzz.backend import GraphBackend, reset
from tests.fuzz.outcome import Mismatch, Outcome, check_close
from weft.runtime.counters import counters

COMPILE_EVERY = 20
"""One case in so many goes through ``torch.compile(backend="weft")``, which takes seconds a graph."""


@dataclass(frozen=True)
class Piece:
    """Lines of ``__init__`` and of ``forward``, which changes ``h [B, T, D]`` and keeps its shape. {i}: a number of its
    own, {d}: D, {t}: T, {e}: twice D, {k}: D / 4, {n}: the name of an input of the piece."""

    init: tuple[str, ...]
    forward: tuple[str, ...]


NORMS = {
    "layer_norm": "nn.LayerNorm({d})",
    "layer_norm_plain": "nn.LayerNorm({d}, elementwise_affine=False)",
    "layer_norm_no_bias": "nn.LayerNorm({d}, bias=False)",
    "rms_norm": "nn.RMSNorm({d})",
    "rms_norm_plain": "nn.RMSNorm({d}, elementwise_affine=False)",
    "identity": "nn.Identity()",
}

PIECES: dict[str, Piece] = {
    "norm": Piece(("self.n{i} = {norm}",), ("h = self.n{i}(h)",)),
    "linear": Piece(("self.l{i} = nn.Linear({d}, {d})",), ("h = self.l{i}(h)",)),
    "mlp": Piece(
        ("self.n{i} = {norm}", "self.a{i} = nn.Linear({d}, {e})", "self.b{i} = nn.Linear({e}, {d})"),
        ("h = h + self.b{i}({act}(self.a{i}(self.n{i}(h))))",),
    ),
    "gated": Piece(
        ("self.n{i} = {norm}", "self.a{i} = nn.Linear({d}, {e}, bias=False)", "self.b{i} = nn.Linear({d}, {d})"),
        ("u, v = self.a{i}(self.n{i}(h)).chunk(2, -1)", "h = h + self.b{i}({act}(u) * v)"),
    ),
    "attention": Piece(
        ("self.n{i} = {norm}", "self.q{i} = nn.Linear({d}, 3 * {d})", "self.o{i} = nn.Linear({d}, {d})"),
        (
            "q, k, v = self.q{i}(self.n{i}(h)).view(h.shape[0], {t}, 3, 4, {k}).permute(2, 0, 3, 1, 4).unbind(0)",
            "q, k = F.rms_norm(q, ({k},)), F.rms_norm(k, ({k},))",
            "w = torch.softmax(q @ k.transpose(-1, -2) * {k} ** -0.5, -1)",
            "h = h + self.o{i}((w @ v).transpose(1, 2).reshape(h.shape[0], {t}, {d}))",
        ),
    ),
    "scale": Piece(("self.s{i} = nn.Parameter(torch.randn({d}))",), ("h = h * self.s{i}",)),
    "bias": Piece(("self.p{i} = nn.Parameter(torch.randn({t}, {d}) * 0.2)",), ("h = h + self.p{i}",)),
    "residual_mix": Piece(
        ("self.m{i} = nn.Parameter(torch.rand(2, {d}))", "self.n{i} = {norm}"),
        ("h = self.m{i}[0] * h + self.m{i}[1] * self.n{i}(x)",),
    ),
    "modulated": Piece(
        ("self.c{i} = nn.Linear({d}, 3 * {d})", "self.l{i} = nn.Linear({d}, {d})"),
        (
            "shift, scale, gate = self.c{i}(x.mean(1, keepdim=True)).chunk(3, -1)",
            "h = h + self.l{i}(F.layer_norm(h, ({d},)) * (1 + scale) + shift) * gate",
        ),
    ),
    "table": Piece(
        ("self.t{i} = nn.Parameter(torch.randn(1, 3, {d}) * 0.3)",),
        (
            "shift, scale, gate = (self.t{i} + x.mean((0, 1))).chunk(3, 1)",
            "h = h + torch.tanh(F.layer_norm(h, ({d},)) * (1 + scale) + shift) * gate",
        ),
    ),
    "batch_norm": Piece(("self.b{i} = nn.BatchNorm1d({d})",), ("h = self.b{i}(h.transpose(1, 2)).transpose(1, 2)",)),
    "group_norm": Piece(("self.g{i} = nn.GroupNorm(4, {d})",), ("h = self.g{i}(h.transpose(1, 2)).transpose(1, 2)",)),
    "row_softmax": Piece((), ("h = torch.softmax(h, {axis}) * 3 + h",)),
    "squeeze_excite": Piece(
        ("self.e{i} = nn.Linear({d}, {d})",), ("h = h * torch.sigmoid(self.e{i}(h.mean(1))).unsqueeze(1)",)
    ),
    "activation": Piece((), ("h = {act}(h)",)),
    "positions": Piece(("self.w{i} = nn.Linear({t}, {t})",), ("h = h + self.w{i}(h.mT).mT",)),
    "slices": Piece(
        (), ("a, b = h.chunk(2, -1)", "h = torch.cat([a * torch.sigmoid(b), b - b.mean(-1, keepdim=True)], -1)")
    ),
    "mask": Piece((), ("h = torch.where(mask[..., None], h, -0.5 * h)",)),
    "standardise": Piece((), ("h = (h - h.mean({axis}, keepdim=True)) / (h.var({axis}, keepdim=True) + 0.1).sqrt()",)),
}  # fmt: skip

ENDS = {
    "all": (("",), ("return h",)),
    "mean": ((), ("return h.mean(1), h.square().mean()",)),
    "loss": (
        ("self.head = nn.Linear({d}, 11)",),
        ("return F.cross_entropy(self.head(h).reshape(-1, 11), target.reshape(-1))",),
    ),
    "columns": ((), ("return h, h.sum((0, 1)), h.amax(-1)",)),
    "probabilities": ((), ("return torch.log_softmax(h, -1).gather(-1, target[..., None])",)),
}
ACTIVATIONS = ("F.gelu", "F.silu", "F.relu", "torch.tanh", "torch.sigmoid", "F.softplus")


@dataclass(frozen=True)
class Case:
    """pieces: (name, choices) in order. how: ``compile`` as users do, else through the graph backend with its kernels
    compiled or their programs evaluated. other: a second batch that the same code must serve; 0 for a static batch."""

    seed: int
    shape: tuple[int, int, int]
    pieces: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    end: str
    how: str
    autocast: bool
    other: int


def make(seed: int) -> Case:
    draw = random.Random(seed)
    width = draw.choice((8, 16, 40, 48, 64, 100))
    shape = (draw.choice((2, 3, 4)), draw.choice((3, 8, 17, 32)), width)
    pieces = []
    for _ in range(draw.randint(1, 4)):
        name = draw.choice(list(PIECES))
        choices = (("norm", draw.choice(list(NORMS.values()))), ("act", draw.choice(ACTIVATIONS)))
        pieces.append((name, (*choices, ("axis", draw.choice(("-1", "1"))))))
    how = "compile" if seed % COMPILE_EVERY == 0 else "compiled" if seed % 4 == 1 else "evaluated"
    other = draw.choice((5, 7)) if draw.random() < 0.25 else 0
    return Case(seed, shape, tuple(pieces), draw.choice(list(ENDS)), how, draw.random() < 0.2, other)


def source(case: Case) -> str:
    _, t, d = case.shape
    numbers = {"d": str(d), "t": str(t), "e": str(2 * d), "k": str(d // 4)}
    init, forward = [], []
    for i, (name, choices) in enumerate(case.pieces):
        named = numbers | {"i": str(i)} | dict(choices)
        named["norm"] = named["norm"].format(**numbers)
        init += [line.format(**named) for line in PIECES[name].init]
        forward += [line.format(**named) for line in PIECES[name].forward]
    more, last = ENDS[case.end]
    init += [line.format(**numbers) for line in more if line]
    forward += last
    return "\n".join(
        [
            "class Net(nn.Module):",
            "    def __init__(self):",
            "        super().__init__()",
            *(f"        {line}" for line in init),
            "",
            "    def forward(self, x, mask, target):",
            "        h = x",
            *(f"        {line}" for line in forward),
            "",
        ]
    )


def describe(case: Case) -> str:
    autocast = ", autocast" if case.autocast else ""
    batch = f", then batch {case.other}" if case.other else ""
    return f"# seed {case.seed}, {case.how}, x {list(case.shape)}{batch}{autocast}\n{source(case)}"


def build(case: Case) -> nn.Module:
    found: dict[str, Any] = {"torch": torch, "nn": nn, "F": F}
    exec(compile(source(case), "<fuzz>", "exec"), found)
    torch.manual_seed(case.seed)
    module = found["Net"]()
    for parameter in module.parameters():  # ones and zeros would hide mistakes
        parameter.data += 0.1 * torch.randn_like(parameter)
    return module


def inputs_of(case: Case, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(case.seed + batch)
    _, t, d = case.shape
    x = torch.randn(batch, t, d, generator=generator)
    mask = torch.rand(batch, t, generator=generator) > 0.3
    return x, mask, torch.randint(0, min(d, 11), (batch, t), generator=generator)


def check(case: Case) -> Outcome:
    """Raise Mismatch, or whatever weft raises, if forward or backward go wrong."""
    reset()
    counters.reset()
    module = build(case)
    backend = GraphBackend(case.seed, native=case.how == "compiled")
    compared = 0
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="weft:.*")
        own = deepcopy(module)
        chosen: Any = "weft" if case.how == "compile" else backend
        compiled = torch.compile(own, backend=chosen, dynamic=True if case.other else None)
        eager = deepcopy(module)  # buffers of statistics move on from batch to batch
        double = deepcopy(module).double()
        unit = 2.0**-8 if case.autocast else 2.0**-23
        moved = [_disturb(deepcopy(module).double(), unit, number) for number in range(2)]
        for batch in (case.shape[0], *([case.other] if case.other else [])):
            x, mask, target = inputs_of(case, batch)
            precise = replace(case, autocast=False)
            near = x.double() * (1 + unit * torch.randn(x.shape).double())
            mine = evaluate(compiled, own, x, mask, target, case)
            theirs = evaluate(eager, eager, x, mask, target, case)
            exact = evaluate(double, double, x.double(), mask, target, precise)
            disturbed = [evaluate(m, m, near, mask, target, precise) for m in moved]
            for name, value in mine.items():
                if (value.shape, value.dtype) != (theirs[name].shape, theirs[name].dtype):
                    raise Mismatch("type", f"{name}: {value.dtype}{list(value.shape)}, eager {theirs[name].dtype}")
                if value.is_floating_point() and theirs[name].isfinite().all():
                    check_close(name, value, exact[name], theirs[name], [other[name] for other in disturbed])
            compared += len(mine)
    return Outcome(counters.kernels if case.how == "compile" else backend.kernels, compared)


def _disturb(module: nn.Module, unit: float, number: int) -> nn.Module:
    generator = torch.Generator().manual_seed(number)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = 2 * torch.rand(parameter.shape, generator=generator, dtype=torch.float64) - 1
            parameter *= 1 + unit * noise
    return module


def evaluate(call: Any, module: nn.Module, x: Tensor, mask: Tensor, target: Tensor, case: Case) -> dict[str, Tensor]:
    """Results, gradients of the input and the parameters, and the buffers afterwards, by name."""
    x = x.clone().requires_grad_()
    module.zero_grad()
    with torch.autocast("cpu", torch.bfloat16) if case.autocast else nullcontext():
        outputs = call(x, mask, target)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    generator = torch.Generator().manual_seed(case.seed)
    along = [torch.randn(t.shape, generator=generator).to(torch.bfloat16).to(t.dtype) for t in outputs]
    torch.autograd.backward(outputs, along)
    found = {f"output {i}": t.detach().clone() for i, t in enumerate(outputs)}
    found |= {"gradient of x": x.grad.clone()} if x.grad is not None else {}
    found |= {f"gradient of {n}": p.grad.clone() for n, p in module.named_parameters() if p.grad is not None}
    return found | {f"buffer {n}": b.detach().clone() for n, b in module.named_buffers()}


# smaller cases


def is_valid(case: Case) -> bool:
    return bool(case.pieces)


def smaller(case: Case) -> Iterator[Case]:
    for how in ("evaluated", "compiled"):
        if case.how not in ("evaluated", how):
            yield replace(case, how=how)
    if case.other:
        yield replace(case, other=0)
    if case.autocast:
        yield replace(case, autocast=False)
    for i in range(len(case.pieces)):
        yield replace(case, pieces=case.pieces[:i] + case.pieces[i + 1 :])
    if case.end != "all":
        yield replace(case, end="all")
    for axis, sizes in enumerate(((2,), (3, 8), (8, 16, 40))):
        for size in sizes:
            if size < case.shape[axis]:
                yield replace(case, shape=(*case.shape[:axis], size, *case.shape[axis + 1 :]))


def script(case: Case, error: str) -> str:
    """A Python file that shows the failure without this package."""
    comment = "\n".join(f"# {line}" for line in error.splitlines()[:12])
    b, t, d = case.shape
    batches = [b, case.other] if case.other else [b]
    return f"""{comment}
from contextlib import nullcontext
from copy import deepcopy

import torch
import torch.nn.functional as F
from torch import nn

import weft


{source(case)}

torch.manual_seed({case.seed})
module = Net()
for parameter in module.parameters():
    parameter.data += 0.1 * torch.randn_like(parameter)
compiled = torch.compile(module, backend="weft", dynamic={True if case.other else None})
for batch in {batches}:
    x, mask = torch.randn(batch, {t}, {d}), torch.rand(batch, {t}) > 0.3
    target = torch.randint(0, {min(d, 11)}, (batch, {t}))
    results = []
    for call in (compiled, deepcopy(module), deepcopy(module).double()):
        dtype = next(call.parameters()).dtype
        own = x.to(dtype).requires_grad_()
        module.zero_grad()
        with torch.autocast("cpu", torch.bfloat16) if {case.autocast} and dtype == torch.float32 else nullcontext():
            outputs = call(own, mask, target)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.autograd.backward(outputs, [torch.ones_like(t) for t in outputs])
        grads = {{name.removeprefix("_orig_mod."): p.grad for name, p in call.named_parameters() if p.grad is not None}}
        results.append([*outputs, own.grad, *grads.values()])
    for mine, theirs, exact in zip(*results):
        print("weft", (mine.double() - exact).abs().max().item(), "eager", (theirs.double() - exact).abs().max().item())
"""
