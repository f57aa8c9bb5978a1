"""What one row of a benchmark is about: a function, and the tensors to call it with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from weft.bench.inputs import Shape
from weft.bench.workloads import Workload
from weft.ir.dtypes import NAMES

SIZES = ("rows", "columns")


@dataclass(frozen=True)
class Case:
    """shape: as it is shown; columns: the last size of the data; dtype: of the data, its short name. dynamic: which of
    ``SIZES`` are known at run time only; the inputs are marked so."""

    workload: str
    shape: str
    columns: int
    dtype: str
    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    dynamic: tuple[str, ...] = ()

    @property
    def specialised(self) -> bool | None:
        """What torch.compile takes as ``dynamic``: False for sizes compiled in, None for those that are marked."""
        return None if self.dynamic else False

    @property
    def device(self) -> torch.device:
        return self.inputs[0].device


def workload_case(
    workload: Workload, shape: Shape, dtype: torch.dtype, device: str = "cpu", dynamic: Sequence[str] = ()
) -> Case:
    """A workload on random inputs of its own. dynamic: sizes that code is not to be compiled for. Raises ValueError for
    a shape that the workload does not have."""
    inputs = tuple(workload.make_inputs(shape, dtype, device))
    for tensor in inputs:
        mark(tensor, shape, dynamic)
    shown = f"{shape[0]}x{shape[1]}"
    return Case(workload.name, shown, shape[1], NAMES[dtype], workload.fn, inputs, tuple(dynamic))


def mark(tensor: Tensor, shape: Shape, dynamic: Sequence[str]) -> None:
    """Mark sizes of a tensor as known at run time only: the last one as columns, others as rows, where it has as many.
    A size of one is compiled in by torch.compile whatever is said."""
    rows, columns = shape
    for axis, size in enumerate(tensor.shape):
        is_columns = axis == tensor.ndim - 1 and size == columns
        which = "columns" if is_columns else "rows" if size == rows else None
        if which in dynamic and size > 1:
            torch._dynamo.mark_dynamic(tensor, axis)


def function_case(name: str, function: Callable[..., Any], inputs: Sequence[Tensor]) -> Case:
    """Any function; the largest input counts as its data."""
    data = max(inputs, key=lambda t: t.numel())
    shown = " ".join(f"{NAMES[t.dtype]}[{','.join(map(str, t.shape))}]" for t in inputs)
    return Case(name, shown, data.shape[-1] if data.ndim else 1, NAMES[data.dtype], function, tuple(inputs))


def traffic_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of all tensors, each once; an expanded one counts what it holds."""
    return sum(t.untyped_storage().nbytes() for t in {t.untyped_storage().data_ptr(): t for t in tensors}.values())
