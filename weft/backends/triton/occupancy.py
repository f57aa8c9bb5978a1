"""How many programs of a kernel are started."""

from __future__ import annotations

from weft.backends.triton.launches import Launch
from weft.errors import BuildError


def grid_of(launch: Launch, per_unit: int, units: int, sm_margin: int) -> tuple[int, int]:
    """Programs to start along two axes. per_unit: programs that an SM holds; units: SMs; sm_margin: SMs to leave free,
    of which one at least is taken.

    Programs of a persistent launch share out what there is to do: as many are started as are resident. What they add up
    together is fixed by the schedule, so that results do not depend on it. Raises BuildError if programs that wait for
    each other are more than can be resident.
    """
    first, second = launch.grid
    if not launch.persistent or first * second == 0:
        return first, second
    resident = per_unit * max(1, units - sm_margin)
    if launch.cooperative and resident < second:
        raise BuildError(f"{launch.entry}: {second} programs wait for each other, the GPU holds {resident} at a time")
    return min(first, max(1, resident // second)), second
