"""The graphs that weft would be given: a function is compiled up to the end of Inductor's post-grad passes."""

from __future__ import annotations

import copy
import inspect
import logging
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx
from torch._dynamo.utils import detect_fake_mode
from torch._inductor import config as inductor_config

from weft.capture.nodes import VIEWS
from weft.capture.sources import dotted
from weft.explain.calls import call
from weft.integration.partitioner import Exchanges, Partitioner
from weft.integration.passes import partitioned
from weft.integration.report import GRADIENTS, SOURCE
from weft.options import Options

_FAKE_TENSORS = logging.getLogger("torch._subclasses.fake_tensor")
Kind = Literal["forward", "backward", "inference"]


@dataclass(frozen=True)
class PostGradGraph:
    """A functional ATen graph. kind: of a training step the forward or the backward; else inference. exchanges: of a
    backward, in what is kept for it."""

    kind: Kind
    module: fx.GraphModule
    exchanges: Exchanges | None = None


def post_grad_graphs(
    function: Callable[..., Any],
    inputs: Sequence[Any],
    keywords: Mapping[str, Any] | None = None,
    dynamic: bool | None = None,
) -> list[PostGradGraph]:
    """Every graph that Inductor makes of ``function(*inputs)``, with the backward where an input or a parameter needs a
    gradient. The function runs once, uncompiled; on fake tensors, inside a ``FakeTensorMode``, nothing is computed.

    Raises CallError if the function fails on these inputs, in one line that names the user's.
    """
    from functorch.compile import make_boxed_func
    from torch._functorch import config as functorch_config
    from torch._inductor import compile_fx
    from torch._inductor.virtualized import V

    found: list[PostGradGraph] = []
    names: list[str] = []
    exchanged: list[Exchanges] = []

    def keep(gm: fx.GraphModule, example_inputs: Sequence[Any], **facts: Any) -> Callable[..., Any]:
        runnable = copy.deepcopy(gm)  # Inductor's passes leave operators that only its code generator knows
        inference = bool(facts.get("is_inference"))
        compile_fx.view_to_reshape(gm)
        with V.set_fake_mode(detect_fake_mode(example_inputs)):  # type: ignore[arg-type]
            compile_fx._recursive_post_grad_passes(gm, is_inference=inference)
        kind: Kind = "backward" if facts.get("is_backward") else "inference" if inference else "forward"
        _name_inputs(gm, kind, names)
        if kind == "backward":
            _name_gradients(gm, names)
        found.append(PostGradGraph(kind, gm, exchanged.pop() if kind == "backward" and exchanged else None))
        return make_boxed_func(runnable.forward)

    def backend(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        names[:] = [_name(node, function) for node in gm.graph.nodes if node.op == "placeholder"]
        given = partitioned({}, Partitioner(exchanged.append)) if Options.read().remat else {}
        return compile_fx.compile_fx(gm, list(example_inputs), inner_compile=keep, config_patches=given)  # type: ignore[arg-type]

    torch._dynamo.reset()
    uncached = inductor_config.patch(fx_graph_cache=False)
    at_once = functorch_config.patch(force_non_lazy_backward_lowering=True, enable_autograd_cache=False)
    failed: Exception | None = None
    try:
        with uncached, at_once, _silent(_FAKE_TENSORS):
            torch.compile(function, backend=backend, dynamic=dynamic)(*inputs, **(keywords or {}))
    except Exception as error:
        failed = error
    finally:
        torch._dynamo.reset()
    if failed is not None:
        if not isinstance(failed, torch.OutOfMemoryError):
            with _silent(_FAKE_TENSORS):
                call(function, inputs, keywords)
        raise failed
    return found


@contextmanager
def _silent(logger: logging.Logger) -> Generator[None]:
    """What fails is raised, and needs no traceback in the log as well."""
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def _name_inputs(gm: fx.GraphModule, kind: Kind, names: Sequence[str]) -> None:
    """Note on each placeholder that is an input of the function what the user calls it. AOTAutograd numbers them in the
    order of the traced function's inputs, from 1 where there is a backward."""
    pattern, first = (r"arg(\d+)_\d+", 0) if kind == "inference" else (r"primals_(\d+)", 1)
    for node in gm.graph.nodes:
        match = re.fullmatch(pattern, node.name) if node.op == "placeholder" else None
        if match and int(match[1]) - first < len(names):
            node.meta[SOURCE] = (names[int(match[1]) - first],)


def _name_gradients(gm: fx.GraphModule, names: Sequence[str]) -> None:
    """Note on each node that is a gradient, or of which one is a view, whose it is. A backward returns the gradients of
    the traced function's inputs, in their order; what else it returns is described."""
    output = gm.graph.output_node()
    results = output.args[0]
    assert isinstance(results, list | tuple)
    described = output.meta.get("desc") or ()
    for at, node in enumerate(results):
        description = described[at] if len(described) == len(results) else None
        index = at if description is None else getattr(getattr(description, "grad_of", None), "idx", len(names))
        while isinstance(node, fx.Node) and node.op == "call_function" and node.target in VIEWS:
            node = node.args[0]
        if isinstance(node, fx.Node) and index < len(names):
            node.meta[GRADIENTS] = (*node.meta.get(GRADIENTS, ()), names[index])


def _name(placeholder: fx.Node, function: Callable[..., Any]) -> str:
    """What the user calls an input of the graph that dynamo made of a function."""
    source = getattr(getattr(placeholder.meta.get("grapharg"), "source", None), "name", None)
    source = source() if callable(source) else source
    return readable(source, function) if isinstance(source, str) else placeholder.name


def readable(source: str, function: Callable[..., Any]) -> str:
    """The user's name behind that of dynamo: ``L['self']._modules['norm']._parameters['weight']`` is ``norm.weight``.
    Modules of torch are called through ``args`` and ``kwargs``, which have the names of the module's own parameters."""
    name = dotted(source)
    try:
        call = function.forward if isinstance(function, torch.nn.Module) else function
        parameters = inspect.signature(call).parameters
    except ValueError:  # a function of C++ has none
        return name
    if (found := re.fullmatch(r"kwargs\.(.+)", name)) and "kwargs" not in parameters:
        return found[1]
    if (found := re.fullmatch(r"args\.(\d+)(.*)", name)) and "args" not in parameters:
        for at, parameter in enumerate(parameters.values()):
            if parameter.kind is parameter.VAR_POSITIONAL:
                return f"{parameter.name}.{int(found[1]) - at}{found[2]}"
            if at == int(found[1]):
                return parameter.name + found[2]
    return name
