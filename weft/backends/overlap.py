"""Time of two things that go on at a time."""

from __future__ import annotations

from typing import Any

Count = Any
"""A number, or a tensor of those of several schedules."""


def together(one: Count, other: Count, power: float) -> Count:
    """Time of two things that go on at a time: from that of the longer one, with a large power, to their sum."""
    longer = (one + other + abs(one - other)) / 2  # its powers are too large for a float
    return longer * ((one / longer) ** power + (other / longer) ** power) ** (1 / power)
