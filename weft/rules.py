"""Every rule by which weft leaves something out: what it means, what it counts, and what a user can do about it.

The table is data: reports, ``weft rules`` and the page on refusals read it, and no ``Refusal`` names a rule that is not
in ``weft/rules.toml``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

Figure = float | int | str


@dataclass(frozen=True)
class Figures:
    """What the two figures of a refusal are. unit: of one, units: of several; none for figures that are texts.
    sentence: with both, where they are not compared in the usual words."""

    have: str
    limit: str
    unit: str = ""
    units: str = ""
    sentence: str = ""

    def text(self, have: Figure, limit: Figure) -> str:
        """``have 2 row dimensions, limit 0``, or ``have 1 column dimension, needs 2`` where more would be right."""
        if self.sentence:
            return self.sentence.format(have=have, limit=limit)
        unit = self.unit if have == 1 else self.units
        exceeded = not isinstance(have, str) and not isinstance(limit, str) and have >= limit
        return f"have {have}{' ' * bool(unit)}{unit}, {'limit' if exceeded else 'needs'} {limit}"


@dataclass(frozen=True)
class Rule:
    """One entry of the table. stage: of the pipeline, that says it; action: what a user can do."""

    name: str
    stage: str
    meaning: str
    action: str = "Nothing: this is no loss."
    figures: Figures | None = None


def find_rule(name: str) -> Rule:
    """The rule of that name. Raises ValueError if there is none."""
    if name not in RULES:
        raise ValueError(f"no rule named {name!r} in the table of rules")
    return RULES[name]


def markdown(rules: Iterable[Rule]) -> str:
    """A table of rules, a line a rule."""
    lines = ["| rule | stage | what it means | have | limit | what you can do |", "|---|---|---|---|---|---|"]
    for rule in rules:
        have, limit = ("", "") if rule.figures is None else (rule.figures.have, rule.figures.limit)
        lines.append(f"| `{rule.name}` | {rule.stage} | {rule.meaning} | {have} | {limit} | {rule.action} |")
    return "\n".join(lines)


RULES = {
    name: Rule(name, **entry | {"figures": Figures(**entry["figures"]) if "figures" in entry else None})
    for name, entry in tomllib.loads(resources.files("weft").joinpath("rules.toml").read_text()).items()
}
