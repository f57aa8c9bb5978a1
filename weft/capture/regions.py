"""Finds the regions of a graph: groups of nodes that become programs.

Views are contracted, groups grow along edges in graph order, then siblings that read the same full-size tensor join. A
merge is refused when it would close a cycle through nodes outside or identify two dimensions of one tensor. Groups
without a reduction stay with Inductor.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import sympy
import torch
from torch import fx

from weft.capture.axes import VIEWS, Space, pointwise_space, projection_space, reduction_space, shape_of
from weft.capture.lower import POINTWISE, REDUCTIONS, reduced_axes, unsupported
from weft.capture.lowering import GroupLowering, flat, is_constant, unify_all
from weft.capture.merge import merge_dimensions
from weft.capture.refine import Axis, Extent, MisalignedError, Refinement
from weft.capture.sources import user_line
from weft.errors import Refusal, WeftError, in_stage
from weft.ir.program import Program


@dataclass(frozen=True)
class Region:
    """A convex part of a graph with at least one reduction, and its program.

    inputs, outputs: the nodes behind the program's buffers, in order; parameters: the expression over the graph's
    symbols behind each run-time parameter; lines: the user's source lines.
    """

    program: Program
    members: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    parameters: dict[str, Extent]
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Capture:
    """All regions of a graph, and the reason for every computing node that is in none."""

    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]

    def __str__(self) -> str:
        return "\n".join([*(str(r.program) for r in self.regions), *map(str, self.refusals)])


def capture(graph: fx.Graph, name: str = "region") -> Capture:
    """Regions and refusals of a functional ATen graph whose nodes carry ``meta["val"]``."""
    finder = _Finder(graph)
    finder.grow_along_edges()
    finder.join_siblings()
    regions: list[Region] = []
    for members in finder.groups():
        try:
            with in_stage("capture"):
                regions += finder.region_of(members, name)
        except WeftError as error:  # a defect of weft: one refusal for the region, the others go on
            where = next((line for node in members if (line := user_line(node))), None)
            finder.refusals[members[0]] = Refusal("internal_error", name, str(error), where=where)
    return Capture(tuple(regions), tuple(finder.refusals.values()))


class _Finder:
    def __init__(self, graph: fx.Graph) -> None:
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        self.refine = Refinement()
        self.refusals: dict[fx.Node, Refusal] = {}
        self.spaces: dict[fx.Node, Space] = {}
        for node in graph.nodes:
            self._admit(node)
        self.depends = {node: self._dependencies(node) for node in graph.nodes}
        self.users: dict[fx.Node, list[fx.Node]] = {node: [] for node in graph.nodes}
        for node, bases in self.depends.items():
            for base in bases:
                self.users[base].append(node)
        self.group_of: dict[fx.Node, list[fx.Node]] = {node: [node] for node in self.spaces}

    # which nodes can be members

    def _admit(self, node: fx.Node) -> None:
        """Give a node its index space if it can be part of a program; otherwise say why not."""
        target = node.target
        if node.op != "call_function" or target in VIEWS or is_constant(node):
            return
        if target is operator.getitem:
            if node.args[0] in self.spaces:
                self.spaces[node] = projection_space(node, self.refine)
            return
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor | list | tuple):
            return  # sizes and other numbers
        if target not in POINTWISE and target not in REDUCTIONS:
            if not _is_view(node):
                self.refuse(node, "unsupported_op", f"{target} is no operation weft fuses")
            return
        if (reason := unsupported(node)) is not None:
            self.refuse(node, "unsupported_form", reason)
            return
        try:
            with self.refine.transaction():
                if target in REDUCTIONS:
                    source = node.args[0]
                    assert isinstance(source, fx.Node)
                    dims = reduced_axes(node, len(shape_of(source)))
                    space = reduction_space(node, self.refine, dims)
                else:
                    space = pointwise_space(node, self.refine)
                self.refine.check_distinct(space.axes)
        except MisalignedError as error:
            self.refuse(node, "misaligned", str(error))
            return
        self.spaces[node] = space

    def refuse(self, node: fx.Node, rule: str, message: str) -> None:
        self.refusals[node] = Refusal(rule, node.name, message, where=user_line(node))

    def _dependencies(self, node: fx.Node) -> list[fx.Node]:
        if node in self.spaces:
            found = (operand.base for operand in self.spaces[node].operands)
            return list(dict.fromkeys(base for base in found if not is_constant(base)))
        return list(node.all_input_nodes)

    # merging

    def grow_along_edges(self) -> None:
        for node in list(self.spaces):
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
                reduces = any(node.target in REDUCTIONS for node in (*a, *b))
                if a is not b and reduces and self._is_full_size(base, a) and self._is_full_size(base, b):
                    self._merge(a, b, shared=base)

    def _merge(self, a: list[fx.Node], b: list[fx.Node], shared: fx.Node | None = None) -> None:
        if a is b or self._has_path_outside(a, b) or self._has_path_outside(b, a):
            return
        inside = {*a, *b}
        try:
            with self.refine.transaction():
                for node in inside:
                    for operand in self.spaces[node].operands:
                        if operand.base in inside:
                            unify_all(self.refine, self.spaces[operand.base].result, operand.axes)
                if shared is not None:
                    unify_all(self.refine, self._axes_read(shared, a), self._axes_read(shared, b))
                for node in inside:
                    self.refine.check_distinct(self.spaces[node].axes)
        except MisalignedError:
            return  # the edge becomes a border
        a.extend(b)
        for node in b:
            self.group_of[node] = a

    def _axes_read(self, base: fx.Node, group: list[fx.Node]) -> tuple[Axis, ...]:
        return next(o.axes for node in group for o in self.spaces[node].operands if o.base is base)

    def _is_full_size(self, base: fx.Node, group: list[fx.Node]) -> bool:
        largest = max(self._elements(flat(self.spaces[node].axes)) for node in group)
        return self._elements(flat(self._axes_read(base, group))) >= largest

    def _elements(self, axis: Axis) -> int:
        """Number of elements, run-time sizes taken as large."""
        product = 1
        for atom in self.refine.leaves(axis):
            product *= _guess(self.refine.size(atom))
        return product

    def _has_path_outside(self, a: list[fx.Node], b: list[fx.Node]) -> bool:
        """Whether a node outside both depends on ``a`` and ``b`` depends on it."""
        inside = {*a, *b}
        target = set(b)
        seen: set[fx.Node] = set()
        stack = [user for node in a for user in self.users[node] if user not in inside]
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            group = self.group_of.get(node, [node])
            seen.update(group)
            for user in _users(group, self.users):
                if user in target:
                    return True
                if user not in inside and user not in seen:
                    stack.append(user)
        return False

    # results

    def groups(self) -> list[list[fx.Node]]:
        """Every group once, its members in graph order."""
        unique = {id(group): group for group in self.group_of.values()}
        return [sorted(group, key=self.order.__getitem__) for group in unique.values()]

    def region_of(self, members: list[fx.Node], name: str) -> list[Region]:
        """The region of a group; none, with a refusal of every member, if it is not one."""
        if not any(node.target in REDUCTIONS for node in members):
            for node in members:
                self.refuse(node, "no_reduction", "no reduction shares its data: a pointwise kernel of Inductor's")
            return []
        try:
            return [self.lower(members, name)]
        except MisalignedError as error:
            for node in members:
                self.refuse(node, "misaligned", str(error))
            return []

    def lower(self, members: list[fx.Node], name: str) -> Region:
        inside = set(members)
        outputs = [n for n in members if n.target not in _MULTIPLE and self._is_used_outside(n, inside)]
        spaces = {node: self.spaces[node] for node in members}
        lowered = GroupLowering(name, members, spaces, self.refine).run(outputs)
        program, parameters = merge_dimensions(lowered.program, lowered.parameters)
        return Region(program, tuple(members), lowered.inputs, lowered.outputs, parameters, lowered.lines)

    def _is_used_outside(self, node: fx.Node, inside: set[fx.Node]) -> bool:
        """A view counts as outside: it stays in the graph if anything there reads it, and reads this output."""
        return any(user not in inside for user in self._visible_users(node, inside))

    def _visible_users(self, node: fx.Node, inside: set[fx.Node]) -> Iterable[fx.Node]:
        for user in node.users:
            if user.target in VIEWS and user.op == "call_function":
                # a view is needed if somebody reads it who does not look through it to this node
                yield from (u for u in self._visible_users(user, inside) if u not in inside or not self._reads(u, node))
            else:
                yield user

    def _reads(self, user: fx.Node, base: fx.Node) -> bool:
        return any(operand.base is base for operand in self.spaces[user].operands)


def _is_view(node: fx.Node) -> bool:
    """Whether an operation only makes an alias of its operand: it costs nothing and stays where it is."""
    schema = getattr(node.target, "_schema", None)
    returns = [] if schema is None else schema.returns
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)


_MULTIPLE = (torch.ops.aten.var_mean.correction,)


def _users(group: list[fx.Node], users: dict[fx.Node, list[fx.Node]]) -> Iterable[fx.Node]:
    for node in group:
        yield from users[node]


def _guess(size: Extent) -> int:
    return size if isinstance(size, int) else int(sympy.sympify(size).subs(dict.fromkeys(size.free_symbols, 4096)))
