"""Plans of the regions of a graph, each made once; by TorchInductor's compile workers, several at a time, if there are
any that are ready."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from weft.backends.listed import supports
from weft.capture.parts import place_bytes
from weft.capture.regions import Region
from weft.errors import Refusal
from weft.ir.program import Program
from weft.options import MixedOrder
from weft.plan.kernel import Plan
from weft.plan.planner import plan
from weft.plan.tuned import Tuned, TunedSchedules, with_tuned
from weft.runtime import compile_workers
from weft.runtime.compile_workers import Tasks, WorkerLostError
from weft.target import Target


@dataclass(frozen=True)
class Asked:
    """What a plan depends on. hints: likely values of run-time parameters, and places of inputs (``hints_of``)."""

    program: Program
    target: Target
    hints: Mapping[str, int]

    @cached_property
    def identity(self) -> str:
        """The blocks of a model are the same program again and again."""
        return f"{self.program}{self.hints}{self.target}"


class Plans:
    """Of one graph. tuned: measured schedules, which take the place of predicted ones."""

    def __init__(self, tuned: TunedSchedules, mixed_order: MixedOrder) -> None:
        self._tuned, self._mixed_order = tuned, mixed_order
        self._found: dict[str, Plan | Refusal] = {}
        self._begun = Tasks()

    def begin(self, asked: Asked) -> None:
        """Have a compile worker make a plan that will be asked for. TorchInductor starts them for GPUs; a single one is
        no faster than this process."""
        if asked.target.kind == "gpu" and asked.identity not in self._begun and compile_workers.count() > 1:
            given = asked.program, asked.target, asked.hints, self._mixed_order
            self._begun.submit(asked.identity, plan, *given)

    def of(self, asked: Asked) -> Plan | Refusal:
        """The plan, or the reason why there is none."""
        if asked.identity not in self._found:
            self._found[asked.identity] = self._measured(self._predicted(asked), asked.target)
        return self._found[asked.identity]

    def _predicted(self, asked: Asked) -> Plan | Refusal:
        task = self._begun.take(asked.identity)
        if task is not None:
            try:
                return task.result()
            except WorkerLostError:  # or the planner raised: here it says why
                pass
        return plan(asked.program, asked.target, asked.hints, self._mixed_order)

    def _measured(self, planned: Plan | Refusal, target: Target) -> Plan | Refusal:
        return planned if isinstance(planned, Refusal) else measured(planned, target, self._tuned)


def measured(planned: Plan, target: Target, tuned: TunedSchedules) -> Plan:
    """A plan with measured schedules, unless one is from a release that could write what this one cannot."""
    found = with_tuned(planned, target, tuned)
    pairs = zip(found.kernels, found.measurements, strict=True)
    is_refused = any(isinstance(each, Tuned) and supports(kernel) is not None for kernel, each in pairs)
    return planned if is_refused else found


def hints_of(region: Region, symbols: Mapping[Any, int]) -> dict[str, int]:
    """Likely values of a region's run-time parameters, as far as there are any, and of inputs that begin behind the
    beginning of the graph's input that they are a part of, by how many bytes."""
    found = {name: _hint(expression, symbols) for name, expression in region.parameters.items()}
    for buffer, node in zip(region.program.inputs, region.inputs, strict=True):
        if (place := place_bytes(node)) != 0:
            found[buffer.name] = _hint(place, symbols)
    return {name: value for name, value in found.items() if value is not None}


def _hint(expression: Any, symbols: Mapping[Any, int]) -> int | None:
    found = expression if isinstance(expression, int) else expression.subs(dict(symbols))
    return int(found) if getattr(found, "is_Integer", isinstance(found, int)) else None
