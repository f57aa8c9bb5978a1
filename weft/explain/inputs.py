"""What a function is explained with: tensors, and the types of tensors as text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import torch

from weft.ir.dtypes import FLOATS, TORCH_DTYPES

LARGEST_BYTES = 8 * 2**30
_TYPE = re.compile(r"(\w+)\[((?:\d+(?:,\d+)*)?)\]")


def parse_type(text: str) -> tuple[str, tuple[int, ...]]:
    """``bf16[8192,4096]``: a dtype's short name and sizes. Raises ValueError."""
    match = _TYPE.fullmatch(text.replace(" ", ""))
    if match is None:
        raise ValueError(f"a type is written bf16[8192,4096], or f32[] for a scalar, not {text!r}")
    if match[1] not in TORCH_DTYPES:
        raise ValueError(f"unknown dtype {match[1]!r} in {text!r}; one of {', '.join(TORCH_DTYPES)}")
    return match[1], tuple(int(size) for size in match[2].split(",") if size)


def make_tensor(text: str, device: str | torch.device = "cpu", grad: bool = False) -> torch.Tensor:
    """A tensor of a type: normal numbers, which need a gradient on request; zeros for integers, which are valid
    indices. Raises ValueError."""
    dtype, sizes = parse_type(text)
    kind = TORCH_DTYPES[dtype]
    if prod(sizes) * kind.itemsize > LARGEST_BYTES:
        raise ValueError(f"{text} is more than {LARGEST_BYTES >> 30} GiB")
    if dtype not in FLOATS:
        return torch.zeros(sizes, dtype=kind, device=device)
    made = torch.randn(sizes, device=device).to(kind)
    return made.requires_grad_() if grad else made


def device_of(inputs: Sequence[Any], keywords: Mapping[str, Any]) -> torch.device:
    """Of the first tensor; a CPU if there is none."""
    found = [value.device for value in (*inputs, *keywords.values()) if isinstance(value, torch.Tensor)]
    return found[0] if found else torch.device("cpu")


def with_tensors(inputs: Sequence[Any], keywords: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """With a tensor, beside the others, for every text that is written like a type; all else is as it was. Raises
    ValueError for a type that there is not."""
    device = device_of(inputs, keywords)

    def made(value: Any) -> Any:
        typed = isinstance(value, str) and _TYPE.fullmatch(value.replace(" ", "")) is not None
        return make_tensor(value, device) if typed else value

    return tuple(map(made, inputs)), {name: made(value) for name, value in keywords.items()}
