"""Grows groups of nodes that can share a program.

Views are contracted, groups grow along edges in graph order, then siblings that read the same full-size tensor join. A
merge is refused when it would close a cycle through nodes outside or identify two dimensions of one tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import fx
from torch._inductor import inductor_prims

from weft.capture.axes import Operand
from weft.capture.lower import POINTWISE, is_dear
from weft.capture.members import Members
from weft.capture.nodes import is_constant, mutates, shape_of, users_behind_views
from weft.capture.parts import drops_axis, slice_of
from weft.capture.refine import Axis, MisalignedError, guess

SAME_FOR = 8
"""Elements of a kernel, for each value of a table that it reads: fewer, and the value is computed with the rest."""
MULTIPLE = (torch.ops.aten.var_mean.correction, inductor_prims.prepare_softmax_online)
"""Operations with several results."""


class Growth(Members):
    """The nodes of a graph that can be members of a program, and the groups they form."""

    def __init__(
        self, graph: fx.Graph, opaque: Collection[fx.Node] = (), among: Collection[fx.Node] | None = None
    ) -> None:
        super().__init__(graph, opaque, among)
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.depends = {node: self._dependencies(node) for node in graph.nodes}
        self.users: dict[fx.Node, list[fx.Node]] = {node: [] for node in graph.nodes}
        for node, bases in self.depends.items():
            for base in bases:
                self.users[base].append(node)
        self.group_of: dict[fx.Node, list[fx.Node]] = {node: [node] for node in self.spaces}
        self._spans: dict[int, tuple[int, int]] = {}
        """Of groups of several nodes, by identity, the first and the last place in the graph."""

    def _dependencies(self, node: fx.Node) -> list[fx.Node]:
        if node in self.spaces:
            found = (operand.base for operand in self.spaces[node].operands)
            return list(dict.fromkeys(base for base in found if not is_constant(base)))
        return list(node.all_input_nodes)

    def grow_along_edges(self) -> None:
        """Twice: what a group cannot be joined with before a node that both lead to is there, it can be afterwards."""
        for node in [*self.spaces] * 2:
            for base in sorted(self.depends[node], key=lambda n: -self.order[n]):
                if base in self.spaces:
                    self._merge(self.group_of[base], self.group_of[node])

    def join_siblings(self) -> None:
        """Groups that read the same tensor, as large as anything they compute on, share the read."""
        readers: dict[fx.Node, list[fx.Node]] = {}
        for node in self.spaces:
            for base in self.depends[node]:
                readers.setdefault(base, []).append(node)
        for base, nodes in readers.items():
            for first, second in pairwise(nodes):
                a, b = self.group_of[first], self.group_of[second]
                if a is not b and (self._share_rows(base, a, b) or self._turn_alike(a, b)):
                    self._merge(a, b, shared=base)

    def _share_rows(self, base: fx.Node, a: list[fx.Node], b: list[fx.Node]) -> bool:
        """Whether two groups read a tensor that is as large as anything they compute on, and one of them reduces it."""
        return self._is_full_size(base, a) and self._is_full_size(base, b) and self.reduces((*a, *b))

    def _turn_alike(self, *groups: list[fx.Node]) -> bool:
        """Whether two groups turn tensors of one shape and do nothing else, as those of queries and keys. Along which
        axes is what both have in common then."""
        if any(self.reduces(group) or not self.joins(group) for group in groups):
            return False
        one, other = ({shape_of(n): self.spaces[n].result for n in g if self.spaces[n].numbers} for g in groups)
        spaces = [self.spaces[node].axes for group in groups for node in group]
        return one.keys() == other.keys() and all(self.refine.can_unify(one[s], other[s], spaces) for s in one)

    def _merge(self, a: list[fx.Node], b: list[fx.Node], shared: fx.Node | None = None) -> None:
        if a is b or self._has_path_outside(a, b) or self._has_path_outside(b, a):
            return
        if self._is_table(a, b) or self._is_table(b, a):
            return
        inside = {*a, *b}
        try:
            with self.refine.transaction():
                for node in inside:
                    for operand in self.spaces[node].operands:
                        if operand.base in inside:
                            self.refine.unify_all(self.spaces[operand.base].result, operand.axes)
                if shared is not None:
                    self.refine.unify_all(self._axes_read(shared, a), self._axes_read(shared, b))
                for node in inside:
                    self.refine.check_distinct(self.spaces[node].axes)
                self._check_one_space(inside)
        except MisalignedError:
            return  # the edge becomes a border
        places = [self.order[node] for node in inside]
        self._spans.pop(id(b), None)
        self._spans[id(a)] = min(places), max(places)
        a.extend(b)
        for node in b:
            self.group_of[node] = a

    def _is_table(self, group: list[fx.Node], other: list[fx.Node]) -> bool:
        """Whether a group is a table, values that take many instructions each and are the same for many elements of
        the other group: sines of positions, by which all heads of all sequences are turned. It is stored."""
        if not any(is_dear(node) for node in group) or self.reduces(group):
            return False
        table, reader = (max((self.spaces[n].axes for n in g), key=self._size) for g in (group, other))
        return len(self.refine.atoms(table)) > 1 and self._size(table) * SAME_FOR <= self._size(reader)

    def recomputed(self) -> set[fx.Node]:
        """Nodes that another kernel than that of their group may compute again: pointwise ones that fill no table."""
        tables = set[fx.Node]()
        for group in self.groups():
            readers = {id(r): r for n in group for u in self.users[n] if (r := self.group_of.get(u)) and u not in group}
            if any(self._is_table(group, reader) for reader in readers.values()):
                tables.update(filter(is_dear, group))
        return {node for node in self.spaces if node.target in POINTWISE} - tables

    def _check_one_space(self, nodes: Collection[fx.Node]) -> None:
        """Raises MisalignedError if no node has all dimensions that the others have: in one program dimensions are
        loops around each other, and what lacks one of them would be computed for every index of it. Before that, nodes
        that read a tensor do so along the same dimensions, if they can."""
        if self._have_one_space(nodes):
            return
        spaces = [self.spaces[node] for node in nodes]
        operands = [operand for space in spaces for operand in space.operands if not is_constant(operand.base)]
        for first, axes in _read_alike(operands, nodes):
            self.refine.can_unify(first, axes, [space.axes for space in spaces])
        if not self._have_one_space(nodes):
            raise MisalignedError("no operation varies over all dimensions")

    def _have_one_space(self, nodes: Iterable[fx.Node]) -> bool:
        own = [frozenset(self.refine.atoms(self.spaces[node].axes)) for node in nodes]
        return frozenset[int]().union(*own) in own

    def reduces(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether one of the nodes reduces something."""
        return any(self.spaces[node].reduces for node in nodes)

    def joins(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether one of the nodes is put together of parts of an axis."""
        return any(self.spaces[node].numbers for node in nodes)

    def is_taken(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether the nodes are worth a program of their own."""
        nodes = [*nodes]
        return self.reduces(nodes) or self.joins(nodes)

    def _axes_read(self, base: fx.Node, group: list[fx.Node]) -> tuple[Axis, ...]:
        return next(o.axes for node in group for o in self.spaces[node].operands if o.base is base)

    def _is_full_size(self, base: fx.Node, group: list[fx.Node]) -> bool:
        largest = max(self._size(self.spaces[node].axes) for node in group)
        return self._size(self._axes_read(base, group)) >= largest

    def _size(self, axes: tuple[Axis, ...]) -> int:
        """Number of elements, run-time sizes taken as large."""
        product = 1
        for atom in self.refine.atoms(axes):
            product *= guess(self.refine.size(atom))
        return product

    def _has_path_outside(self, a: list[fx.Node], b: list[fx.Node]) -> bool:
        """Whether a node outside both depends on ``a`` and ``b`` depends on it."""
        inside = {*a, *b}
        target = set(b)
        seen: set[fx.Node] = set()
        last = self._last_way_back(b)
        stack = [user for node in a for user in self.users[node] if user not in inside and self.order[user] <= last]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            group = self.group_of.get(node, [node])
            seen.update(group)
            for user in (user for each in group for user in self.users[each]):
                if user in target:
                    return True
                if user not in inside and user not in seen and self.order[user] <= last:
                    stack.append(user)
        return False

    def _last_way_back(self, group: list[fx.Node]) -> int:
        """The place in the graph behind which nothing leads to a group: what reads a node stands behind it, but from
        one of a group's nodes a way leads on from all others."""
        last = max(self.order[node] for node in group)
        for start, end in sorted(self._spans.values()):
            if start > last:
                break
            last = max(last, end)
        return last

    def groups(self) -> list[list[fx.Node]]:
        """Every group once, its members in graph order."""
        unique = {id(group): group for group in self.group_of.values()}
        return [sorted(group, key=self.order.__getitem__) for group in unique.values()]

    def has_writes(self) -> bool:
        """Whether a node that can be a member stands behind an operator that writes one of its operands."""
        writes = [i for node, i in self.order.items() if mutates(node)]
        return bool(writes) and any(self.order[node] > writes[0] for node in self.spaces)

    def readers(self, node: fx.Node) -> list[fx.Node]:
        """Nodes that can be members and read this one, directly or through views."""
        return [user for user in self.users[node] if user in self.spaces]

    def is_forced(self, node: fx.Node) -> bool:
        """Whether something that is in no group reads a member: an operator weft has not, a view that stays in the
        graph, the graph's outputs. The value must be in memory then, whoever computes it."""
        return node.target not in MULTIPLE and any(
            user not in self.spaces or all(operand.base is not node for operand in self.spaces[user].operands)
            for user in users_behind_views(node)
        )


def _read_alike(
    operands: Iterable[Operand], inside: Collection[fx.Node]
) -> Iterator[tuple[Sequence[Axis], Sequence[Axis]]]:
    """Axes along which one tensor is read, and those along which it is read elsewhere: all, or those that are not
    divided where a part of it is read."""
    read: dict[fx.Node, tuple[Axis, ...]] = {}
    parts: list[tuple[fx.Node, int, Sequence[Axis]]] = []
    for operand in operands:
        for source, axes in ((operand.base, operand.axes), (operand.argument, operand.argument_axes)):
            first = read.setdefault(source, axes)
            if first is not axes and source not in inside:
                yield first, axes
            if (found := slice_of(source)) is not None and not drops_axis(source):
                parts.append((found[0], found[1].axis, axes))
    for source, axis, axes in parts:
        if source in read:
            whole = read[source]
            yield [*whole[:axis], *whole[axis + 1 :]], [*axes[:axis], *axes[axis + 1 :]]
