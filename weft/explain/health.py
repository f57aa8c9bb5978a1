"""What ``weft doctor`` finds: whether weft can run here, and what is wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from weft.explain import trial
from weft.explain.checks import CHECKS, REPORT_IT, Answer, Status, Surroundings
from weft.explain.explained import count_text
from weft.explain.trial import Trial

NEEDED = ("settings", "compiler", "kernel")
"""Checks without which nothing runs."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. remedy: what to do or to install, empty where nothing is wrong."""

    name: str
    status: Status
    fact: str
    remedy: str = ""


@dataclass(frozen=True)
class Health:
    """Whether weft can run here, and all that was looked at."""

    findings: tuple[Finding, ...]

    @property
    def can_run(self) -> bool:
        return not any(f.status == "problem" for f in self.findings if f.name in NEEDED)

    def summary(self) -> str:
        counts = [
            count_text(count, status)
            for status in ("problem", "warning")
            if (count := sum(f.status == status for f in self.findings))
        ]
        can = "weft can run" if self.can_run else "weft cannot run"
        return f"{can} on this machine; {', '.join(counts) or 'nothing is wrong'}"

    def to_dict(self) -> dict[str, Any]:
        return {"can_run": self.can_run, "findings": [asdict(finding) for finding in self.findings]}


def examine(environment: Mapping[str, str] | None = None, try_kernel: Callable[[], Trial] = trial.run_apart) -> Health:
    """Look at everything. Raises nothing: a check that fails is a problem with its text."""
    around = Surroundings(os.environ if environment is None else environment, try_kernel)
    return Health(tuple(_finding(name, check, around) for name, check in CHECKS.items()))


def _finding(name: str, check: Callable[[Surroundings], Answer], around: Surroundings) -> Finding:
    try:
        status, fact, remedy = check(around)
    except Exception as error:
        status, fact, remedy = "problem", f"this check failed: {type(error).__name__}: {error}", REPORT_IT
    return Finding(name, status, _without_home(fact), _without_home(remedy))


def _without_home(text: str) -> str:
    """With ``~`` for the user's folder, and no name of the user in that of Inductor's."""
    with suppress(Exception):
        text = text.replace(Path(default_cache_dir()).name, "torchinductor_USER")
        home = str(Path.home())
        if len(home) > 1:
            text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    return text
