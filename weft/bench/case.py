"""What one row of a benchmark is about: a function, and the tensors to call it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from weft.bench.inputs import Shape
from weft.bench.workloads import Workload
from weft.ir.dtypes import NAMES


@dataclass(frozen=True)
class Case:
    """shape: as it is shown; columns: the last size of the data; dtype: of the data, its short name. dynamic: as
    torch.compile takes it: False for sizes compiled in, None for those that inputs are marked with."""

    workload: str
    shape: str
    columns: int
    dtype: str
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    dynamic: bool | None = False

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device


def workload_case(workload: Workload, shape: Shape, dtype: torch.dtype, device: str = "cpu") -> Case:
    """A workload on random inputs of its own. Raises ValueError for a shape that it does not have."""
    inputs = workload.make_inputs(shape, dtype, device)
    return Case(workload.name, f"{shape[0]}x{shape[1]}", shape[1], NAMES[dtype], workload.fn, inputs)


def function_case(name: str, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Case:
    """Any function; the largest input counts as its data."""
    data = max(inputs, key=lambda t: t.numel())
    shown = " ".join(f"{NAMES[t.dtype]}[{','.join(map(str, t.shape))}]" for t in inputs)
    return Case(name, shown, data.shape[-1] if data.ndim else 1, NAMES[data.dtype], function, tuple(inputs))


def traffic_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of all tensors, each once; an expanded one counts what it holds."""
    return sum(t.untyped_storage().nbytes() for t in {t.untyped_storage().data_ptr(): t for t in tensors}.values())
