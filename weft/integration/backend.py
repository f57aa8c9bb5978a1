"""``torch.compile(model, backend="weft")``: TorchInductor with a pass that hands regions to weft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from copy import deepcopy
from functools import partial
from importlib.metadata import entry_points
from threading import Thread
from typing import Any, cast

import torch
from torch import fx
from torch._dynamo.backends.registry import register_backend
from torch._inductor import config as inductor_config
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch._inductor.virtualized import V

from weft import compiler
from weft.backends.listed import calls_on, devices
from weft.errors import CompilerNotFoundError, Refusal, RefusedError, warn_once
from weft.integration.option_names import split
from weft.integration.partitioner import Partitioner
from weft.integration.passes import SLOT, configured, in_turn, partitioned, without_mix_order
from weft.integration.race import race
from weft.integration.report import record
from weft.integration.rewrite import rewrite
from weft.integration.roundings import keep_roundings
from weft.integration.sizes import symbol_hints
from weft.logs import turn_on
from weft.machines import target_of
from weft.options import Options
from weft.runtime import calibration, compile_workers, head_start, launch, launcher, tuning
from weft.runtime.build import find_compiler
from weft.runtime.counters import counters
from weft.runtime.failures import failed_digests
from weft.runtime.package import package_digest
from weft.target import Target


class _NotBuiltError(Exception):
    """A region that is in a graph already has a kernel that cannot be built."""


class WeftPass(CustomGraphPass):
    """Runs on every post-grad graph."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._later: list[Callable[[], object]] | None = None
        self._failed = False

    def compile_inner(self, graph_module: fx.GraphModule, example_inputs: Sequence[Any], **named: Any) -> Any:
        """``compile_fx_inner``, with kernels built by other processes while TorchInductor generates code. If one cannot
        be built, all of the graph is compiled once more, with kernels built before any code is generated."""
        from torch._inductor.compile_fx import compile_fx_inner

        graph, self._failed = deepcopy(graph_module.graph), False
        try:
            with launch.building_later() as self._later:
                compiled = compile_fx_inner(graph_module, example_inputs, **named)
                for build in self._later:  # of launches that are not in the code
                    build()
                return compiled
        except Exception:  # TorchInductor has its own for whatever is raised where its code is loaded
            if not self._failed:
                raise
        finally:
            self._later = None
        graph_module.graph = graph
        return compile_fx_inner(graph_module, example_inputs, **named)

    def __call__(self, graph: fx.Graph) -> None:
        counters.add(pass_calls=1)
        try:
            compilation = self._replace_regions(graph)
            if check_ahead_of_time() is None:
                keep_roundings(graph)
        except RefusedError:
            raise
        except Exception as error:
            warn_once(f"weft: a graph is left to Inductor: {type(error).__name__}: {error}")
            return
        if compilation is not None:
            self._tell(compilation)

    def _tell(self, compilation: compiler.Compilation) -> None:
        """Count and report what became of a graph."""
        for refusal in compilation.refusals:
            counters.refusals[refusal.rule] += 1
            if refusal.rule in ("internal_error", "no_compiler", "ahead_of_time"):
                warn_once(f"weft: a region is left to Inductor: {refusal}")
        record(compilation)
        plans = [region.plan for region in compilation.regions]
        counters.cuts.update(refusal.rule for plan in plans for refusal in plan.cuts)
        counters.add(
            regions=len(plans),
            kernels=sum(len(p.kernels) for p in plans),
            mixed_order_kernels=sum(kind == "mixed-order" for p in plans for kind in p.kinds),
        )

    def _replace_regions(self, graph: fx.Graph) -> compiler.Compilation | None:
        """Compile and rewrite; in strict mode stop before anything changes if something would be left out. None if
        kernels are built later."""
        if (refusal := check_ahead_of_time()) is not None:
            return self._complete(compiler.Compilation((), (refusal,)))
        kinds = {getattr(getattr(node.meta.get("val"), "device", None), "type", "") for node in graph.nodes}
        for calls in (each for kind in kinds for each in calls_on(kind)):
            calls.expect(self.options)
        compilation = self._complete(self._compile(graph))
        if not compilation.regions:
            return compilation
        if self._later is not None and self._may_build_later(compilation):
            compilation = self._complete(rewrite(graph, compilation, self.options))
            self._later.append(partial(self._build, compilation))
            return None
        compilation = self._complete(compiler.build(compilation, self.options))
        if self.options.race:
            compilation = self._complete(race(compilation, symbol_hints(graph), self.options))
        return self._complete(rewrite(graph, compilation, self.options))

    def _may_build_later(self, compilation: compiler.Compilation) -> bool:
        """Whether other processes build all kernels, and nobody wants any of these before code is generated. In C++
        nothing waits for them."""
        before = self.options.race or inductor_config.cpp_wrapper
        return not before and head_start.covers(compilation.kernels, self.options)

    def _build(self, planned: compiler.Compilation) -> None:
        """Build kernels that are in the graph already. Raises _NotBuiltError."""
        built = compiler.build(planned, self.options)
        if len(built.regions) < len(planned.regions):
            self._failed = True
            raise _NotBuiltError
        for kernel, other in zip(planned.kernels, built.kernels, strict=True):
            if kernel != other:
                launch.stand_in(kernel, other, self.options)
        self._tell(built)

    def _compile(self, graph: fx.Graph) -> compiler.Compilation:
        def begin(region: compiler.CompiledRegion) -> None:
            compiler.begin_build(region, self.options)

        tuned = tuning.load(self.options)
        return compiler.compile_graph(
            graph, symbols=symbol_hints(graph), tuned=tuned, rendered=begin, options=self.options
        )

    def _complete(self, compilation: compiler.Compilation) -> compiler.Compilation:
        if self.options.strict and compilation.refusals:
            record(compilation)
            raise RefusedError(compilation.refusals)
        return compilation

    def uuid(self) -> Any:
        """Everything that changes what the pass does to a graph, and nothing else: part of Inductor's cache key, which
        has the release of PyTorch and the model of the GPU already; what was measured of it is another matter. Tables
        are for a model of CPU as well, kernels that failed are left out, and beside kernels of other ranks none may
        wait."""
        own = (package_digest(), self.options.of_graph, tuning.digest(self.options), Target.current().name)
        return (*own, calibration.digest(self.options), failed_digests(), calibration.is_distributed())


def check_ahead_of_time() -> Refusal | None:
    """What AOTInductor compiles runs without Python, which weft's kernels are found and built with."""
    if not V.aot_compilation:
        return None
    return Refusal("ahead_of_time", "graph", "a package of AOTInductor cannot call weft's kernels")


def weft_backend(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: dict[str, Any] | None = None, **kwargs: Any
) -> Callable[..., Any]:
    """The backend behind the name "weft".

    options: fields of ``weft.options.Options``; any other key is an option of TorchInductor, ValueError if it is none.
    ``mode`` is passed on. Passes of the user's over post-grad graphs run before weft's. Without a C++ compiler a CPU
    model runs in eager mode, with one warning that says what to install.
    """
    own, patches = split(options or {}, kwargs.get("mode"))
    chosen = Options.read(own)
    turn_on(chosen.logs)
    devices = {t.device.type for t in example_inputs if isinstance(t, torch.Tensor)}
    if "cuda" in devices:
        start_workers()
    from torch._inductor import compile_fx

    if "cuda" in devices:
        Thread(target=launcher.load, args=(chosen,), daemon=True).start()  # 3 s of g++, beside the tracing
        for device in {t.device for t in example_inputs if isinstance(t, torch.Tensor) and t.device.type == "cuda"}:
            target_of(device, "graph", chosen)  # measures a GPU that nothing is known of: the keys of graphs have that
    try:
        if devices <= {"cpu"}:
            find_compiler(chosen)
    except CompilerNotFoundError as error:
        warn_once(f"weft: the model runs in eager mode: {error}")
        return gm.forward
    weft_pass = WeftPass(chosen)
    patches[SLOT] = in_turn([*configured(patches), weft_pass])
    if chosen.remat:
        patches |= partitioned(patches, Partitioner())
    patches = without_mix_order() | patches
    compiled = compile_fx.compile_fx(
        gm, list(example_inputs), inner_compile=weft_pass.compile_inner, config_patches=patches
    )
    return cast(Callable[..., Any], compiled)


def start_workers() -> None:
    """Start compile processes, which takes them seconds, unless they run."""
    with ExitStack() as around:
        for calls in calls_on("cuda"):
            around.enter_context(calls.around_workers())
        compile_workers.start()


def supports_cuda() -> bool:
    """Whether there is a backend for NVIDIA GPUs, and the Triton that it needs."""
    return "cuda" in devices()


# PyTorch registers what an installed weft's entry point names under that name; once more would be an error. A checkout
# that is not installed has no entry point.
if not entry_points(group="torch_dynamo_backends", name="weft"):
    register_backend(weft_backend, name="weft")
