"""Tensors that are put together of parts of an axis, all equally long.

A rotation of queries and keys reads the two halves of each head, turns them around and puts them together again; its
gradient puts halves into zeros. An axis that is divided into equal parts is two, the number of the part and the place
in it, and what is put together is a choice by number: ``where(number == 0, first, second)``.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from weft.capture.axes import Space, follow
from weft.capture.lower import POINTWISE
from weft.capture.nodes import VIEWS, axis_of, shape_of, viewed
from weft.capture.refine import Extent, Refinement, extent

if TYPE_CHECKING:
    from weft.capture.lowering import NodeLowering

aten = torch.ops.aten
SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int)

MOST_PARTS = 4
"""An element is chosen from that many, all of which are computed."""
MOST_ELEMENTS = 512
"""Of the axis: each part is read for every other one, and must still be in the cache of level 1 then. The halves of a
head are; those of a row of 8192 columns, which a program reads piece by piece, are not."""
MOST_NODES = 64
"""That are looked at behind a part."""


@dataclass(frozen=True)
class Part:
    """What a slice takes of an axis."""

    axis: int
    start: int
    stop: int

    @property
    def length(self) -> int:
        return self.stop - self.start

    def contains(self, other: Part) -> bool:
        """Whether another one is some of the elements of this one, but not all."""
        inside = self.axis == other.axis and self.start <= other.start and other.stop <= self.stop
        return inside and self != other


@dataclass(frozen=True)
class Division:
    """An axis in ``count`` parts of ``length``: part i has the elements from i * length on."""

    axis: int
    count: int
    length: int

    @property
    def elements(self) -> int:
        """Of the axis."""
        return self.count * self.length


@dataclass(frozen=True)
class Joined:
    """A tensor put together of parts. sources: each with the number of its part; all others are those of ``base``."""

    division: Division
    sources: tuple[tuple[int, fx.Node], ...]
    base: fx.Node | None = None


def joined(node: fx.Node) -> Joined | None:
    """How a node is put together of parts that are computed from slices as long as these; None if it is not. Of pairs
    whose elements are beside each other nothing is: a load of every second element is none of vectors, and the norm's
    gradient with such a rotation took 1.9 times as long as TorchInductor's kernels on an H200."""
    if node.target is aten.cat.default:
        found = _concatenated(node)
    elif node.target is aten.slice_scatter.default:
        found = _scattered(node) if all(map(_scattered, _added(node))) else None
    else:
        return None
    if found is None or found.division.length == 1:
        return None
    if found.division.count > MOST_PARTS or found.division.elements > MOST_ELEMENTS:
        return None
    return found if slices_behind(found) else None


def _added(node: fx.Node) -> Iterator[fx.Node]:
    """What else is put into zeros and added: the parts of one tensor, which are all alike or are written each into its
    place."""
    for user in node.users:
        if user.target is aten.add.Tensor:
            yield from (n for n in user.all_input_nodes if n is not node and n.target is aten.slice_scatter.default)


def slices_behind(found: Joined) -> list[fx.Node]:
    """The slices that pointwise operations and views make the parts of a joined tensor from, if they are as long."""
    slices: list[fx.Node] = []
    for node in behind([source for _, source in found.sources]):
        read = slice_of(node)
        division = None if read is None else _division(read[1], shape_of(read[0]))
        if division is not None and _alike(division[0], found.division):
            slices.append(node)
    return slices


def behind(nodes: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """The nodes, and what pointwise operations and views make them from."""
    seen = dict.fromkeys(nodes)
    pending = list(seen)
    while pending and len(seen) < MOST_NODES:
        node = pending.pop()
        yield node
        if node.target in POINTWISE or node.target in VIEWS:
            fresh = [operand for operand in node.all_input_nodes if operand not in seen]
            seen.update(dict.fromkeys(fresh))
            pending += fresh


def _alike(one: Division, other: Division) -> bool:
    """Whether parts of one axis are as long as those of another, or one of the axes counts as many parts."""
    counted = one.count == other.count and 1 in (one.length, other.length)
    return one.elements <= MOST_ELEMENTS and (one.length == other.length or counted)


def slice_of(node: fx.Node) -> tuple[fx.Node, Part] | None:
    """What a slice, a selection or one of the results of a split is a part of, and which; None for anything else, or if
    that is known at run time only."""
    source: Any = node.args[0] if node.args else None
    arguments: list[Any] = [*node.args[1:]]
    if node.target is operator.getitem and source.target in SPLITS:
        if len(source.all_input_nodes) > 1:
            return None  # parts whose sizes are known at run time only
        arguments = _of_split(source, *arguments)
        source = source.args[0]
    elif node.target is aten.select.int:
        arguments = _single(*arguments)
    elif node.target is not aten.slice.Tensor:
        return None
    part = _part(shape_of(source), arguments)
    return None if part is None else (source, part)


def whole_of(node: fx.Node) -> fx.Node:
    """What a node is a part of, or a view, through all of these; any other node itself."""
    while (found := slice_of(viewed(node))) is not None:
        node = found[0]
    return viewed(node)


def place_bytes(node: fx.Node) -> Extent:
    """Where in the memory of a graph's input a part of it begins. Of what the graph computes it is 0: a part of what
    nothing keeps in memory as a whole is a tensor of its own."""
    if whole_of(node).op != "placeholder":
        return 0
    value = node.meta["val"]
    return extent(value.storage_offset()) * value.element_size()


def sliced(node: fx.Node, known: Collection[fx.Node] = ()) -> tuple[fx.Node, int | None]:
    """The tensor that a slice is a part of, and the place of its first element there, None if that is not known or is
    in other memory, as behind a view that had to copy; any other node itself. known: tensors to prefer, of slices of
    slices or of larger slices of the same tensor."""
    whole: Any = larger_slice(node, known)
    while whole not in known and (whole.target is aten.slice.Tensor or (whole is not node and whole.target in VIEWS)):
        whole = whole.args[0]
    mine, its = node.meta["val"], whole.meta["val"]
    place = mine.storage_offset() - its.storage_offset()
    is_known = isinstance(place, int) and mine.untyped_storage()._cdata == its.untyped_storage()._cdata
    return whole, place if is_known else None


def larger_slice(node: fx.Node, known: Iterable[fx.Node]) -> fx.Node:
    """Of these nodes one that takes all that a slice takes of its tensor, and more; the slice if there is none."""
    mine = slice_of(node)
    for other in known if mine is not None else ():
        its = slice_of(other)
        if mine is not None and its is not None and its[0] is mine[0] and its[1].contains(mine[1]):
            return other
    return node


def written_part(scatter: fx.Node) -> Part | None:
    """What of an axis a scatter writes; None if that is nothing, or known at run time only."""
    given: Sequence[Any] = scatter.args[2:]
    if scatter.target is aten.select_scatter.default:
        given = _single(*given) if isinstance(given[1], int) else (0, 0, 0)
    elif scatter.kwargs:
        return None
    part = _part(shape_of(scatter), given)
    return part if part is not None and part.length > 0 else None


def drops_axis(node: fx.Node) -> bool:
    """Whether what is taken of an axis is an element of it."""
    taken: Any = node.args[0]
    return node.target is aten.select.int or (node.target is operator.getitem and taken.target is aten.unbind.int)


def _of_split(split: fx.Node, number: int) -> list[Any]:
    """Axis, start and stop of one of the results of a split."""
    if split.target is aten.unbind.int:
        return _single(split.args[1] if len(split.args) > 1 else 0, number)
    sizes: Any = split.args[1]
    axis = split.args[2] if len(split.args) > 2 else 0
    if isinstance(sizes, int):
        return [axis, number * sizes, (number + 1) * sizes]
    return [axis, sum(sizes[:number]), sum(sizes[: number + 1])]


def _single(axis: Any, index: Any) -> list[Any]:
    """Axis, start and stop of an element; the index -1 ends with the axis."""
    return [axis, index, index + 1 or None]


def _part(shape: Sequence[Extent], arguments: Sequence[Any]) -> Part | None:
    """arguments: the axis, and start, stop and step as far as they are given."""
    given: tuple[Any, ...] = (*arguments, *(0, None, None, 1)[len(arguments) :])
    axis, start, stop, step = given
    size = shape[axis]
    if not isinstance(size, int) or step != 1 or isinstance(start, fx.Node) or isinstance(stop, fx.Node):
        return None
    first, behind, _ = slice(start, stop).indices(size)
    return Part(axis % len(shape), first, max(first, behind))


def _division(part: Part | None, shape: Sequence[Extent]) -> tuple[Division, int] | None:
    """The division of an axis of which a slice is one part, and the number of that part; None if it is none. Elements
    of the last axis are none: whoever takes them takes what is apart in memory."""
    size = None if part is None else shape[part.axis]
    if part is None or not isinstance(size, int) or not 0 < part.length < size:
        return None
    if size % part.length or part.start % part.length or (part.length == 1 and part.axis == len(shape) - 1):
        return None
    return Division(part.axis, size // part.length, part.length), part.start // part.length


def joined_space(node: fx.Node, found: Joined, refinement: Refinement) -> Space:
    """Its operands are the base, if there is one, and the parts, which have only the places of the axis."""
    division = found.division
    numbers, places = refinement.fresh_axis(division.count), refinement.fresh_axis(division.length)
    whole = [refinement.fresh_axis(size) for size in shape_of(node)]
    whole[division.axis] = (*numbers, *places)
    part = [*whole]
    part[division.axis] = places
    read = [] if found.base is None else [(found.base, tuple(whole))]
    read += [(source, tuple(part)) for _, source in found.sources]
    operands = tuple(follow(i, operand, axes, refinement) for i, (operand, axes) in enumerate(read))
    return Space(tuple(whole), tuple(whole), operands, numbers=numbers)


def lower_joined(node: NodeLowering) -> str:
    """A choice by the number of the part."""
    found = joined(node.node)
    assert found is not None
    *base, value = [node.operand(i) for i in range(len(node.space.operands))]
    builder = node.group.builder
    position = node.group.positions(node.space.numbers, "i32")
    if found.base is None:  # whatever is no other part is the last one
        chosen = list(zip([number for number, _ in found.sources[:-1]], base, strict=True))
    else:
        chosen, value = [(found.sources[0][0], value)], base[0]
    for number, part in reversed(chosen):
        value = builder.op("where", builder.op("eq", position, builder.const(number, "i32")), part, value)
    return value


def _concatenated(node: fx.Node) -> Joined | None:
    operands: Any = node.args[0]
    axis = axis_of(node)
    shapes = [shape_of(operand) for operand in operands]
    size = shape_of(node)[axis]
    if len(operands) < 2 or any(shape != shapes[0] for shape in shapes) or not isinstance(size, int):
        return None
    division = Division(axis, len(operands), size // len(operands))
    return Joined(division, tuple(enumerate(operands)))


def _scattered(node: fx.Node) -> Joined | None:
    base, source, *_ = node.args
    found = _division(_part(shape_of(node), node.args[2:]), shape_of(node))
    if found is None or not isinstance(base, fx.Node) or not isinstance(source, fx.Node):
        return None
    division, number = found
    return Joined(division, ((number, source),), base)
