"""The pipeline on one page. Every stage is a pure function with a printable result; stop after any of them.

    capture   fx.Graph          -> Regions, each with a Program, and a Refusal for every node left out
    simplify  Program           -> Program in canonical form
    plan      Program, Target   -> Plan: kernels, schedules, every Decision; or the Refusal of the whole region
    render    Kernel            -> Source
    build     Source            -> a compiled function, from the cache if it is there
    launch    tensors           -> tensors, through the operator weft::launch

``compile_graph`` goes up to render for all regions of a graph, so that nothing is compiled twice and nothing is changed
before everything is known; ``build`` compiles the kernels side by side.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from torch import fx

from weft.backends.listed import render, supports
from weft.backends.resource_usage import ResourceUsage
from weft.backends.source import Source
from weft.capture.border import BorderChoice
from weft.capture.pointwise import check_alone
from weft.capture.prepare import prepare
from weft.capture.regions import Capture, Region, capture
from weft.errors import CompilerNotFoundError, Refusal, in_stage
from weft.interrupted import Piece, check_interrupted
from weft.ir.program import Program
from weft.ir.simplify import simplify
from weft.ir.verify import verify
from weft.logs import LOGS
from weft.machines import Machines, check_device
from weft.options import Options
from weft.plan.cost import estimates
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import ordinary_us
from weft.plan.schedules import resources
from weft.plan.tuned import NONE, Tuned, TunedSchedules
from weft.plan.verify import verify_plan
from weft.planning import Asked, Plans, hints_of
from weft.runtime import head_start, launch
from weft.runtime.counters import counters
from weft.runtime.failures import check_run_time_failure, has_failed
from weft.runtime.misses import is_missed, without_miss
from weft.runtime.raced import Raced
from weft.target import Target

T = TypeVar("T")
_PLAN_LOG = logging.getLogger(LOGS["plan"])


@dataclass(frozen=True)
class CompiledRegion:
    """One region with the result of every stage up to the source of its kernels. race: its outcome, or why it was not
    raced; None where nothing is."""

    region: Region
    program: Program
    plan: Plan
    sources: tuple[Source, ...]
    race: Raced | Refusal | None = None


@dataclass(frozen=True)
class Compilation:
    """What became of a graph: regions with kernels, a reason for everything else, and what crosses the borders."""

    regions: tuple[CompiledRegion, ...]
    refusals: tuple[Refusal, ...]
    borders: BorderChoice | None = None

    def __str__(self) -> str:
        return "\n".join([*(f"{r.program}\n{r.plan}" for r in self.regions), *map(str, self.refusals)])

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return tuple(kernel for region in self.regions for kernel in region.plan.kernels)


def compile_graph(
    graph: fx.Graph,
    name: str | None = None,
    symbols: Mapping[Any, int] | None = None,
    target: Target | None = None,
    tuned: TunedSchedules = NONE,
    rendered: Callable[[CompiledRegion], object] | None = None,
    options: Options | None = None,
) -> Compilation:
    """All stages up to render for every region of a functional ATen graph.

    name: of every program, by default what it computes. symbols: likely values of the graph's symbolic sizes. target:
    the machine to plan for; by default the one at hand. tuned: measured schedules, of any machines. rendered: is told
    of each region as soon as its sources are there. options: by default those of the environment.
    """
    options = options or Options.read()
    machines = Machines(target, options)
    with in_stage("capture"):
        prepare(graph)
        captured: Capture = capture(graph, name)
    regions: list[CompiledRegion] = []
    refusals = list(captured.refusals)
    plans, asked = Plans(tuned, options.mixed_order), list[tuple[Region, Asked]]()
    apart = check_alone(captured.regions)
    refusals += apart.values()
    for region in (region for at, region in enumerate(captured.regions) if at not in apart):
        found = _unless_failing(region, partial(_asked, region, symbols or {}, machines))
        if isinstance(found, Refusal):
            refusals.append(found)
        else:
            asked.append((region, found))
            plans.begin(found)
    for region, each in asked:
        compiled = _unless_failing(region, partial(compile_region, region, each, plans, target is not None))
        if isinstance(compiled, Refusal):
            refusals.append(compiled)
        else:
            regions.append(compiled)
            if rendered is not None and not captured.interrupted:
                rendered(compiled)
    apart = check_alone([compiled.region for compiled in regions])
    refusals += apart.values()
    regions = [compiled for at, compiled in enumerate(regions) if at not in apart]
    if captured.interrupted:
        pieces = [Piece(compiled.region, compiled.plan.predicted_us) for compiled in regions]
        prices: dict[str, float | None] = {}
        left_out = check_interrupted(
            graph, captured.interrupted, pieces, lambda region: _ordinary_us(region, symbols or {}, machines, prices)
        )
        refusals += [_of_region(pieces[at].region, refusal) for at, refusal in left_out.items()]
        regions = [compiled for at, compiled in enumerate(regions) if at not in left_out]
        for compiled in regions:
            if rendered is not None:
                rendered(compiled)
    return Compilation(tuple(regions), tuple(refusals), captured.borders)


def _unless_failing(region: Region, step: Callable[[], T]) -> T | Refusal:
    """A step of the pipeline; after a defect of weft the region is left out, and the rest goes on."""
    try:
        return step()
    except Exception as error:
        return failure(region, error)


def _asked(region: Region, symbols: Mapping[Any, int], machines: Machines) -> Asked | Refusal:
    """What the plan of a region depends on, or why there is none."""
    machine = machines.of(region)
    if isinstance(machine, Refusal):
        return _of_region(region, machine)
    with in_stage("simplify"):
        return Asked(verify(simplify(region.program)), machine, hints_of(region, symbols))


def compile_region(region: Region, asked: Asked, plans: Plans, for_reading: bool) -> CompiledRegion | Refusal:
    """One region from program to sources, or the reason why not. for_reading: it may be for a machine that is not at
    hand, and has no sources then."""
    program, machine = asked.program, asked.target
    with in_stage("plan"):
        planned = plans.of(asked)
        if isinstance(planned, Refusal):
            return _of_region(region, planned)
        verify_plan(planned, program)
        _PLAN_LOG.info("%s", planned)
        digests = [launch.digest_of(kernel) for kernel in planned.kernels]
        if (refusal := check_run_time_failure(program.name, digests)) is not None:
            return _of_region(region, refusal)
    if (refusal := check_device(planned, machine)) is not None:
        return CompiledRegion(region, program, planned, ()) if for_reading else _of_region(region, refusal)
    with in_stage("render"):
        for kernel in planned.kernels:
            if (refusal := supports(kernel, machine)) is not None:
                return _of_region(region, refusal)
        sources = tuple(render(kernel) for kernel in planned.kernels)
    return CompiledRegion(region, program, planned, sources)


def _ordinary_us(
    region: Region, symbols: Mapping[Any, int], machines: Machines, prices: dict[str, float | None]
) -> float | None:
    """Predicted time of a region in ordinary kernels, if it can be told. prices: of the graph so far, by what decides
    them."""
    machine = machines.of(region)
    if isinstance(machine, Refusal):
        return None
    program, known = simplify(region.program), hints_of(region, symbols)
    identity = f"{program}{known}{machine}"
    if identity not in prices:
        prices[identity] = ordinary_us(program, machine, known)
    return prices[identity]


def begin_build(region: CompiledRegion, options: Options) -> None:
    """Have other processes begin with the kernels of a region while this one plans the next; ``build`` finds them."""
    plan = region.plan
    for kernel, source, measured in zip(plan.kernels, region.sources, plan.measurements, strict=True):
        target = None if isinstance(measured, Tuned) else plan.target
        head_start.begin([kernel], [source], [plan.hints], options, target)


def build(compilation: Compilation, options: Options) -> Compilation:
    """Compile all kernels, several at a time, and make them known to ``weft::launch``.

    A region with a kernel that cannot be built becomes a refusal; the others stay.
    """
    try:
        hints = [r.plan.hints for r in compilation.regions for _ in r.plan.kernels]
        launch.prepare(compilation.kernels, [s for r in compilation.regions for s in r.sources], options, hints)
    except Exception:  # of which region? Kernels that were built are found in the cache
        compilation = without_failing(compilation, "build", lambda region: _prepare(region, options))
    return replace(compilation, regions=tuple(_without_misses(r, options) for r in compilation.regions))


def _without_misses(region: CompiledRegion, options: Options) -> CompiledRegion:
    """A region with the runner-up in place of each schedule whose kernel spills registers after all, or takes more than
    it was to have: a miss of the model. Kept as it is where no runner-up is better or can be built, and where it was
    measured to be the best."""
    kernels = [
        kernel if isinstance(measured, Tuned) else _without_miss(kernel, region.plan, options)
        for kernel, measured in zip(region.plan.kernels, region.plan.measurements, strict=True)
    ]
    if kernels == list(region.plan.kernels):
        return region
    target, hints = region.plan.target, region.plan.hints
    plan = replace(
        region.plan,
        kernels=tuple(kernels),
        estimates=estimates(kernels, target, hints),
        resources=tuple(resources(kernel, target) for kernel in kernels),
    )
    return replace(region, plan=plan, sources=tuple(render(kernel) for kernel in kernels))


def _without_miss(kernel: Kernel, plan: Plan, options: Options) -> Kernel:
    """The kernel or, if it is a miss, the best of it and of runners-up."""
    if (other := launch.running(kernel)) != kernel:
        return other
    used, target = launch.usage(kernel), plan.target
    counters.add(model_misses=int(is_missed(kernel, used, target)))
    return without_miss(kernel, used, target, plan.hints, partial(_built, plan=plan, options=options))[0]


def _built(kernel: Kernel, plan: Plan, options: Options) -> ResourceUsage | None:
    """What a kernel uses that is compiled in place of another one; None if it cannot be written or has failed."""
    if supports(kernel) is not None or has_failed(launch.digest_of(kernel)):
        return None
    launch.prepare([kernel], [render(kernel)], options, [plan.hints])
    return launch.usage(kernel)


def _prepare(region: CompiledRegion, options: Options) -> None:
    kernels = region.plan.kernels
    launch.prepare(kernels, region.sources, options, [region.plan.hints] * len(kernels))


def without_failing(compilation: Compilation, stage: str, step: Callable[[CompiledRegion], object]) -> Compilation:
    """Do a step of the pipeline for every region; those for which it fails become refusals."""
    regions: list[CompiledRegion] = []
    refusals = list(compilation.refusals)
    for compiled in compilation.regions:
        try:
            with in_stage(stage):
                step(compiled)
        except Exception as error:
            refusals.append(failure(compiled.region, error))
        else:
            regions.append(compiled)
    return replace(compilation, regions=tuple(regions), refusals=tuple(refusals))


def failure(region: Region, error: Exception) -> Refusal:
    """The refusal of a region for which a stage failed; the stage is in the error's text."""
    if isinstance(error, CompilerNotFoundError):
        return _of_region(region, Refusal("no_compiler", region.program.name, str(error)))
    return _of_region(region, Refusal("internal_error", region.program.name, str(error)))


def _of_region(region: Region, refusal: Refusal) -> Refusal:
    """A refusal of a whole region names its first user line."""
    where = region.lines[0] if region.lines else None
    return replace(refusal, where=where)
