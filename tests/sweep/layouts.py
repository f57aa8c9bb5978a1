"""Ways in which the inputs of a workload may lie in memory. What lies between their elements is poison."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from tests.fuzz.memory import poison

PAD = 6
"""Elements between rows. A padded statistic has a stride of 7 then, which is no number of batches here: a stride that
equals a size would be traced as that size."""
Inputs = tuple[Tensor, ...]


def lay_out(inputs: Inputs, layout: str, columns: int) -> Inputs:
    """The inputs in another layout. Where elements share memory their values change; shapes and dtypes never do.

    columns: the size of the data's rows, which tells data from statistics and weights.
    """
    return LAYOUTS[layout](inputs, columns)


def _is_data(tensor: Tensor, columns: int) -> bool:
    return tensor.ndim > 1 and tensor.shape[-1] == columns and tensor.numel() > columns


def relaid(tensor: Tensor, strides: Sequence[int], offset: int = 0) -> Tensor:
    """The same elements with other strides, from that element of a storage on."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, strides, strict=True))
    made = poison(offset + reach + 1, tensor.dtype).as_strided(tensor.shape, strides, offset)
    return made.copy_(tensor)


def strides_of(shape: Sequence[int], order: Sequence[int], pad: int = 0) -> list[int]:
    """Strides with the dimensions in that order, the slowest first; the fastest has room for ``pad`` more."""
    strides, step = [0] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= shape[axis] + (pad if step == 1 else 0)
    return strides


def _order(tensor: Tensor) -> list[int]:
    return sorted(range(tensor.ndim), key=lambda axis: -tensor.stride(axis))


def _each(change: Callable[[Tensor], Tensor]) -> Callable[[Inputs, int], Inputs]:
    """Applies to all inputs of two or more dimensions."""
    return lambda inputs, columns: tuple(change(t) if t.ndim > 1 else t for t in inputs)


def _padded(tensor: Tensor) -> Tensor:
    return relaid(tensor, strides_of(tensor.shape, _order(tensor), PAD))


def _transposed(tensor: Tensor) -> Tensor:
    return relaid(tensor, strides_of(tensor.shape, _order(tensor)[::-1]))


def _batches(tensor: Tensor) -> Tensor:
    """The first two dimensions the other way round in memory; of two dimensions, every second row."""
    order = _order(tensor)
    if tensor.ndim > 2:
        return relaid(tensor, strides_of(tensor.shape, [order[1], order[0], *order[2:]]))
    return relaid(tensor, strides_of(tensor.shape, order, tensor.shape[order[-1]]))


def _second_columns(tensor: Tensor) -> Tensor:
    return relaid(tensor, [2 * stride for stride in strides_of(tensor.shape, _order(tensor))])


def _at(offset: int) -> Callable[[Inputs, int], Inputs]:
    """All inputs, those of one dimension too."""
    return lambda inputs, columns: tuple(relaid(t, strides_of(t.shape, _order(t)), offset) for t in inputs)


def _expanded(axis: int) -> Callable[[Inputs, int], Inputs]:
    """The first data input varies over one of the two directions only: every row is the first, or every column."""

    def change(inputs: Inputs, columns: int) -> Inputs:
        first = next(i for i, t in enumerate(inputs) if _is_data(t, columns))
        data = inputs[first]
        axes = [data.ndim - 1] if axis else range(data.ndim - 1)
        kept = data
        for each in axes:
            kept = kept.narrow(each, 0, 1)
        return (*inputs[:first], kept.clone().expand(data.shape), *inputs[first + 1 :])

    return change


def _expanded_small(inputs: Inputs, columns: int) -> Inputs:
    """Statistics, weights, targets: each is its first element (a modulation its first row) everywhere."""
    return tuple(
        t if _is_data(t, columns) and t.ndim == max(x.ndim for x in inputs) else t[:1].expand(t.shape) if t.ndim else t
        for t in inputs
    )


def _overlapping(inputs: Inputs, columns: int) -> Inputs:
    """All data inputs are views of one buffer, three elements apart; where there is only one, its rows overlap."""
    which = [i for i, t in enumerate(inputs) if _is_data(t, columns)]
    data = inputs[which[0]]
    if len(which) == 1:
        base = data.contiguous().reshape(-1)
        strides = strides_of(data.shape, range(data.ndim))
        strides[-2] = max(1, columns // 2)
        return tuple(base.as_strided(t.shape, strides) if i == which[0] else t for i, t in enumerate(inputs))
    buffer = torch.cat([data.contiguous().reshape(-1), data.reshape(-1)[: 3 * len(which)]])
    made = list(inputs)
    for place, i in enumerate(which):
        made[i] = buffer.as_strided(inputs[i].shape, strides_of(inputs[i].shape, _order(inputs[i])), 3 * place)
    return tuple(made)


LAYOUTS: dict[str, Callable[[Inputs, int], Inputs]] = {
    "contiguous": lambda inputs, columns: inputs,
    "padded": _each(_padded),
    "transposed": _each(_transposed),
    "batches": _each(_batches),
    "second_columns": _each(_second_columns),
    "offset1": _at(1),
    "offset3": _at(3),
    "expanded_rows": _expanded(0),
    "expanded_columns": _expanded(1),
    "expanded_small": _expanded_small,
    "overlapping": _overlapping,
}
"""By name. Statistics and weights follow the data but for the layouts that say otherwise."""


def data_elements(inputs: Inputs) -> int:
    """Elements of the largest input."""
    return max(prod(t.shape) for t in inputs)
