"""Schedules that were measured to be the best of a kernel, as data: what the planner takes instead of a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from weft.errors import Refusal
from weft.ir.names import plain_names
from weft.ir.program import Program
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Plan
from weft.plan.schedule import Schedule, parse_schedule
from weft.plan.schedules import candidates, resources
from weft.target import Target


@dataclass(frozen=True)
class Key:
    """Which kernels a measurement is of: those with this program and split, under plain names, on this machine."""

    program: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    target: str
    device: str


@dataclass(frozen=True)
class Tuned:
    """One measurement.

    kernel: printed, under plain names, with the best schedule. target, device: names of the target and of the machine's
    model. untuned: the schedule that was predicted to be the best, printed. us, untuned_us: microseconds of the two.
    timed, candidates: schedules that were timed and that there are. sizes: of run-time parameters, by plain name.
    versions: of everything that made the code.
    """

    kernel: str
    target: str
    device: str
    untuned: str
    us: float
    untuned_us: float
    timed: int
    candidates: int
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def schedule(self) -> Schedule:
        """Under plain names. Raises ParseError."""
        return parse_schedule(self.kernel.partition("\n")[0].removeprefix("schedule "))

    @cached_property
    def key(self) -> Key:
        """Raises ParseError."""
        split = self.schedule.rows, self.schedule.columns
        return Key(self.kernel.partition("\n")[2], *split, self.target, self.device)

    @property
    def regret(self) -> float:
        """By what part the time of the untuned choice exceeds that of the tuned one."""
        return self.untuned_us / self.us - 1

    def __str__(self) -> str:
        sizes = "".join(f", {name} = {size}" for name, size in self.sizes.items())
        if str(self.schedule) == self.untuned:
            return f"measured {self.us:.1f} us{sizes}; the best of {self.timed} timed is the predicted one"
        return f"measured {self.us:.1f} us, {self.untuned_us:.1f} us with the predicted schedule{sizes}"


TunedSchedules = Mapping[Key, Tuned]
NONE: TunedSchedules = {}


def plain(kernel: Kernel) -> Kernel:
    """The kernel under plain names."""
    renamed = kernel.renamed(plain_names(kernel.program))
    return replace(renamed, program=replace(renamed.program, name="kernel"))


def key_of(kernel: Kernel, target: Target) -> Key:
    """What a measurement of this kernel is found by."""
    same = plain(kernel)
    return Key(str(same.program), same.schedule.rows, same.schedule.columns, target.name, target.device)


def with_tuned(plan: Plan, target: Target, tuned: TunedSchedules) -> Plan:
    """The plan with measured schedules in place of predicted ones, wherever there is one that the kernel can have."""
    if not tuned:
        return plan
    found = [_find(kernel, target, tuned) for kernel in plan.kernels]
    if not any(found):
        return plan
    kernels = tuple(_changed(kernel, each) for kernel, each in zip(plan.kernels, found, strict=True))
    return replace(
        plan,
        kernels=kernels,
        estimates=tuple(estimate(kernel, target, plan.hints) for kernel in kernels),
        resources=tuple(resources(kernel, target) for kernel in kernels),
        tuned=tuple(found),
    )


def _find(kernel: Kernel, target: Target, tuned: TunedSchedules) -> Tuned | Refusal | None:
    found = tuned.get(key_of(kernel, target))
    if found is None:
        return None
    return check_candidate(kernel, found, target) or found


def _changed(kernel: Kernel, found: Tuned | Refusal | None) -> Kernel:
    return replace(kernel, schedule=schedule_under_names(found, kernel.program)) if isinstance(found, Tuned) else kernel


def schedule_under_names(tuned: Tuned, program: Program) -> Schedule:
    """The measured schedule with the names of a program that is the same under plain ones."""
    return tuned.schedule.renamed(plain_names(program).inverse)


def check_candidate(kernel: Kernel, tuned: Tuned, target: Target) -> Refusal | None:
    """A measured schedule has to be one that the kernel can have, at the run-time sizes of the measurement: those
    change with weft's releases, and a file may say anything."""
    names = plain_names(kernel.program).inverse.parameters
    hints = {names[plain_name]: size for plain_name, size in tuned.sizes.items() if plain_name in names}
    try:
        if schedule_under_names(tuned, kernel.program) in candidates(kernel, target, hints):
            return None
    except KeyError:  # of a name that no kernel has
        pass
    message = f"the tuned schedule is none that the kernel can have: {tuned.schedule}"
    return Refusal("tuned_schedule", kernel.name, message)
