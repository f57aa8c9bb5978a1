"""Tensors that launches read several views of, and that TorchInductor is to store once.

TorchInductor computes a pointwise value where it is read, and what a launch reads has to lie in memory. A view of a
value that does not is stored as a tensor of its own: the halves of sines and cosines that each layer's rotation reads
were four tensors a layer, all written by one kernel that took two seconds to compile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import fx

from weft.capture.lower import POINTWISE
from weft.capture.nodes import storage_bytes
from weft.capture.parts import whole_of

aten = torch.ops.aten
_COMPUTED = {*POINTWISE, aten.index.Tensor, aten.embedding.default}
"""What is computed where it is read, among others."""

STORED = "inductor_realize_to_strides"
"""What TorchInductor (2.11 to 2.15) looks for in a node's ``meta``: its value is stored, with the strides it has there.
"""


def store_once(launches: Iterable[fx.Node]) -> None:
    """Have the wholes of what launches read stored, unless they read only some of it."""
    views: dict[fx.Node, dict[object, int]] = defaultdict(dict)
    for launch in launches:
        arguments: list[fx.Node] = launch.kwargs["inputs"]  # type: ignore[assignment]
        for node in arguments:
            if (whole := whole_of(node)) is not node and whole.target in _COMPUTED:
                views[whole][_place(node)] = storage_bytes(node)
    for whole, seen in views.items():
        if sum(seen.values()) >= storage_bytes(whole):
            whole.meta[STORED] = True


def _place(node: fx.Node) -> object:
    """Where a tensor lies in its memory, such that another one there is the same."""
    value: torch.Tensor = node.meta["val"]
    return str((value.storage_offset(), *value.shape, *value.stride()))
