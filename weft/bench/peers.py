"""What a workload is timed against on the CPU: a copy of the same bytes, eager PyTorch, TorchInductor, and weft itself.

*Kernel* candidates run on outputs that exist and were touched before; *whole* candidates are calls as a user makes
them, which allocate their outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._inductor.codecache import PyCodeCache

from weft.bench.timing import Candidate
from weft.bench.workloads import Workload
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.errors import Refusal, RefusedError
from weft.integration.fuse import fuse
from weft.ir.interpret import sizes_of
from weft.ir.simplify import simplify
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.plan.planner import plan
from weft.render import cpp
from weft.runtime import launch
from weft.runtime.layout import allocate
from weft.target import Target


def traffic_bytes(tensors: Sequence[Tensor]) -> int:
    """Bytes of all tensors, each once; an expanded one counts what it holds."""
    return sum(t.untyped_storage().nbytes() for t in {t.untyped_storage().data_ptr(): t for t in tensors}.values())


def copy_candidate(total_bytes: int) -> Candidate:
    """A warm ``copy_`` that moves ``total_bytes``: half of them read, half written."""
    source = torch.randint(0, 255, (max(1, total_bytes // 2),), dtype=torch.uint8)
    target = torch.zeros_like(source)
    return Candidate("copy", lambda: target.copy_(source))


def weft_kernels(
    workload: Workload, inputs: Sequence[Tensor], options: Options, change: Callable[[Kernel], Kernel] = lambda k: k
) -> tuple[Candidate, int]:
    """weft's kernels for a workload, and how many. change: what to run in place of a kernel that was planned. Raises
    RefusedError where weft leaves it to Inductor."""
    graph = trace(workload.fn, inputs).graph
    found = capture(graph, workload.name)
    if len(found.regions) != 1:
        raise RefusedError(found.refusals)
    (region,) = found.regions
    program = simplify(region.program)
    planned = plan(program, Target.current("cpu"))
    if isinstance(planned, Refusal):
        raise RefusedError((planned,))
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    bound = dict(zip(placeholders, inputs, strict=True))
    tensors = {b.name: bound[node] for b, node in zip(region.program.inputs, region.inputs, strict=True)}
    kernels = [change(kernel) for kernel in planned.kernels]
    launch.prepare(kernels, [cpp.render(kernel) for kernel in kernels], options)
    calls: list[tuple[Any, list[Tensor], list[Tensor]]] = []
    sizes = sizes_of(program, ())
    for kernel in kernels:
        for output in kernel.program.outputs:
            tensors[output.buffer.name] = allocate(output.buffer, sizes, torch.device("cpu"))
        executable = launch.find(launch.digest_of(kernel), str(kernel))
        own = [tensors[b.name] for b in kernel.program.inputs]
        calls.append((executable, own, [tensors[o.buffer.name] for o in kernel.program.outputs]))

    def run() -> None:
        for executable, own, outputs in calls:
            executable(own, outputs, ())

    return Candidate("weft kernels", run), len(calls)


def inductor_kernels(workload: Workload, inputs: Sequence[Tensor]) -> tuple[Candidate, int]:
    """TorchInductor's generated kernels for a workload, called on the tensors of one run; and how many."""
    known = set(map(id, PyCodeCache.modules))
    torch._dynamo.reset()
    compiled = torch.compile(workload.fn, fullgraph=True)
    with torch.no_grad():
        compiled(*inputs)
    calls: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
    for module in PyCodeCache.modules:
        for name, function in list(vars(module).items()):
            if name.startswith("cpp_fused") and id(module) not in known:
                setattr(module, name, _recorder(function, calls))
    with torch.no_grad():
        compiled(*inputs)
    if not calls:
        raise RuntimeError(f"TorchInductor's code for {workload.name} has no generated kernels")

    def run() -> None:
        for function, arguments in calls:
            function(*arguments)

    return Candidate("Inductor kernels", run), len(calls)


def _recorder(
    function: Callable[..., object], calls: list[tuple[Callable[..., object], tuple[Any, ...]]]
) -> Callable[..., object]:
    def record(*arguments: Any) -> object:
        calls.append((function, arguments))
        return function(*arguments)

    return record


def whole_candidates(workload: Workload, inputs: Sequence[Tensor], options: Options) -> list[Candidate]:
    """The workload as a function call, outputs allocated by each call: eager, Inductor and weft."""

    def call(function: Callable[..., object]) -> Callable[[], object]:
        def run() -> object:
            with torch.no_grad():
                return function(*inputs)

        return run

    return [Candidate(name, call(function)) for name, function in _compiled(workload.fn, options).items()]


def autograd_candidates(workload: Workload, inputs: Sequence[Tensor], options: Options) -> list[Candidate]:
    """The backward of a forward workload through autograd, with fresh gradients: eager, Inductor and weft. The forward
    before it is not timed."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    gradients = [torch.randn_like(t) for t in workload.outputs(*inputs)]
    return [_backward(name, fn, leaves, gradients) for name, fn in _compiled(workload.fn, options).items()]


def _backward(
    name: str, function: Callable[..., Any], leaves: Sequence[Tensor], gradients: Sequence[Tensor]
) -> Candidate:
    outputs: list[Tensor] = []

    def forward() -> None:
        for leaf in leaves:
            leaf.grad = None
        result = function(*leaves)
        outputs[:] = [result] if isinstance(result, Tensor) else result

    return Candidate(name, lambda: torch.autograd.backward(outputs, gradients), forward)


def _compiled(function: Callable[..., object], options: Options) -> dict[str, Callable[..., object]]:
    torch._dynamo.reset()
    inductor = torch.compile(function, fullgraph=True)
    return {"eager": function, "Inductor": inductor, "weft": fuse(function, cache_dir=options.cache_dir)}
