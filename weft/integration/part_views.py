"""Parts of a tensor that kernels read, as views of the tensor."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from weft.capture.refine import extent
from weft.errors import VerificationError
from weft.integration.sizes import SizeNodes, values_of
from weft.ir.program import Buffer, Program

aten = torch.ops.aten


def part_of(node: fx.Node, buffer: Buffer, program: Program, sizes: SizeNodes) -> fx.Node:
    """The part of a tensor that is a buffer of the program, as views of the tensor. The place that is given to
    ``as_strided`` TorchInductor counts from where a graph's input begins, PyTorch from where its memory does."""
    (whole,) = (b for b in program.buffers if b.name == buffer.within)
    counts, place = {d.name: d.size for d in program.dims}, buffer.place
    steps = {d: s for d, s in whole.stride_of.items() if d not in buffer.dims and isinstance(s, int)}
    for dim, step in sorted(steps.items(), key=lambda each: -each[1]):
        count = counts[dim]
        if not isinstance(count, int):
            raise VerificationError(f"{buffer.within} has parts that are counted at run time only")
        node = _selected(node, step, count, place // step, sizes)
        place %= step
    if place:
        raise VerificationError(f"{buffer.name} is no part of {buffer.within}")
    return node


def _selected(node: fx.Node, step: int, count: int, number: int, sizes: SizeNodes) -> fx.Node:
    """One of ``count`` parts of an axis, or of several that count on from each other, whose neighbours are ``step``
    elements of memory apart."""
    value = node.meta["val"]
    shape = [extent(size) for size in value.shape]
    known = [
        (axis, size, stride)
        for axis, (size, stride) in enumerate(zip(shape, map(extent, value.stride()), strict=True))
        if isinstance(size, int) and isinstance(stride, int) and stride > 0
    ]
    for axis, size, stride in known:
        inner, rest = divmod(step, stride)
        if rest == 0 and inner > 0 and size % (inner * count) == 0:
            split = [*shape[:axis], size // (inner * count), count, inner, *shape[axis + 1 :]]
            node = view(node, aten.view.default, [sizes.get(each) for each in split])
            return view(node, aten.select.int, axis + 1, number)
    for axis, size, stride in known:
        if stride == step and size > 1 and count % size == 0:
            node = view(node, aten.select.int, axis, number % size)
            return _selected(node, step * size, count // size, number // size, sizes)
    raise VerificationError(f"{node} has no axis of {count} parts that are {step} elements apart")


def view(node: fx.Node, target: Any, *args: Any) -> fx.Node:
    """A new node, where the graph takes nodes in at the moment: an operation that makes a view."""
    made = node.graph.call_function(target, (node, *args))
    with node.meta["val"].fake_mode:
        made.meta["val"] = target(node.meta["val"], *(values_of(a) if isinstance(a, list) else a for a in args))
    return made
