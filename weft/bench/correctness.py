"""Whether a candidate computes the function at all, asked before it is timed.

The reference is the function itself, eager, in float64 on the same inputs. As in PyTorch's own accuracy check, a
candidate's error is compared with that of eager PyTorch in the dtype of the data: its root mean square may be at most
twice eager's, three times for 16 bits and less, plus a unit in the last place; in float32, where eager adds up in pairs
and others need not, plus the 1e-5 that PyTorch's check allows. A root mean square over millions of elements hides a
lost row, so the largest error is held to the same rule.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from weft.bench.reason import Reason
from weft.runtime.timing import Candidate

WRONG = "wrong_result"
FACTOR, NARROW_FACTOR = 2.0, 3.0
LEAST_UNIT = 1e-5
PIECE = 2**26
"""Elements that are compared at a time: differences in float64 of outputs of several gigabytes would be too many."""
PATTERN = 85
"""What integers are filled with: 01010101 in binary."""


@dataclass(frozen=True)
class Reference:
    """Outputs of eager PyTorch: in float64 (others than floating-point ones in their own dtype), and in the dtype of
    the data."""

    exact: tuple[Tensor, ...]
    eager: tuple[Tensor, ...]


def reference(function: Callable[..., Any], inputs: Sequence[Tensor]) -> Reference:
    """Evaluates the function twice."""
    widened = copy.deepcopy(function).double() if isinstance(function, torch.nn.Module) else function
    with torch.no_grad():
        eager = tensors_of(function(*inputs))
        exact = tensors_of(widened(*tree_map_only(Tensor, _widen, tuple(inputs))))
    return Reference(tuple(t.double() if t.is_floating_point() else t for t in exact), eager)


def check_candidate(candidate: Candidate, inputs: Sequence[Tensor], expected: Reference) -> Reason | None:
    """Runs a candidate, with NaN in the memory that it writes, and compares what it computes."""
    poison(candidate, inputs, expected)
    candidate.prepare()
    returned = candidate.run()
    found = tensors_of(returned if candidate.outputs is None else candidate.outputs())
    if len(found) != len(expected.eager):
        message = f"{len(found)} outputs where the function has {len(expected.eager)}"
        return Reason(WRONG, candidate.name, message, len(found), len(expected.eager))
    for place, (mine, eager, exact) in enumerate(zip(found, expected.eager, expected.exact, strict=True)):
        if (refusal := check_output(f"{candidate.name}, output {place}", mine, eager, exact)) is not None:
            return refusal
    return None


def check_output(subject: str, mine: Tensor, eager: Tensor, exact: Tensor) -> Reason | None:
    """Compares one output. Where eager itself is not finite nothing is compared."""
    if (mine.dtype, mine.shape) != (eager.dtype, eager.shape):
        have, limit = (f"{t.dtype} {list(t.shape)}" for t in (mine, eager))
        return Reason(WRONG, subject, "not the dtype and shape that eager has", have, limit)
    if not mine.dtype.is_floating_point:
        different = int((mine != eager).sum())
        return Reason(WRONG, subject, "elements differ from eager's", different, 0) if different else None
    factor, unit = NARROW_FACTOR if mine.itemsize <= 2 else FACTOR, max(torch.finfo(mine.dtype).eps, LEAST_UNIT)
    error, allowed, right, undefined = _Size(), _Size(), _Size(), 0
    for pieces in zip(*(t.reshape(-1).split(PIECE) for t in (mine, eager, exact)), strict=True):
        widened = [piece.double() for piece in pieces]
        known = widened[1].isfinite() & widened[2].isfinite()
        one, other, true = (piece[known] for piece in widened)
        undefined += int((~one.isfinite()).sum())
        error.add(one - true)
        allowed.add(other - true)
        right.add(true)
    if undefined:
        return Reason(WRONG, subject, "elements are not finite, or were never written", undefined, 0)
    for size, message in (("rms", "root mean square of the error"), ("largest", "largest error")):
        have, most, whole = (getattr(each, size) for each in (error, allowed, right))
        if have > (limit := factor * most + unit * whole):
            return Reason(WRONG, subject, message, float(f"{have:.3g}"), float(f"{limit:.3g}"))
    return None


class _Size:
    """The root mean square, and the largest, of what is added to it piece by piece."""

    def __init__(self) -> None:
        self.count, self.squares, self.largest = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        if not values.numel():
            return
        self.count += values.numel()
        self.squares += values.square().sum().item()
        self.largest = max(self.largest, values.abs().max().item())

    @property
    def rms(self) -> float:
        return math.sqrt(self.squares / max(self.count, 1))


def poison(candidate: Candidate, inputs: Sequence[Tensor], expected: Reference) -> None:
    """Fill the memory that a candidate writes with NaN, or a pattern for integers; for one that allocates its outputs,
    the memory that it is most likely to be given. Memory of the inputs stays as it is."""
    kept = {t.untyped_storage().data_ptr() for t in inputs}
    for tensor in candidate.memory or [torch.empty_like(t) for t in expected.eager]:
        if tensor.untyped_storage().data_ptr() not in kept:
            tensor.fill_(poison_of(tensor.dtype))


def tensors_of(result: Any) -> tuple[Tensor, ...]:
    """All tensors of whatever a function returns."""
    return tuple(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))


def poison_of(dtype: torch.dtype) -> float | int | bool:
    if dtype == torch.bool:
        return True
    return float("nan") if dtype.is_floating_point else PATTERN


def _widen(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor
