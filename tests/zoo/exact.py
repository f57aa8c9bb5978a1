"""Models evaluated in float64 throughout, whatever they convert to on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

Gradients = dict[str, Tensor]
"""By the parameter's name; those without a gradient are not there."""
_NARROWER = (torch.float32, torch.bfloat16, torch.float16)
_CONVERSIONS = {Tensor.float, Tensor.half, Tensor.bfloat16}


class InDouble(TorchFunctionMode):
    """Whatever asks for a narrower float gets float64: norms and losses of models convert to float32 by themselves."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Iterable[type], args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _CONVERSIONS:
            return args[0].double()
        if func is torch._grouped_mm:
            return grouped_mm(*args, offs=dict(kwargs or {})["offs"])
        return func(*tree_map(_widened, args), **tree_map(_widened, dict(kwargs or {})))


def grouped_mm(tokens: Tensor, weights: Tensor, *, offs: Tensor) -> Tensor:
    """What ``torch.nn.functional.grouped_mm`` computes, which has no float64. tokens: [T, K], in groups that end at the
    offsets, int32 [E]; weights: [E, K, N], one a group; the result is [T, N]."""
    ends = offs.tolist()
    return torch.cat([tokens[start:end] @ w for start, end, w in zip([0, *ends], ends, weights, strict=False)])


def _widened(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in _NARROWER else value


def exact_gradients(model: nn.Module, batch: Iterable[Tensor]) -> tuple[float, Gradients]:
    """The loss and the gradients in float64; ``model`` becomes a float64 one."""
    model = model.double()
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with InDouble():
            loss = model(*(t.double() if t.is_floating_point() else t for t in batch))
            loss.backward()
    finally:
        torch.set_default_dtype(default)
    return loss.item(), gradients_of(model)


def gradients_of(model: nn.Module) -> Gradients:
    """What a backward left in the parameters."""
    return {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
