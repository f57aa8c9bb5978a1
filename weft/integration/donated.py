"""Launches in a backward that write where a saved tensor lies which nobody reads afterwards.

The largest tensor of a training step is often the gradient of the logits, and nobody needs the logits once it is there:
in memory of its own it would be twice as much where a step needs most. TorchInductor computes in place what it writes
itself, but it does not look into a launch.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import fx
from torch._functorch._aot_autograd.logging_utils import get_aot_compilation_context
from torch._inductor.utils import get_donated_idxs

from weft.plan.in_place import overwritable
from weft.plan.kernel import Kernel

aten = torch.ops.aten


def write_in_place(graph: fx.Graph, launches: Mapping[fx.Node, Kernel]) -> None:
    """Let launches of a sorted graph write over tensors that were saved for this backward alone, and that they alone
    read. launches: those of the graph, with their kernels."""
    free = donated(graph)
    for launch, kernel in launches.items():
        arguments: dict[str, Any] = dict(launch.kwargs)
        inputs = dict(zip((b.name for b in kernel.program.inputs), arguments["inputs"], strict=True))
        places = overwritable(kernel)
        for i, output in enumerate(kernel.program.outputs):
            base = arguments["_all_bases"][arguments[f"_outputs_{i}_base_index"]]
            if f"_outputs_{i}_size" in arguments or base.target is not aten.empty_strided.default:
                continue  # a part of a tensor that other launches write as well
            for name in places.get(output.buffer.name, ()):
                node = inputs[name]
                if node in free and _is_read_once(node, launch, inputs.values()) and len(base.users) == 1:
                    free.remove(node)
                    _replace(graph, base, node)
                    break


def donated(graph: fx.Graph) -> set[fx.Node]:
    """Inputs of a backward that autograd gives away: saved tensors that no user has, and that share memory with none
    of the others. None in other graphs."""
    names, _, _ = get_aot_compilation_context()
    indices = get_donated_idxs()
    if not indices or not any(name.endswith("_backward") for name in names):
        return set()
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    tensors = {node: node.meta["val"] for node in inputs if isinstance(node.meta.get("val"), torch.Tensor)}
    shared = Counter(_storage(value) for value in tensors.values())
    given = {inputs[i] for i in indices} & tensors.keys()
    return {node for node in given if shared[_storage(tensors[node])] == 1 and _is_aligned(tensors[node])}


def _storage(value: torch.Tensor) -> int:
    return value.untyped_storage()._cdata


def _is_aligned(value: torch.Tensor) -> bool:
    """Whether a tensor begins where its memory begins, as a fresh one does."""
    return isinstance(value.storage_offset(), int) and value.storage_offset() == 0


def _is_read_once(node: fx.Node, launch: fx.Node, inputs: Iterable[fx.Node]) -> bool:
    return list(node.users) == [launch] and operator.countOf(inputs, node) == 1


def _replace(graph: fx.Graph, base: fx.Node, node: fx.Node) -> None:
    """Put memory of a tensor in the place of fresh memory."""
    with graph.inserting_before(base):
        over = graph.call_function(torch.ops.weft.over.default, (node, *base.args))
    over.meta["val"] = base.meta["val"]
    base.replace_all_uses_with(over)
    graph.erase_node(base)
