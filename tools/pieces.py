"""Pieces of models on a GPU, forward and backward: ``python -m tools.pieces --json FILE``.

Queries are normed head by head, turned by their positions and laid out for attention; logits are shifted by a token
and become a cross-entropy. Each piece is compiled by weft and by TorchInductor, and their kernels are timed in turn
with a copy of the bytes that have to be moved, the level-two cache flushed before each; results are compared with
float64. The fraction of a copy is the time of the copy over that of all kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from tools.arguments import require_gpu
from weft.bench.machine import machine, versions
from weft.options import Options
from weft.runtime.timing import medians_us

BACKENDS = ("inductor", "weft")
FACTOR = 3.0
"""Of eager PyTorch's distance from float64, which weft's may be: PyTorch's own rule for types of 16 bits."""
DEVICE = "cuda"
EPS = 1e-6
"""Added to the mean square of a head."""
BASE = 10000.0
"""Of the angles by which positions turn heads: the first pair of elements by one radian a position, the last by almost
1 / BASE of it (Su et al., RoFormer, arXiv 2104.09864)."""


def query_norm(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads ``[B, T, H, D]`` from ``x [B, T, H * D]``, normed with ``weight [D]`` and turned by ``cos`` and ``sin``,
    both ``[T, D]``, as Qwen 3 has them: halves of a head are the pairs that are turned. Attention would read them as
    ``[B, H, T, D]``; they are transposed once more, since torch 2.11 copies the gradient of a result whose strides are
    not in the order of its dimensions, which happens nowhere inside of a model."""
    heads = x.unflatten(-1, (-1, weight.shape[0]))
    wide = heads.to(torch.promote_types(x.dtype, torch.float32))
    normed = weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)).to(x.dtype)
    normed = normed.transpose(1, 2)
    first, second = normed.chunk(2, -1)
    return (normed * cos + torch.cat((-second, first), -1) * sin).to(x.dtype).transpose(1, 2)


def shifted_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The cross-entropy of each position's ``logits [B, T, V]`` with the next one's of ``labels [B, T]``."""
    wide = logits[:, :-1].to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, 1), labels[:, 1:].flatten())


@dataclass(frozen=True)
class Piece:
    """function: of ``inputs``, of which those that ``learned`` counts have gradients. gradient: of the result, or None
    for one. moved: tensors as large as the first input that the forward and the backward have to read or write."""

    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    learned: tuple[int, ...]
    gradient: Tensor | None
    moved: tuple[int, int]


def pieces(batch: int, sequence: int, heads: int, width: int, vocabulary: int, device: str) -> dict[str, Piece]:
    """Both, in bfloat16 with float32 weights and angles. width: of a head."""
    draw = torch.Generator(device).manual_seed(0)

    def normal(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(size, generator=draw, device=device).to(dtype)

    steps = BASE ** (-torch.arange(0, width, 2, device=device) / width)
    angles = (torch.arange(sequence, device=device)[:, None] * steps).repeat(1, 2)
    weight = 1 + normal(width, dtype=torch.float32) / 4
    queries = (normal(batch, sequence, heads * width), weight, angles.cos(), angles.sin())
    gradient = normal(batch, sequence, heads, width)
    labels = torch.randint(vocabulary, (batch, sequence), generator=draw, device=device)
    return {
        "query_norm": Piece(query_norm, queries, (0, 1), gradient, (2, 3)),
        "shifted_loss": Piece(shifted_loss, (normal(batch, sequence, vocabulary), labels), (0,), None, (1, 2)),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Time, print, and write if asked to. The exit status is 1 if a result is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tools.pieces", description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--width", type=int, default=128, help="of a head")
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    require_gpu(parser)
    sizes = (given.batch, given.sequence, given.heads, given.width, given.vocabulary)
    found = {name: measured(piece, given.rounds) for name, piece in pieces(*sizes, DEVICE).items()}
    Console().print(table(found))
    if given.json is not None:
        record = {"command": " ".join(sys.argv), "machine": machine(DEVICE), "versions": versions(Options.read())}
        given.json.write_text(json.dumps(record | {"pieces": found}, indent=1) + "\n")
    return 1 if any(each["wrong"] for each in found.values()) else 0


def measured(piece: Piece, rounds: int) -> dict[str, Any]:
    """Microseconds of the forward and of the backward, by who computes it, and what is wrong with weft's results."""
    results = {name: trained(torch.compile(piece.function, backend=name), piece.inputs, piece) for name in BACKENDS}
    wrong = wrong_of(piece, results["weft"].tensors)
    runs: dict[tuple[str, str], Callable[[], Any]] = {}
    nbytes = piece.inputs[0].nbytes
    for way, count in zip(("forward", "backward"), piece.moved, strict=True):
        source = torch.randn(count * nbytes // 4, device=DEVICE).to(torch.bfloat16)
        target = torch.empty_like(source)
        runs["copy", way] = lambda source=source, target=target: target.copy_(source)
        runs |= {(name, way): results[name].runs[way] for name in BACKENDS}
    times = medians_us([*runs.values()], rounds, torch.device(DEVICE))
    found: dict[str, Any] = {name: {} for name in ("copy", *BACKENDS)}
    for (name, way), each in zip(runs, times, strict=True):
        found[name][way] = round(each, 2)
    return found | {"wrong": wrong}


@dataclass(frozen=True)
class Trained:
    """The result and the gradients of a piece, and what makes them again."""

    tensors: tuple[Tensor, ...]
    runs: dict[str, Callable[[], Any]]


def trained(function: Callable[..., Tensor], inputs: Sequence[Tensor], piece: Piece) -> Trained:
    leaves = [x.detach().requires_grad_() if i in piece.learned else x for i, x in enumerate(inputs)]
    learned = [leaves[i] for i in piece.learned]
    result = function(*leaves)
    gradient = torch.ones_like(result) if piece.gradient is None else piece.gradient.to(result.dtype)

    def backward() -> tuple[Tensor, ...]:
        return torch.autograd.grad(result, learned, gradient, retain_graph=True)

    return Trained((result.detach(), *backward()), {"forward": lambda: function(*leaves), "backward": backward})


def wrong_of(piece: Piece, found: Sequence[Tensor]) -> list[str]:
    """What is further from float64 than ``FACTOR`` times what eager PyTorch has, by norms, with room for a rounding."""
    wide = [x.double() if x.is_floating_point() else x for x in piece.inputs]
    exact, eager = (trained(piece.function, inputs, piece).tensors for inputs in (wide, piece.inputs))
    wrong: list[str] = []
    for place, (mine, theirs, value) in enumerate(zip(found, eager, exact, strict=True)):
        own, other = (float((each.double() - value).norm() / value.norm()) for each in (mine, theirs))
        if not own <= FACTOR * other + torch.finfo(mine.dtype).eps:
            wrong.append(f"result {place} is {own:.2g} from float64, eager PyTorch's {other:.2g}")
    return wrong


def table(found: dict[str, dict[str, Any]]) -> Table:
    """Times and ratios, one line for each piece and way and for both ways together."""
    shown = Table("piece", "", "copy, us", "TorchInductor", "weft", "of TorchInductor's", "of copy")
    for name, each in found.items():
        ways = {way: [each[who][way] for who in ("copy", *BACKENDS)] for way in ("forward", "backward")}
        ways["both"] = [sum(pair) for pair in zip(*ways.values(), strict=True)]
        for way, (copy, other, own) in ways.items():
            figures = [f"{each:.1f}" for each in (copy, other, own)]
            shown.add_row(name, way, *figures, f"{own / other:.3f}", f"{copy / own:.3f}")
        for text in each["wrong"]:
            shown.add_row(name, "wrong", text)
    return shown


if __name__ == "__main__":
    raise SystemExit(main())
