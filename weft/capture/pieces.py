"""How a tensor is put together of pieces: a ``cat``, a sum of slices scattered into zeros, or a padding with zeros."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import fx

from weft.capture.nodes import ORDERS, Strides, axis_of, is_constant, order_of, shape_of, strides_of
from weft.capture.parts import Part, written_part
from weft.capture.refine import Extent

aten = torch.ops.aten

MOST_ZEROS = 4
"""Rows of zeros beside a part, each of which is written as one more result of its kernel."""


@dataclass(frozen=True)
class Piece:
    """An operand of an assembly: all of ``source``, which lies in the whole with these strides (one an axis), or, with
    a stride of 0, zeros beside it."""

    source: fx.Node
    strides: Strides
    offset: Extent
    is_zero: bool = False


@dataclass(frozen=True)
class Made:
    """How a node is put together: pieces that cover it, and nodes in between."""

    pieces: tuple[Piece, ...]
    absorbed: tuple[fx.Node, ...] = ()


def made_of(node: fx.Node) -> Made | None:
    """How a node is put together of pieces, and these of others if nobody else reads them; None if it is not."""
    return _made(node, strides_of(node)) if node.target in _RULES else None


def _made(node: fx.Node, strides: Strides) -> Made | None:
    """strides: of the node in the tensor that is made."""
    rule = _RULES.get(node.target)
    made = None if rule is None else rule(node, strides)
    if made is None or any(piece.is_zero for piece in made.pieces):
        return made
    pieces, absorbed = list[Piece](), [*made.absorbed]
    for piece in made.pieces:
        inner = _made(piece.source, piece.strides) if len(piece.source.users) == 1 else None
        if inner is None:
            pieces.append(piece)
        else:
            pieces += [replace(each, offset=piece.offset + each.offset) for each in inner.pieces]
            absorbed += [piece.source, *inner.absorbed]
    return Made(tuple(pieces), tuple(absorbed))


def _copied(node: fx.Node, strides: Strides) -> Made | None:
    """A tensor that is copied into another order of its axes: it can be made in that order."""
    base: Any = node.args[0]
    between: list[fx.Node] = []
    while base.target in ORDERS and len(base.users) == 1:
        order, own = order_of(base), strides
        strides = tuple(own[order.index(axis)] for axis in range(len(own)))
        between.append(base)
        base = base.args[0]
    made = _made(base, strides) if len(base.users) == 1 else None
    return None if made is None else Made(made.pieces, (*between, base, *made.absorbed))


def _concatenated(node: fx.Node, strides: Strides) -> Made | None:
    operands: Any = node.args[0]
    axis = axis_of(node)
    pieces: list[Piece] = []
    start: Extent = 0
    for operand in operands:
        shape = shape_of(operand)
        if len(shape) != len(strides):
            return None  # an empty operand of rank one
        pieces.append(Piece(operand, strides, start * strides[axis]))
        start = start + shape[axis]
    return Made(tuple(pieces))


def _padded(node: fx.Node, strides: Strides) -> Made | None:
    """One slice among zeros that are a few rows of it."""
    if node.target is aten.slice_scatter.default:
        base, source = node.args[:2]
        part = written_part(node) if is_zero(base) else None
    else:
        source, part = node.args[0], _padding(node)
    if part is None or not isinstance(source, fx.Node):
        return None
    axis = part.axis
    zeros = [*range(part.start), *range(part.stop, int(shape_of(node)[axis]))]
    if len(zeros) > MOST_ZEROS:
        return None
    beside = (*strides[:axis], 0, *strides[axis + 1 :])
    pieces = [Piece(source, strides, part.start * strides[axis])]
    pieces += [Piece(source, beside, at * strides[axis], is_zero=True) for at in zeros]
    return Made(tuple(pieces))


def _padding(node: fx.Node) -> Part | None:
    """Where what is padded with zeros along one axis lies in the result; None if it is with anything else."""
    _, pad, *given = node.args
    numbers: Any = pad
    value = given[0] if given else node.kwargs.get("value", 0)
    sizes, rank = shape_of(node), len(shape_of(node))
    padded = [i for i, each in enumerate(numbers) if each != 0]
    axes = {rank - 1 - i // 2 for i in padded}
    if len(axes) != 1 or value not in (0, None) or any(not isinstance(n, int) or n < 0 for n in numbers):
        return None
    (axis,) = axes
    size, place = sizes[axis], 2 * (rank - 1 - axis)
    return Part(axis, numbers[place], size - numbers[place + 1]) if isinstance(size, int) else None


def _scattered(node: fx.Node, strides: Strides) -> Made | None:
    """A sum of slices scattered into zeros, if the slices cover the whole and do not meet.

    A number plus zero is that number; of a sum of zeros the sign is not kept.
    """
    terms = scatters_of(node)
    if terms is None:
        return None
    scatters = [term for term in terms if term.target is not aten.add.Tensor]
    parts: list[Part] = []
    pieces: list[Piece] = []
    for scatter in scatters:
        source, part = scatter.args[1], written_part(scatter)
        if part is None or not isinstance(source, fx.Node):
            return None
        axis = part.axis
        kept = strides if scatter.target is aten.slice_scatter.default else (*strides[:axis], *strides[axis + 1 :])
        pieces.append(Piece(source, kept, part.start * strides[axis]))
        parts.append(part)
    parts.sort(key=lambda part: part.start)
    covers = parts[0].start == 0 and parts[-1].stop == shape_of(node)[parts[0].axis]
    covers = covers and all(one.axis == other.axis and one.stop == other.start for one, other in pairwise(parts))
    return Made(tuple(pieces), tuple(terms[1:])) if covers else None


def scatters_of(node: fx.Node) -> list[fx.Node] | None:
    """The sum, and the additions and scatters it consists of, all of its dtype and shape; None if anything else is
    added or anybody else reads one of them."""
    found = [node]
    for term in found:
        if term is not node and len(term.users) != 1:
            return None
        if term.target is aten.add.Tensor:
            operands = [arg for arg in term.args if isinstance(arg, fx.Node)]
            if term.kwargs.get("alpha", 1) != 1 or len(operands) != 2 or operands[0] is operands[1]:
                return None
            found += operands
        elif term.target not in _SCATTERS or not is_zero(term.args[0]):
            return None
        if shape_of(term) != shape_of(node) or term.meta["val"].dtype != node.meta["val"].dtype:
            return None
    return found


_RULES: dict[Any, Callable[[fx.Node, Strides], Made | None]] = {
    aten.clone.default: _copied,
    aten.add.Tensor: _scattered,
    aten.cat.default: _concatenated,
    aten.slice_scatter.default: _padded,
    aten.constant_pad_nd.default: _padded,
}
_SCATTERS = (aten.select_scatter.default, aten.slice_scatter.default)


def is_zero(node: Any) -> bool:
    """Whether a node makes a tensor of zeros."""
    return (
        isinstance(node, fx.Node) and is_constant(node) and node.target is aten.full.default and bool(node.args[1] == 0)
    )
