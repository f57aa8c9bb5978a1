"""Tensors that launches write part by part: each launch takes what the one before left and adds its slots."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable

import torch
from torch import fx

from weft.capture.assembly import Assembly, Slot, complete
from weft.capture.refine import extent
from weft.capture.sources import origin
from weft.errors import Refusal
from weft.integration.sizes import SizeNodes

aten = torch.ops.aten
FUNCTIONALIZED = torch.ops.higher_order.auto_functionalized_v2


class Wholes:
    """The tensors behind the slots of a graph, allocated when the first slot is written.

    slots: of all regions that are about to be rewritten. An assembly some of whose parts are not among them stays as it
    is, which ``refusals`` say; those parts that are become tensors of their own.
    """

    def __init__(self, graph: fx.Graph, sizes: SizeNodes, slots: Iterable[Slot | None]) -> None:
        self.graph, self.sizes = graph, sizes
        known = [slot for slot in slots if slot is not None]
        self._complete = complete(known)
        counts = Counter(slot.assembly for slot in known if slot.assembly not in self._complete)
        missed = {assembly.whole: (count, assembly.parts) for assembly, count in counts.items()}
        message = "a region that has a part of it is left out"
        self.refusals = [
            Refusal("not_assembled", n.name, message, *missed[n], origin(n)) for n in graph.nodes if n in missed
        ]
        self._bases: dict[Assembly, fx.Node] = {}
        self._written: dict[Assembly, list[fx.Node]] = {}

    def __contains__(self, slot: Slot | None) -> bool:
        """Whether something is a slot of a tensor that is written part by part."""
        return slot is not None and slot.assembly in self._complete

    def base(self, slot: Slot) -> fx.Node:
        """The tensor that has this slot, not initialised."""
        assembly = slot.assembly
        if assembly not in self._bases:
            value = assembly.whole.meta["val"]
            shape = [self.sizes.get(extent(size)) for size in value.shape]
            strides = [self.sizes.get(extent(stride)) for stride in value.stride()]
            with self.sizes.inserting():
                node = self.graph.call_function(
                    aten.empty_strided.default, (shape, strides), {"dtype": value.dtype, "device": value.device}
                )
            node.meta["val"] = value
            self._bases[assembly] = node
            self._written[assembly] = []
        return self._bases[assembly]

    def add_written(self, slot: Slot, result: fx.Node) -> None:
        """Note the tensor that a launch returns for the base of a slot."""
        self._written[slot.assembly].append(result)

    def detach(self) -> set[fx.Node]:
        """Make each whole depend on what launches wrote in place of its parts; returns the nodes in between."""
        for assembly, results in self._written.items():
            if len(results) != assembly.parts:
                raise RuntimeError(f"of {assembly.parts} parts of {assembly.whole} {len(results)} are written")
            # no call that could run: it stands for the last of the launches until their order is known
            assembly.whole.args, assembly.whole.kwargs = (results,), {}
        return {node for assembly in self._written for node in assembly.absorbed}

    def put_in_place(self) -> None:
        """In a sorted graph, let the launches of each whole take its base from each other, and its readers the last."""
        order = {node: i for i, node in enumerate(self.graph.nodes)}
        for assembly, base in self._bases.items():
            current, launches = base, sorted(base.users, key=order.__getitem__)
            launches[0].prepend(base)  # TorchInductor allocates where it is told to
            for launch in launches:
                bases = list(launch.kwargs["_all_bases"])  # type: ignore[arg-type]
                index = bases.index(base)
                bases[index] = current
                launch.kwargs = {**launch.kwargs, "_all_bases": bases}
                current = next(u for u in launch.users if u.target is operator.getitem and u.args[1] == 1 + index)
            assembly.whole.replace_all_uses_with(current)
            self.graph.erase_node(assembly.whole)
