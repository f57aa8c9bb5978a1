"""``weft.explain``: what would share a kernel on a machine, without compiling or running anything on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from weft.compiler import Compilation, build, compile_graph
from weft.explain.drawing import size_text
from weft.explain.explained import PLAN_ONLY, EqualRegions, ExplainedGraph, border_lines, count_text, exchange_lines
from weft.explain.graphs import post_grad_graphs
from weft.explain.html import page
from weft.explain.inputs import device_of, with_tensors
from weft.integration.backend import supports_cuda
from weft.integration.race import measured, with_known
from weft.integration.report import refusal_lines, region_lines
from weft.integration.sizes import symbol_hints
from weft.options import Options
from weft.runtime import calibration, tuning
from weft.runtime.raced import Raced
from weft.target import Target

if TYPE_CHECKING:
    from rich.table import Table

WIDEST = 400


@dataclass(frozen=True)
class Explanation:
    """Which operations of a function share a kernel on ``target``, which do not, and why, with predicted figures."""

    name: str
    target: Target
    graphs: tuple[ExplainedGraph, ...]

    def __str__(self) -> str:
        return self.text()

    @property
    def plan_only(self) -> bool:
        """Whether nothing writes code for the target: what runs there is left to TorchInductor."""
        return self.target.kind == "gpu" and not supports_cuda()

    def equal_regions(self) -> Iterator[EqualRegions]:
        """Regions in order of appearance, those with equal kernels together."""
        for graph in self.graphs:
            places: dict[tuple[str, ...], list[int]] = {}
            for at, compiled in enumerate(graph.compilation.regions):
                places.setdefault(tuple(map(str, compiled.plan.kernels)), []).append(at)
            yield from (EqualRegions(graph, tuple(equal)) for equal in places.values())

    def summary(self) -> str:
        """One line of totals."""
        regions = [c for graph in self.graphs for c in graph.compilation.regions]
        estimates = [e for c in regions for e in c.plan.estimates]
        unmeasured = "" if self.target.measured else " (its figures are not measured)"
        counted = f"{count_text(len(regions), 'region')} in {count_text(len(estimates), 'kernel')} of weft's"
        if estimates:
            moved = size_text(sum(e.bytes_read + e.bytes_written for e in estimates))
            time = sum(e.predicted_us for e in estimates)
            left = sum(c.plan.decisions[0].apart_us or 0.0 for c in regions)
            they = "which moves" if len(estimates) == 1 else "which move"
            counted += f", {they} {moved}: {time:.0f} us predicted, {left:.0f} us left to Inductor"
            outcomes = [c.race for c in regions if isinstance(c.race, Raced)]
            if outcomes:
                own, inductor = sum(each.us for each in outcomes), sum(each.inductor_us for each in outcomes)
                which = "" if len(outcomes) == len(regions) else f" of {count_text(len(outcomes), 'region')}"
                counted += f"; {own:.0f} us measured{which}, {inductor:.0f} us in Inductor's code"
        return f"{self.name} on {self.target.name}{unmeasured}: {counted}"

    def text(self) -> str:
        """A table of kernels, then each region with its reasons and the user's lines, then what is left out and why."""
        lines = [self.summary(), *([PLAN_ONLY] if self.plan_only else [])]
        groups = list(self.equal_regions())
        if groups:
            lines += ["", _rendered(_table(groups, self.target))]
        for graph in self.graphs:
            lines += ["", f"{graph.kind}:"]
            for group in (g for g in groups if g.graph is graph):
                lines += [f"  {line}" for line in region_lines(group.regions)]
            lines += [f"  {line}" for line in border_lines(graph.compilation.borders)]
            lines += [f"  {line}" for line in exchange_lines(graph.exchanges)]
            left = refusal_lines(graph.compilation.refusals)
            lines += [f"  {line}" for line in left] if left or graph.compilation.regions else ["  nothing to fuse"]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """One object: ``target`` with its constants, whether it is a ``plan_only``, ``graphs``, and lists of all
        ``regions``, ``kernels``, ``decisions`` and ``refusals``; their fields ``graph`` and ``region`` are places in
        those lists."""
        whole: dict[str, Any] = {"name": self.name, "target": asdict(self.target), "plan_only": self.plan_only}
        whole["graphs"] = []
        lists: dict[str, list[dict[str, Any]]] = {"regions": [], "kernels": [], "decisions": [], "refusals": []}
        for at, graph in enumerate(self.graphs):
            borders = graph.compilation.borders
            found = {"borders": borders and borders.to_dict(), "exchanges": graph.exchanges and asdict(graph.exchanges)}
            whole["graphs"].append({"kind": graph.kind} | found)
            before = len(lists["regions"])
            for name, entries in graph.report.to_dict().items():
                for entry in entries:
                    moved = {"region": entry["region"] + before} if "region" in entry else {}
                    lists[name].append({"graph": at} | entry | moved)
        return whole | lists

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=2, allow_nan=False)

    def to_html(self, path: str | Path) -> Path:
        """Write a page that stands alone, folders above it included; returns its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(page(self))
        return target


def explain(
    function: Callable[..., Any], *inputs: Any, target: Target | str | None = None, dynamic: bool | None = None,
    name: str | None = None, measure: bool = False, **keywords: Any,
) -> Explanation:  # fmt: skip
    """What weft would do with a function or a model, and why.

    inputs, keywords: what to call it with; a text like ``bf16[8192,4096]`` stands for a tensor of that type, without a
    gradient, on the device of the others. It is called once, uncompiled, to find its graphs; the backward is among them
    where an input or a parameter needs a gradient. Fake tensors, inside a ``FakeTensorMode``, cost no memory.
    target: a machine to plan for, or its name; by default the one at hand. dynamic: as in torch.compile. name: for the
    title; by default the function's. measure: build the kernels, and time each region beside TorchInductor's code for
    the same nodes, which takes seconds a region the first time; one that is slower stays, and says so. Schedules that
    ``weft tune`` measured on the machine at hand are taken as they are in a compile, and with ``WEFT_RACE=1`` the
    outcomes of races that were run.

    Raises ValueError for an unknown target or dtype, a machine without figures, or one that is to be measured and is
    not at hand; TypeError for what is no function or
    no target; CallError, with the user's line, if the function fails on these inputs.
    """
    if not callable(function):
        raise TypeError(f"weft.explain is given a function or a module and then its inputs, not {_brief(function)}")
    chosen = _target(target)
    inputs, keywords = with_tensors(inputs, keywords)
    graphs = post_grad_graphs(function, inputs, keywords, dynamic)
    options = Options.read()
    if measure and chosen is not None:
        raise ValueError(f"only the machine at hand can be measured, which is not asked for as {chosen.name}")
    at_hand = None if measure else chosen or calibration.at_hand(torch.device(device_of(inputs, keywords)), options)
    tuned = tuning.load(options)

    def compiled(graph: fx.Graph) -> Compilation:
        symbols = symbol_hints(graph)
        found = compile_graph(graph, None, symbols, at_hand, tuned)
        return measured(build(found, options), symbols, options) if measure else with_known(found, options)

    explained = tuple(ExplainedGraph(g.kind, compiled(g.module.graph), g.exchanges) for g in graphs)
    chosen = at_hand or calibration.at_hand(torch.device(device_of(inputs, keywords)), options)
    shown = name or getattr(function, "__name__", type(function).__name__)
    return Explanation(shown, chosen, explained)


def _target(given: Any) -> Target | None:
    """None for the machine at hand."""
    if isinstance(given, str):
        return None if given == "current" else Target.named(given)
    if given is None or isinstance(given, Target):
        return given
    raise TypeError(f"target is the name of a machine or a weft.Target, not {_brief(given)}")


def _brief(value: Any) -> str:
    return f"a {type(value).__name__}" if isinstance(value, torch.Tensor) else repr(value)


def _table(groups: Sequence[EqualRegions], target: Target) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    purposes = any(text for group in groups for text in group.purposes)
    for heading in ("graph", "kernel", *(["for"] if purposes else []), "kind", "scheme"):
        table.add_column(heading, overflow="fold")
    headings = ["times", "MB read", "written", "us predicted"]
    for heading in [*headings, *(["registers", "spilled"] if target.kind == "gpu" else [])]:
        table.add_column(heading, justify="right")
    for group in groups:
        plan = group.first.plan
        parts = zip(plan.kernels, group.purposes, plan.kinds, plan.estimates, plan.resources, strict=True)
        for kernel, text, kind, estimate, held in parts:
            figures = [
                str(len(group.places)),
                f"{estimate.bytes_read / 1e6:.2f}",
                f"{estimate.bytes_written / 1e6:.2f}",
                f"{estimate.predicted_us:.1f}",
            ]
            if target.kind == "gpu":
                figures += [str(held.registers_per_thread), str(held.spill_bytes)]
            named = [kernel.name, *([text] if purposes else [])]
            table.add_row(group.graph.kind, *named, kind, kernel.schedule.scheme, *figures)
    return table


def _rendered(table: Table) -> str:
    """The table as text, as wide as it needs to be and the same everywhere."""
    from rich.console import Console

    text = StringIO()
    Console(file=text, width=WIDEST, force_terminal=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()).strip("\n")
