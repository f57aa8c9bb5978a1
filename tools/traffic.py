"""Bytes that a model's training step moves outside its extern kernels, counted on graphs traced without memory."""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from weft.bench.models import MODELS
from weft.capture.growth import Growth
from weft.capture.nodes import storage_bytes
from weft.compiler import compile_graph
from weft.explain.graphs import post_grad_graphs
from weft.integration.rewrite import rewrite


@dataclass(frozen=True)
class Traffic:
    """Bytes of one graph. weft_bytes: inputs and outputs of every kernel of weft, from the plans; workspace_bytes:
    their partial column sums, written and read; remainder_bytes: inputs and outputs, each once, of every maximal group
    of fusible nodes that is left to Inductor. capture_s: seconds from the graph to rendered kernels."""

    regions: int
    kernels: int
    weft_bytes: int
    workspace_bytes: int
    remainder_bytes: int
    capture_s: float

    @property
    def total_bytes(self) -> int:
        return self.weft_bytes + self.workspace_bytes + self.remainder_bytes


def training_graphs(make: Callable[[], torch.nn.Module], inputs: Callable[[], Sequence[Any]]) -> list[fx.GraphModule]:
    """The forward and backward graph of a model under bfloat16 autocast as Inductor's post-grad passes leave them; no
    tensor is ever allocated. ``make`` and ``inputs`` are called in fake mode; the model returns its loss."""
    with FakeTensorMode():
        model, given = make(), inputs()
        with torch.autocast("cpu", torch.bfloat16):
            return [graph.module for graph in post_grad_graphs(model, given)]


def traffic(graph: fx.GraphModule) -> Traffic:
    """Counts one graph; ``graph`` stays as it is."""
    graph = copy.deepcopy(graph)
    start = time.perf_counter()
    compilation = compile_graph(graph.graph)
    seconds = time.perf_counter() - start
    rewrite(graph.graph, compilation)
    estimates = [e for region in compilation.regions for e in region.plan.estimates]
    return Traffic(
        len(compilation.regions),
        len(estimates),
        sum(e.bytes_read + e.bytes_written for e in estimates),
        sum(2 * e.workspace_bytes for e in estimates),
        remainder_bytes(graph.graph),
        seconds,
    )


def remainder_bytes(graph: fx.Graph) -> int:
    """Bytes of the inputs and outputs, each once, of every maximal group of fusible nodes of a graph."""
    growth = Growth(graph)
    growth.grow_along_edges()
    total = 0
    for group in growth.groups():
        inside = set(group)
        read = {base for node in group for base in growth.depends[node] if base not in inside}
        written = {n for n in group if growth.is_forced(n) or not inside.issuperset(growth.readers(n))}
        total += sum(map(storage_bytes, read | written))
    return total


def main() -> None:
    """Prints a line a graph."""
    parser = argparse.ArgumentParser(description="bytes moved by a training step, counted without running it")
    parser.add_argument("--model", choices=sorted(MODELS), default="residual_mix")
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--sequence", type=int, default=2048)
    arguments = parser.parse_args()

    def inputs() -> Sequence[Any]:
        shape = (arguments.batch, arguments.sequence)
        return [torch.zeros(shape, dtype=torch.int64) for _ in range(2)]

    graphs = training_graphs(lambda: MODELS[arguments.model](blocks=arguments.blocks), inputs)
    for name, graph in zip(("forward", "backward"), graphs, strict=True):
        found = traffic(graph)
        print(
            f"{name}: {found.total_bytes / 1e9:.3f} GB = {found.weft_bytes / 1e9:.3f} in {found.kernels} kernels of "
            f"{found.regions} regions + {found.workspace_bytes / 1e9:.3f} workspace + "
            f"{found.remainder_bytes / 1e9:.3f} in pointwise kernels; {found.capture_s:.2f} s"
        )


if __name__ == "__main__":
    main()
