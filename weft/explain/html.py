"""The page of an explanation: one file without references to any other."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

import jinja2

from weft.explain.drawing import Drawing, draw_narrow, draw_wide, size_text
from weft.explain.explained import PLAN_ONLY, EqualRegions, border_lines, exchange_lines
from weft.integration.report import buffer_names, reasons, refusal_groups
from weft.plan.kernel import Decision
from weft.rules import RULES

if TYPE_CHECKING:
    from weft.explain.explanation import Explanation


@dataclass(frozen=True)
class Card:
    """What the page shows of equal regions."""

    group: EqualRegions
    wide: Drawing
    narrow: Drawing
    reasons: list[str]
    others: list[str]


def page(explanation: Explanation) -> str:
    """The HTML text."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["bytes"] = size_text
    template = environment.from_string(files("weft.explain").joinpath("page.html.j2").read_text())
    groups = list(explanation.equal_regions())
    sections = [
        (graph, [_card(g) for g in groups if g.graph is graph], refusal_groups(graph.compilation.refusals))
        for graph in explanation.graphs
    ]
    return template.render(
        explanation=explanation,
        sections=sections,
        groups=groups,
        border_lines=border_lines,
        exchange_lines=exchange_lines,
        purposes=any(text for group in groups for text in group.purposes),
        rules=RULES,
        plan_only=PLAN_ONLY,
    )


def _card(group: EqualRegions) -> Card:
    plan, names = group.first.plan, buffer_names(group.regions)
    others = [_other(decision) for decision in plan.alternatives]
    return Card(group, draw_wide(plan, names), draw_narrow(plan, names), reasons(plan), others)


def _other(decision: Decision) -> str:
    """Another split of the dimensions, and why it was not taken."""
    if decision.refusal is not None:
        return f"{decision.candidate}: {decision.refusal.rule}: {decision.refusal.message}"
    return f"{decision.candidate}: {decision.together_us:.1f} us predicted"
