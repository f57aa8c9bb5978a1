"""Races: a region in weft's kernels against TorchInductor's code for the same nodes, timed while a graph is compiled.

Both sides are graphs of their own that TorchInductor compiles, one with launches in the place of the region's nodes,
the other without; so both have the same code around them, and both allocate what they write. What TorchInductor would
fuse with the region's neighbours is not in the race: its code is kept only if it is faster by more than the noise.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch._functorch.config as functorch_config
from torch import Tensor, fx
from torch._guards import tracing
from torch._inductor import config as inductor_config
from torch.utils._python_dispatch import _disable_current_modes

from weft.capture.pointwise import check_alone
from weft.compiler import Compilation, CompiledRegion
from weft.errors import Refusal
from weft.integration.extract import Symbols, extract, is_whole, layout_of, number, results, tensors_of
from weft.integration.passes import SLOT, without_mix_order
from weft.integration.rewrite import rewrite
from weft.integration.roundings import keep_roundings
from weft.ir.names import plain_names, renamed_program
from weft.options import Options
from weft.plan.tuned import plain
from weft.runtime import raced
from weft.runtime.executable import digest_of, reason_of
from weft.runtime.failures import check_run_time_failure
from weft.runtime.layout import random_tensor
from weft.runtime.package import package_digest
from weft.runtime.raced import Raced
from weft.runtime.timing import FLUSH_BYTES, times_us

ROUNDS, BUDGET_S = 15, 2.0
"""Fewer rounds on a CPU where they take longer than that."""
LARGEST_INTEGER = 64
"""Integers of inputs are smaller, and smaller than each dimension: they may be indices, also into the smallest."""
MEMORY_FACTOR = 3
"""Times the bytes of what a region reads and writes: random numbers are drawn in 32 bits, and either side may have
tensors in between."""
ALONE: dict[str, Any] = {
    SLOT: None,
    "post_grad_custom_pre_pass": None,
    "fx_graph_cache": False,
    "fx_graph_remote_cache": False,
    "bundle_triton_into_fx_graph_cache": False,
    "triton.cudagraphs": False,
}
"""TorchInductor's configuration for a graph inside of another one's compile: the user's passes have seen its nodes, and
its code is no part of what is cached of the other."""
Outcome = Raced | Refusal | None


def race(compilation: Compilation, symbols: Symbols, options: Options) -> Compilation:
    """Run the race of every region, or take its outcome from the cache. What TorchInductor's code wins becomes a
    refusal; other regions have their outcome, or why there is none. Equal regions are raced once. symbols: values of
    the graph's."""
    return _without_lost(measured(compilation, symbols, options))


def with_known(compilation: Compilation, options: Options) -> Compilation:
    """As ``race``, with the outcomes that are in the cache and no others, of compiles with TorchInductor's options at
    hand; none if races are not asked for."""
    if not options.race:
        return compilation
    with inductor_config.patch(without_mix_order()):
        return _without_lost(_with_outcomes(compilation, lambda _, identity: raced.find(identity, options)))


def measured(compilation: Compilation, symbols: Symbols, options: Options) -> Compilation:
    """As ``race``, for reading: every region has its outcome, and those that lose are not left out."""
    return _with_outcomes(compilation, lambda compiled, identity: _outcome(compiled, identity, symbols, options))


def _with_outcomes(
    compilation: Compilation, outcome_of: Callable[[CompiledRegion, dict[str, Any]], Outcome]
) -> Compilation:
    """Regions with the outcomes of their races; equal ones have the same."""
    outcomes: dict[str, Outcome] = {}
    regions: list[CompiledRegion] = []
    for compiled in compilation.regions:
        identity = identity_of(compiled)
        key = raced.key_of(identity)
        if key not in outcomes:
            outcomes[key] = outcome_of(compiled, identity)
        regions.append(replace(compiled, race=outcomes[key]))
    return replace(compilation, regions=tuple(regions))


def _without_lost(compilation: Compilation) -> Compilation:
    """Without the regions that TorchInductor's code won, or whose kernels failed in the race."""
    regions: list[CompiledRegion] = []
    refusals = list(compilation.refusals)
    for compiled in compilation.regions:
        refusal = check_faster(compiled) or _check_ran(compiled)
        if refusal is None:
            regions.append(compiled)
        else:
            refusals.append(refusal)
    apart = check_alone([compiled.region for compiled in regions])
    left = tuple(compiled for at, compiled in enumerate(regions) if at not in apart)
    return replace(compilation, regions=left, refusals=(*refusals, *apart.values()))


def check_faster(compiled: CompiledRegion) -> Refusal | None:
    """A region is left to TorchInductor whose code for it was measured to be faster."""
    outcome = compiled.race
    if not isinstance(outcome, Raced) or not outcome.is_lost:
        return None
    predicted = compiled.plan.predicted_us
    message = f"was predicted to take {predicted:.1f} us; Inductor's code for the same nodes is faster"
    figures = {"predicted_us": predicted, "ratio": outcome.ratio, "margin": outcome.margin}
    measured = round(outcome.us, 1), round(outcome.inductor_us, 1)
    return Refusal("race_lost", compiled.program.name, message, *measured, _place(compiled), figures)


def check_memory(compiled: CompiledRegion, symbols: Symbols) -> Refusal | None:
    """A race must not run out of memory."""
    region = compiled.region
    values = [node.meta["val"] for node in dict.fromkeys((*tensors_of(region), *results(region)))]
    device = values[-1].device
    needed = FLUSH_BYTES * (device.type == "cuda") + MEMORY_FACTOR * sum(_bytes(value, symbols) for value in values)
    if needed <= (free := _free_bytes(device)):
        return None
    return Refusal("not_raced", compiled.program.name, "there is too little free memory", needed, free)


def identity_of(compiled: CompiledRegion) -> dict[str, Any]:
    """Everything that the outcome of a region's race depends on. Of TorchInductor's configuration that is the numbers
    and switches; what else there is are paths and names."""
    program, plan = compiled.program, compiled.plan
    names = plain_names(program)
    versions = {"weft": package_digest(), "torch": torch.__version__, "python": platform.python_version()}
    with suppress(PackageNotFoundError):
        versions["triton"] = version("triton")
    with inductor_config.patch(ALONE):
        settings: dict[str, Any] = inductor_config.get_config_copy()  # pyright: ignore[reportAttributeAccessIssue]
    return {
        "program": str(replace(renamed_program(program, names), name="region")),
        "kernels": [str(plain(kernel)) for kernel in plan.kernels],
        "sizes": {names.parameters[name]: size for name, size in plan.hints.items() if name in names.parameters},
        "device": plan.target.device or plan.target.name,
        "threads": torch.get_num_threads() if plan.target.kind == "cpu" else 0,
        "versions": versions,
        "inductor": {name: own for name, own in settings.items() if isinstance(own, bool | int | float)},
    }


def _outcome(compiled: CompiledRegion, identity: dict[str, Any], symbols: Symbols, options: Options) -> Raced | Refusal:
    name = compiled.program.name
    if not is_whole(compiled.region):
        return Refusal("not_raced", name, "it writes a part of a tensor that other regions write as well")
    try:
        if (found := raced.find(identity, options)) is not None:
            return found
        if (refusal := check_memory(compiled, symbols)) is not None:
            return refusal
        return raced.once(name, identity, lambda: _run(compiled, symbols, options), options)
    except Exception as error:  # whatever is wrong with the race, the region is as good as without one
        return Refusal("not_raced", name, " ".join(reason_of(error).split()))


def _run(compiled: CompiledRegion, symbols: Symbols, options: Options) -> Raced:
    """The race itself. Raises what TorchInductor, a kernel or the profiler raises."""
    device = compiled.region.outputs[0].meta["val"].device
    on_device = torch.cuda.device(device) if device.type == "cuda" else nullcontext()
    plainly = torch.no_grad(), torch.autocast(device.type, enabled=False)
    settings = inductor_config.patch(ALONE), functorch_config.patch(bundled_autograd_cache=False)
    with ExitStack() as stack:
        for each in (_disable_current_modes(), tracing(None), on_device, *plainly, *settings):
            stack.enter_context(each)
        tensors = _inputs(compiled, symbols, device)
        own, inductor = (side(compiled, symbols, options) for side in (_with_launches, _without))
        runs: list[Callable[[], Any]] = [lambda side=side: side([*tensors]) for side in (own, own, inductor)]
        first, again, others = times_us(runs, ROUNDS, device, BUDGET_S)
        return Raced.of(first, again, others, device.type)


def _inputs(compiled: CompiledRegion, symbols: Symbols, device: torch.device) -> list[Tensor]:
    """Random ones, one for each placeholder of an extract, the same every time."""
    region, generator = compiled.region, torch.Generator(device).manual_seed(0)
    known = region.parameters
    sizes = [known[dim.size] if isinstance(dim.size, str) else dim.size for dim in region.program.dims]
    largest = min([LARGEST_INTEGER, *(max(1, number(size, symbols)) for size in sizes)])
    values = [node.meta["val"] for node in tensors_of(region)]
    return [random_tensor(*layout_of(value, symbols), value.dtype, generator, largest) for value in values]


def _with_launches(compiled: CompiledRegion, symbols: Symbols, options: Options) -> Callable[[list[Tensor]], Any]:
    """The region in weft's kernels, as a graph has them; what they compute is not compared with the reference."""
    small = extract(compiled.region, symbols)
    found = Compilation((replace(compiled, region=small.region),), ())
    done = rewrite(small.module.graph, found, replace(options, check="off"))
    if done.refusals:
        raise RuntimeError(f"the launches cannot be put into a graph of their own: {done.refusals[0]}")
    small.module.recompile()
    return _compiled(small.module, small.inputs)


def _without(compiled: CompiledRegion, symbols: Symbols, _: Options) -> Callable[[list[Tensor]], Any]:
    """The region in TorchInductor's code, as a graph has it."""
    small = extract(compiled.region, symbols)
    keep_roundings(small.module.graph)
    small.module.recompile()
    return _compiled(small.module, small.inputs)


def _compiled(module: fx.GraphModule, inputs: Sequence[Tensor]) -> Callable[[list[Tensor]], Any]:
    """What TorchInductor compiles a graph to: a function of a list, which it empties."""
    from torch._inductor.compile_fx import compile_fx_inner

    made: Any = compile_fx_inner(module, [*inputs])
    return made


def _check_ran(compiled: CompiledRegion) -> Refusal | None:
    """A kernel may fail in a race as at run time."""
    refusal = check_run_time_failure(compiled.program.name, map(digest_of, compiled.plan.kernels))
    return None if refusal is None else replace(refusal, where=_place(compiled))


def _place(compiled: CompiledRegion) -> str | None:
    return compiled.region.lines[0] if compiled.region.lines else None


def _bytes(value: Tensor, symbols: Symbols) -> int:
    """Of the memory that a tensor lies in."""
    shape, strides, offset = layout_of(value, symbols)
    return value.itemsize * (offset + 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)))


def _free_bytes(device: torch.device) -> int:
    """Of memory, what nobody uses; on a GPU with what PyTorch keeps for the next tensors."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    with suppress(OSError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("MemAvailable:")))
    return 2**63 - 1
