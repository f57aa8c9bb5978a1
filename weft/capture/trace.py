"""Traces a plain function to the kind of graph Inductor hands to its post-grad passes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx


def trace(function: Callable[..., Any], inputs: Sequence[Any], *, dynamic_rows: bool = False) -> fx.GraphModule:
    """A functional ATen graph of ``function(*inputs)`` with Inductor's decompositions.

    inputs: tensors of the shapes, dtypes and strides to compile for (their contents are not looked at).
    dynamic_rows: treat the first size of the first input of rank two or more as known at run time only, and that of
    every input that has the same.
    """
    from torch._inductor.decomposition import select_decomp_table

    table = select_decomp_table()

    def functional(mode: Literal["fake", "real"], *args: Any) -> fx.GraphModule:
        # Decomposing may bring in-place operations back (rms_norm's add_ does): functionalize what came out of it.
        graph = make_fx(function, decomposition_table=table, tracing_mode=mode)(*args)
        again = torch.func.functionalize(graph, remove="mutations")
        found = make_fx(again, decomposition_table=table, tracing_mode=mode)(*args)
        found.graph.eliminate_dead_code()
        return _named(found, function)

    if not dynamic_rows:
        return functional("fake", *inputs)
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    fakes: list[Any] = []
    rows = next(v.shape[0] for v in inputs if isinstance(v, torch.Tensor) and v.ndim > 1)
    for value in inputs:
        if isinstance(value, torch.Tensor):
            sizes = [DimDynamic.STATIC] * value.ndim
            if value.ndim and value.shape[0] == rows:
                sizes[0] = DimDynamic.DUCK
            context = StatelessSymbolicContext(dynamic_sizes=sizes)
            fakes.append(mode.from_tensor(value, symbolic_context=context))
        else:
            fakes.append(value)
    with mode:
        return functional("real", *fakes)


def _named(graph: fx.GraphModule, function: Callable[..., Any]) -> fx.GraphModule:
    """Give placeholders the names of the function's parameters."""
    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    names = list(inspect.signature(function).parameters)
    for node, name in zip(placeholders, names, strict=False):
        node._rename(name)
    return graph
