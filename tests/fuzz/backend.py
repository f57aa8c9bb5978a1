"""A backend like weft's own without Inductor: the rewritten graphs run node by node, the kernels are compiled.

Dynamo, AOTAutograd and Inductor's decompositions are as in ``torch.compile(backend="weft")``; Inductor's own passes
and code generation, which take seconds a graph, are not there. Every region gets a legal plan drawn from a seed, worth
its while or not, so that all plans are tried and not only those the cost model likes. Where kernels are not compiled
either, their programs are evaluated: that tries capture, plans and rewriting alone, several times as fast.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd

from tests.fuzz.native import compile_sources
from tests.fuzz.outcome import Mismatch
from weft import compiler, planning
from weft.errors import Refusal
from weft.integration.rewrite import rewrite
from weft.integration.sizes import symbol_hints
from weft.ir.program import Program
from weft.plan import planner
from weft.plan.kernel import Plan
from weft.runtime import launch, launcher
from weft.runtime.executable import Executable, digest_of
from weft.target import Target


class GraphBackend:
    """Counts the kernels it makes. ``native``: compile them, rather than evaluate their programs."""

    def __init__(self, seed: int, native: bool) -> None:
        self.draw, self.native, self.kernels = random.Random(seed), native, 0

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from functorch.compile import min_cut_rematerialization_partition
        from torch._inductor.decomposition import select_decomp_table

        backend = aot_autograd(
            fw_compiler=self._compile,
            bw_compiler=self._compile,
            decompositions=select_decomp_table(),
            partition_fn=min_cut_rematerialization_partition,
        )
        return backend(gm, inputs)

    def _compile(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func

        with mock.patch.object(planning, "plan", self._plan):
            found = compiler.compile_graph(gm.graph, symbols=symbol_hints(gm.graph))
        for refusal in found.refusals:
            if refusal.rule == "internal_error":
                raise Mismatch("internal_error", str(refusal))
        if found.regions:
            sources = [source for region in found.regions for source in region.sources]
            functions = compile_sources(sources) if self.native else {}
            for kernel in found.kernels:
                launch._KERNELS[digest_of(kernel)] = Executable(kernel, functions[kernel.name] if self.native else None)
            rewrite(gm.graph, found)
            gm.recompile()
        return make_boxed_func(gm.forward)

    def _plan(
        self, program: Program, target: Target, hints: Mapping[str, int] | None = None, *_: Any
    ) -> Plan | Refusal:
        """Some legal plan, with tiles and chunks drawn as well."""
        candidates = [planner.plan_split(program, *split, target, hints or {}) for split in planner.splits(program)]
        legal = [c for c in candidates if isinstance(c, Plan)]
        if not legal:
            return planner.plan(program, target, hints)
        plan = self.draw.choice(sorted(legal, key=lambda p: len(p.kernels))[:3])
        kernels = []
        for kernel in plan.kernels:
            tile, chunk = self.draw.choice(((8, 64), (8, 64), (3, 7), (2, 16)))
            schedule = replace(kernel.schedule, rows_per_tile=tile, rows_per_chunk=chunk)
            named = replace(kernel.program, name=f"k{self.kernels}")
            kernels.append(replace(kernel, program=named, schedule=schedule))
            self.kernels += 1
        return replace(plan, kernels=tuple(kernels))


def reset() -> None:
    """Forget everything compiled so far."""
    launch._KERNELS.clear()
    launcher.forget()
    torch._dynamo.reset()
