"""The order in which a compiler does what stands between two block-wide reductions: after each step least is alive."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

Amount = tuple[float, float, float, float]
"""Registers: for each element of a row tile, for each column of it, for each row of it, and for all of it."""
NOTHING: Amount = (0.0, 0.0, 0.0, 0.0)
Key = tuple[str, int]
"""A value: its name, and the stage that computes it anew, -1 if it is computed once."""


@dataclass(frozen=True)
class Step:
    """kind: load, last (a load for all rows), value, use, reduce or result (of a reduction)."""

    kind: str
    defined: Key | None
    used: tuple[Key, ...] = ()


def with_least_alive(steps: Iterable[Step], registers: Callable[[Key], Amount]) -> list[Step]:
    """The same steps. Between two block-wide reductions loads are first; then comes, with all that it takes, what
    nothing else there uses, each time the one after which least is alive. registers: of a value."""
    steps = list(steps)
    uses = Counter(key for step in steps for key in set(step.used))
    waiting: list[Step] = []
    found: list[Step] = []
    for step in steps:
        if step.kind in ("value", "use"):
            waiting.append(step)
            continue
        if step.kind == "reduce":
            found.extend(_ordered(waiting, uses, registers))
            waiting = []
        found.append(step)
        uses.subtract(set(step.used))
    return [*found, *_ordered(waiting, uses, registers)]


def _ordered(waiting: Sequence[Step], uses: Counter[Key], registers: Callable[[Key], Amount]) -> list[Step]:
    """Steps between two block-wide reductions. uses: how often each value is used from there on, counted down here."""
    by_key = {step.defined: step for step in waiting if step.defined}
    inside = {key for step in waiting for key in step.used}
    ends = [step for step in waiting if not step.defined or step.defined not in inside]
    operands = {id(step): [by_key[key] for key in step.used if key in by_key] for step in waiting}
    height = dict[int, int]()
    for step in waiting:
        height[id(step)] = 1 + max((height[id(each)] for each in operands[id(step)]), default=0)
    found: list[Step] = []
    done: set[int] = set()

    def needed(step: Step, seen: set[int]) -> list[Step]:
        """What is to be done for it, and itself: of its operands first the one with most steps behind it."""
        chain: list[Step] = []
        stack = [(step, iter([] if id(step) in seen else [step]))]
        while stack:
            outer, rest = stack[-1]
            each = next((s for s in rest if id(s) not in seen), None)
            if each is None:
                chain.append(outer)
                stack.pop()
            else:
                seen.add(id(each))
                stack.append((each, iter(sorted(operands[id(each)], key=lambda s: -height[id(s)]))))
        return chain[:-1]

    def alive(chain: list[Step]) -> tuple[Amount, Amount]:
        """By how much more is alive after some steps, and at most meanwhile."""
        left, grown, most = Counter[Key](), NOTHING, NOTHING
        for step in chain:
            grown = plus(grown, registers(step.defined) if step.defined else NOTHING)
            most = max(most, grown)
            for key in set(step.used):
                left[key] += 1
                if left[key] == uses[key]:
                    grown = plus(grown, registers(key), -1)
        return grown, most

    while ends:
        chains = [needed(end, set(done)) for end in ends]
        taken = min(chains, key=alive)
        ends.remove(taken[-1])
        done.update(map(id, taken))
        found.extend(taken)
        for step in taken:
            uses.subtract(set(step.used))
    return sorted(found, key=lambda step: step.kind == "use")  # what is stored and added up is so at the end


def alive_over_time(steps: Sequence[Step], registers: Callable[[Key], Amount]) -> tuple[list[Amount], list[Amount]]:
    """What is alive at each step, and what of it is used for the last time there; loads for all rows not among it."""
    born: dict[Key, int] = {}
    last: dict[Key, int] = {}
    for at, step in enumerate(steps):
        if step.defined and step.kind != "last":
            born.setdefault(step.defined, at)
        last.update(dict.fromkeys(step.used, at))
    begun, ended, alive = [NOTHING] * len(steps), [NOTHING] * len(steps), list[Amount]()
    for key, start in born.items():
        amount, end = registers(key), last.get(key, start)
        begun[start], ended[end] = plus(begun[start], amount), plus(ended[end], amount)
    now = NOTHING
    for at in range(len(steps)):
        now = plus(now, begun[at])
        alive.append(now)
        now = plus(now, ended[at], -1)
    return alive, ended


def total(amounts: Iterator[Amount]) -> Amount:
    return reduce(plus, amounts, NOTHING)


def plus(one: Amount, other: Amount, times: int = 1) -> Amount:
    return tuple(a + times * b for a, b in zip(one, other, strict=True))  # type: ignore[return-value]


def largest(amounts: Iterable[Amount]) -> tuple[Amount, ...]:
    """Each once, and none that is nowhere more than another one."""
    found = set(amounts)
    return tuple(
        a
        for a in sorted(found, reverse=True)
        if not any(a != b and all(x <= y for x, y in zip(a, b, strict=True)) for b in found)
    )
