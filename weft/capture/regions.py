"""Finds the regions of a graph: groups of nodes that become programs.

Nodes that can be members of a program (members.py) are grown to groups (growth.py), what crosses their borders is
chosen (border.py), and each group with a reduction is lowered to a program (lowering.py). Groups without a reduction
stay with Inductor, but for rotations.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import fx

from weft.capture.assembly import Slot, complete, find_slots, is_read_apart
from weft.capture.axes import Space, pointwise_space
from weft.capture.border import BorderChoice, Flow, choose_borders, compared
from weft.capture.growth import Growth
from weft.capture.lowering import GroupLowering
from weft.capture.merge import merge_dimensions
from weft.capture.naming import name_of
from weft.capture.nodes import Strides, storage_bytes, strides_of
from weft.capture.opaque import is_opaque
from weft.capture.refine import Extent, MisalignedError
from weft.capture.sources import Place, places, texts
from weft.errors import Refusal, WeftError, in_stage
from weft.ir.program import Program

MAX_ROUNDS = 3
"""Borders are chosen again when a region cannot compute something again after all; then nothing is computed again."""


@dataclass(frozen=True)
class Region:
    """A part of a graph with a reduction or a rotation, or beside one, and its program.

    members: the nodes it computes, in graph order. One of them may be a member of other regions or stay in the graph as
    well, where computing it again moves fewer bytes than storing it. inputs, outputs: the nodes behind the program's
    buffers, in order; slots: for each output where it lies if it is a part of a larger tensor, else None; parameters:
    the expression over the graph's symbols behind each run-time parameter; places: of the user's program, of all
    members; reduced_at: of its reductions. is_beside: it is taken only for what it is a part of, with other regions.
    """

    program: Program
    members: tuple[fx.Node, ...]
    inputs: tuple[fx.Node, ...]
    outputs: tuple[fx.Node, ...]
    slots: tuple[Slot | None, ...]
    parameters: dict[str, Extent]
    places: tuple[Place, ...]
    reduced_at: tuple[Place, ...]
    is_beside: bool = False

    @property
    def lines(self) -> tuple[str, ...]:
        """The places as text: the user's source lines, where there are any."""
        return texts(self.places)


@dataclass(frozen=True)
class Interrupted:
    """What would be one group of nodes if some of them, which TorchInductor fuses with the others, had a lowering."""

    nodes: frozenset[fx.Node]
    opaque: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Capture:
    """All regions of a graph, the reason for every computing node that is in none, what was chosen to cross their
    borders, and what interrupts them."""

    regions: tuple[Region, ...]
    refusals: tuple[Refusal, ...]
    borders: BorderChoice
    interrupted: tuple[Interrupted, ...] = ()

    def __str__(self) -> str:
        return "\n".join([*(str(r.program) for r in self.regions), *map(str, self.refusals)])


def capture(graph: fx.Graph, name: str | None = None) -> Capture:
    """Regions and refusals of a functional ATen graph whose nodes carry ``meta["val"]``.

    name: of every program; by default each is named after what it computes.
    """
    growth = _grown(graph)
    interrupted = _interrupted(graph, growth)
    regions: list[Region] = []
    failed: set[fx.Node] = set()
    borders, groups = _lower_all(growth, name)
    for group, lowered in groups:
        if isinstance(lowered, Region):
            regions.append(lowered)
        elif isinstance(lowered, MisalignedError):
            for node in group:
                growth.refuse(node, "misaligned", str(lowered), lowered.have, lowered.limit)
        else:  # a defect of weft: one refusal for the region, the others go on
            where = next(iter(texts(places(group))), None)
            growth.refusals[group[0]] = Refusal("internal_error", name or "region", str(lowered), where=where)
            failed.update(group)
    members = {node for region in regions for node in region.members}
    for node in growth.spaces:
        if node not in growth.refusals and node not in failed:
            growth.refuse(node, "no_reduction", "no reduction shares its data: a pointwise kernel of Inductor's")
    slots = [slot for region in regions for slot in region.slots if slot is not None]
    for assembly in complete(slots):
        members.update((assembly.whole, *assembly.absorbed))
    refusals = [refusal for node, refusal in growth.refusals.items() if node not in members]
    return Capture(tuple(regions), tuple(refusals), borders, interrupted)


def _interrupted(graph: fx.Graph, growth: Growth) -> tuple[Interrupted, ...]:
    """The groups that an operation without a lowering interrupts."""
    refused = {node for node, refusal in growth.refusals.items() if refusal.rule != "narrows_random"}
    opaque = dict.fromkeys(node for node in graph.nodes if node in refused and is_opaque(node))
    if opaque:  # parts that kernels write where they belong interrupt nothing
        for assembly in {slot.assembly for slots in find_slots(growth).values() for slot in slots}:
            for node in (assembly.whole, *assembly.absorbed):
                opaque.pop(node, None)
    groups = _grown(graph, opaque).groups() if opaque else []
    found = (Interrupted(frozenset(group), tuple(node for node in group if node in opaque)) for group in groups)
    return tuple(group for group in found if group.opaque)


def as_if_lowered(graph: fx.Graph, opaque: Collection[fx.Node], among: Collection[fx.Node]) -> list[Region] | None:
    """The groups that some nodes of a graph would form, with a reduction or without, if the opaque ones of them had a
    lowering; None if one of the groups has no program. Programs are as wide as they would be and compute something
    else. All other nodes count as in memory."""
    regions: list[Region] = []
    for _, lowered in _lower_all(_grown(graph, opaque, among), None, every=True)[1]:
        if not isinstance(lowered, Region):
            return None
        regions.append(lowered)
    return regions


def _grown(graph: fx.Graph, opaque: Collection[fx.Node] = (), among: Collection[fx.Node] | None = None) -> Growth:
    growth = Growth(graph, opaque, among)
    growth.grow_along_edges()
    growth.join_siblings()
    return growth


def _lower_all(
    growth: Growth, name: str | None, *, every: bool = False
) -> tuple[BorderChoice, list[tuple[list[fx.Node], Region | MisalignedError | WeftError]]]:
    """Every group that computes a reduction, or anything, with its region or what went wrong. Borders are chosen
    until every region can compute what it should."""
    groups = growth.groups()
    slots = find_slots(growth)
    flow = _flow(growth, groups)
    banned: set[tuple[int, fx.Node]] = set()
    for last in (False,) * MAX_ROUNDS + (True,):
        borders = choose_borders(replace(flow, pointwise=()) if last else flow, banned)
        found: list[tuple[list[fx.Node], Region | MisalignedError | WeftError]] = []
        before = len(banned)
        needed = frozenset[fx.Node]().union(*borders.computed)
        for kernel, group in enumerate(groups):
            # what nobody needs stays where it is, so that it goes with the rest of its group
            computed = borders.computed[kernel] | {node for node in group if node not in needed}
            is_beside = not (every or growth.is_taken(computed))
            if computed and (not is_beside or not slots.keys().isdisjoint(computed)):
                inside = computed.difference(*(each for at, each in enumerate(borders.computed) if at != kernel))
                stored = [node for node in group if node in computed & borders.stored]
                outputs = [output for node in stored for output in _outputs(node, slots, inside)]
                if not outputs:
                    continue  # nobody reads what it computes
                lowered = _lower_group(growth, name, group, computed, outputs)
                banned |= {(kernel, node) for node in lowered.impossible}
                result = lowered.result
                found.append((group, replace(result, is_beside=is_beside) if isinstance(result, Region) else result))
        if len(banned) == before:
            return compared(flow, borders), found
    raise AssertionError("without anything to compute again nothing is impossible")


def _flow(growth: Growth, groups: list[list[fx.Node]]) -> Flow:
    """What the choice of borders needs to know. Nothing is computed again behind an operator that writes an input."""
    bases = [base for node in growth.spaces for base in growth.depends[node]]
    return Flow(
        groups,
        {node: growth.depends[node] for node in growth.spaces},
        {node: storage_bytes(node) for node in dict.fromkeys((*growth.spaces, *bases))},
        () if growth.has_writes() else growth.recomputed(),
        dict.fromkeys(node for node in growth.spaces if growth.is_forced(node)),
    )


def _outputs(node: fx.Node, slots: Mapping[fx.Node, Sequence[Slot]], inside: Collection[fx.Node]) -> list[_Output]:
    """The buffers that are written with a stored node: one a slot, and one of its own for other readers. inside: nodes
    that only this kernel computes."""
    places: list[Slot | None] = [*slots.get(node, ())]
    if not places or is_read_apart(node, slots[node], inside):
        places = [None, *places]
    return [_Output(node, place) for place in places]


@dataclass(frozen=True)
class _Output:
    """A node to write, and where if it is a part of a larger tensor."""

    node: fx.Node
    slot: Slot | None

    @property
    def strides(self) -> Strides:
        return strides_of(self.node) if self.slot is None else self.slot.strides


@dataclass(frozen=True)
class _Lowered:
    """A region or what went wrong, and the nodes that this region cannot compute again."""

    result: Region | MisalignedError | WeftError
    impossible: frozenset[fx.Node] = frozenset()


def _lower_group(
    growth: Growth, name: str | None, group: list[fx.Node], computed: frozenset[fx.Node], outputs: Sequence[_Output]
) -> _Lowered:
    """The region of a group that computes ``computed``, of which those outside the group are computed again. These must
    align with the rest, and make the region no harder to run: no further dimension, no tensor read across the
    direction in which the others lie in memory."""
    own = {node: growth.spaces[node] for node in group if node in computed}
    again = computed - own.keys()
    try:
        plain = _lower(growth, own, outputs, name)
    except (MisalignedError, WeftError) as error:
        return _Lowered(error, again)
    if not again:
        return _Lowered(plain)
    misaligned: set[fx.Node] = set()
    try:
        with growth.refine.transaction():
            nodes = sorted(computed, key=growth.order.__getitem__)
            # each region has its own copy of a node's axes, so that regions do not become aligned with each other
            spaces = {node: own.get(node) or pointwise_space(node, growth.refine) for node in nodes}
            misaligned = _align(growth, spaces, again)
            if misaligned:
                raise MisalignedError("what is computed again does not align")
            region = _lower(growth, spaces, outputs, name)
            _check_as_simple(plain, region)
    except (MisalignedError, WeftError):
        return _Lowered(plain, frozenset(misaligned) or again)
    return _Lowered(region)


def _align(growth: Growth, spaces: dict[fx.Node, Space], again: frozenset[fx.Node]) -> set[fx.Node]:
    """Identify the axes of nodes computed again with those of their readers; returns the nodes that do not align."""
    misaligned: set[fx.Node] = set()
    for space in spaces.values():
        for operand in space.operands:
            if operand.base in again:
                same = spaces[operand.base].result, operand.axes
                if not growth.refine.can_unify(*same, [other.axes for other in spaces.values()]):
                    misaligned.add(operand.base)
    return misaligned


def _check_as_simple(plain: Region, region: Region) -> None:
    """Raises MisalignedError if a region is harder to run than the same one that computes nothing again."""
    if len(region.program.dims) > len(plain.program.dims):
        raise MisalignedError("what is computed again needs a further dimension")
    known = {*plain.inputs, *plain.outputs}
    directions: tuple[set[str], set[str]] = (set(), set())
    for node, buffer in zip(region.inputs, region.program.inputs, strict=True):
        if len(buffer.dims) > 1 and 1 in buffer.strides:
            directions[node in known].add(buffer.dims[buffer.strides.index(1)])
    for output in region.program.outputs:
        if len(output.buffer.dims) > 1 and 1 in output.buffer.strides:
            directions[True].add(output.buffer.dims[output.buffer.strides.index(1)])
    if directions[True] and not directions[False] <= directions[True]:
        raise MisalignedError("what is computed again reads a tensor across its layout")


def _lower(growth: Growth, spaces: dict[fx.Node, Space], outputs: Sequence[_Output], name: str | None) -> Region:
    """Raises MisalignedError, or a WeftError that names this stage for whatever else goes wrong."""
    with in_stage("capture"):
        try:
            written = [(o.node, o.strides, o.slot is not None and o.slot.is_zero) for o in outputs]
            lowered = GroupLowering(name or "region", list(spaces), spaces, growth.refine).run(written)
            program, parameters = merge_dimensions(lowered.program, lowered.parameters)
            if name is None:
                program = replace(program, name=name_of(program))
            nodes, slots = tuple(o.node for o in outputs), tuple(o.slot for o in outputs)
            members = tuple(spaces)
            reductions = [node for node, space in spaces.items() if space.reduces]
            found = places(members), places(reductions)
            return Region(program, members, lowered.inputs, nodes, slots, parameters, *found)
        except MisalignedError as error:
            misaligned = error
    raise misaligned
