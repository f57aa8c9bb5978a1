"""What a function is timed against: a copy of the same bytes, eager PyTorch, TorchInductor, and weft itself.

*Kernels* run on outputs that exist and were touched before; a *call* is one as a user makes it, which allocates its
outputs. On a CPU the two differ by the page faults of fresh outputs, so that a call is only compared with a call.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.codecache import PyCodeCache
from torch.utils._python_dispatch import TorchDispatchMode

from weft.backends.listed import render
from weft.bench.case import Case
from weft.bench.correctness import tensors_of
from weft.bench.reason import Reason, UntimedError
from weft.capture.assembly import Slot
from weft.capture.nodes import strides_of
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.errors import Refusal, RefusedError
from weft.integration.fuse import fuse
from weft.ir.interpret import sizes_of
from weft.ir.simplify import simplify
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.planning import Asked, Plans
from weft.runtime import launch, tuning
from weft.runtime.counters import counters
from weft.runtime.layout import allocate
from weft.runtime.timing import Candidate
from weft.target import Target

_EXTERN = re.compile(r"(?:extern_kernels|torch\.ops|aten)\.[\w.]+\(")


def copy_candidate(total_bytes: int, device: str | torch.device = "cpu") -> Candidate:
    """A warm ``copy_`` that moves ``total_bytes``: half of them read, half written."""
    source = torch.randint(0, 255, (max(1, total_bytes // 2),), dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return Candidate("copy", "", lambda: target.copy_(source), kernels=1)


def call_candidate(peer: str, function: Callable[..., Any], inputs: Sequence[Tensor], timed: str = "call") -> Candidate:
    """A function called without gradients."""

    def run() -> Any:
        with torch.no_grad():
            return function(*inputs)

    return Candidate(peer, timed, run)


def eager_call(case: Case) -> Candidate:
    """kernels: operations of ATen that are no views."""
    candidate = call_candidate("eager", case.function, case.inputs)
    with _Counting() as counting:
        candidate.run()
    return replace(candidate, kernels=counting.count)


def weft_call(case: Case, options: Options) -> Candidate:
    """kernels: of weft; what it leaves out runs in those of TorchInductor, which are not counted."""
    of_plan: dict[str, Any] = {"tuned": options.tuned, "mix_order": options.mix_order, "max_reads": options.max_reads}
    fused = fuse(case.function, dynamic=case.dynamic, cache_dir=options.cache_dir, **of_plan)
    candidate = call_candidate("weft", fused, case.inputs)
    candidate.run()
    before = counters.launches
    candidate.run()
    return replace(candidate, kernels=counters.launches - before)


def weft_kernels(case: Case, options: Options, change: Callable[[Kernel], Kernel] = lambda k: k) -> Candidate:
    """weft's kernels for a function. change: what to run in place of a kernel that was planned. Raises RefusedError
    or UntimedError where they do not compute all of it."""
    if isinstance(case.function, torch.nn.Module):
        raise _call_only(f"{case.workload} is a module")
    module = trace(case.function, case.inputs)
    found = capture(module.graph, case.workload)
    if len(found.regions) != 1:
        if found.refusals:
            raise RefusedError(found.refusals)
        raise _call_only(f"{case.workload} is {len(found.regions)} regions")
    (region,) = found.regions
    program = simplify(region.program)
    planned = Plans(tuning.load(options), options.mixed_order).of(Asked(program, Target.current("cpu"), {}))
    if isinstance(planned, Refusal):
        raise RefusedError((planned,))
    known: dict[fx.Node, Any] = dict(zip(module.graph.find_nodes(op="placeholder"), case.inputs, strict=True))
    bound = [view_of(node, known, module) for node in region.inputs]
    tensors = {b.name: t for b, t in zip(region.program.inputs, bound, strict=True)}
    kernels = [change(kernel) for kernel in planned.kernels]
    launch.prepare(kernels, [render(kernel) for kernel in kernels], options)
    calls: list[tuple[Any, list[Tensor], list[Tensor]]] = []
    sizes = sizes_of(program, ())
    outputs = zip(region.program.outputs, region.outputs, region.slots, strict=True)
    results = {output.buffer.name: _empty(node, slot) for output, node, slot in outputs}
    for kernel in kernels:
        for output in kernel.program.outputs:
            name = output.buffer.name
            tensors[name] = results[name] if name in results else allocate(output.buffer, sizes, torch.device("cpu"))
        executable = launch.find(launch.digest_of(kernel), str(kernel))
        own = [tensors[b.name] for b in kernel.program.inputs]
        calls.append((executable, own, [tensors[o.buffer.name] for o in kernel.program.outputs]))
    known |= dict(zip(region.outputs, results.values(), strict=True))
    returned = fx.map_arg(module.graph.output_node().args[0], lambda node: view_of(node, known, module))
    written = tuple(tensor for _, _, outputs in calls for tensor in outputs)

    def run() -> None:
        for executable, own, outputs in calls:
            executable(own, outputs, ())

    return Candidate("weft", "kernels", run, memory=written, outputs=lambda: returned, kernels=len(calls))


def inductor_call(case: Case, peer: str = "inductor", options: dict[str, Any] | None = None) -> Candidate:
    """kernels: those that TorchInductor generated; calls of ATen and of libraries are not counted."""
    compiled = torch.compile(case.function, fullgraph=True, dynamic=case.dynamic, options=options)
    candidate = call_candidate(peer, compiled, case.inputs)
    candidate.run()
    return replace(candidate, kernels=len(_recorded(candidate.run)[1]))


def inductor_kernels(called: Candidate) -> Candidate:
    """TorchInductor's generated kernels on the tensors of one call. Raises UntimedError where they do not compute all
    of it."""
    result, calls = _recorded(called.run)
    outside = {match for module, _, _ in calls for match in _EXTERN.findall(Path(str(module.__file__)).read_text())}
    if outside or not calls:
        message = "calls ATen or libraries beside its generated kernels" if outside else "generated no kernels"
        raise _call_only(message, "inductor kernels")

    def run() -> None:
        for _, function, arguments in calls:
            function(*arguments)

    return Candidate("inductor", "kernels", run, memory=tensors_of(result), outputs=lambda: result, kernels=len(calls))


def _empty(node: fx.Node, slot: Slot | None) -> Tensor:
    """Memory for an output of a region, as the graph has it."""
    value = node.meta["val"]
    return torch.empty_strided(value.shape, strides_of(node) if slot is None else slot.strides, dtype=value.dtype)  # type: ignore[arg-type]


def view_of(node: fx.Node, known: dict[fx.Node, Any], module: fx.GraphModule) -> Any:
    """What a node outside the region is, made of what is known by views. Raises UntimedError if it is computed."""
    if node in known:
        return known[node]
    if node.op == "get_attr":
        return getattr(module, str(node.target))
    if not getattr(node.target, "is_view", False):
        raise _call_only(f"{node.target} is outside the region")
    arguments = fx.map_arg(node.args, lambda n: view_of(n, known, module))
    return node.target(*arguments, **node.kwargs)  # type: ignore[operator]


def _call_only(why: str, name: str = "weft kernels") -> UntimedError:
    return UntimedError(Reason("not_only_kernels", name, f"{why}; timed as a call only"))


Call = tuple[ModuleType, Callable[..., object], tuple[Any, ...]]


def _recorded(run: Callable[[], Any]) -> tuple[Any, list[Call]]:
    """The result of a call of Inductor's code, and the calls of generated kernels in it, with their tensors."""
    calls: list[Call] = []
    kernels = [
        (module, name, function)
        for module in list(PyCodeCache.modules)
        for name, function in list(vars(module).items())
        if name.startswith("cpp_fused")
    ]
    try:
        for module, name, function in kernels:
            setattr(module, name, _recorder(module, function, calls))
        return run(), calls
    finally:
        for module, name, function in kernels:
            setattr(module, name, function)


def _recorder(module: ModuleType, function: Callable[..., object], calls: list[Call]) -> Callable[..., object]:
    def record(*arguments: Any) -> object:
        calls.append((module, function, arguments))
        return function(*arguments)

    return record


class _Counting(TorchDispatchMode):
    """Counts operations that are no views."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not func.is_view
        return func(*args, **(kwargs or {}))
