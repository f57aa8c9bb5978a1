"""The schedule of a CUDA C++ kernel: of those that fit, the one with the shortest predicted time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from weft.backends.cuda import resources
from weft.backends.cuda.candidates import candidates, with_more_stages
from weft.backends.cuda.cost import Times, constants, times_us
from weft.backends.cuda.registers import wanted_registers
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.work import Work
from weft.errors import Refusal
from weft.ir.structure import KEPT
from weft.plan.kernel import Resources
from weft.plan.schedule import Schedule
from weft.plan.split import Split

FEWER = 0.02
"""The part of its registers that what replaces a kernel that spills leaves more of, at the least, which is what
predictions are off by. Of kernels of the sweeps that leave 2 to 5 % more than one of the same program that spills 27 %
spill, too, from 5 % on 13 %, from 10 % on 5 %: the next in order is worth being compiled, as those that leave a tenth
more were up to 6 % slower by their predictions."""
WORTH = 1.04
"""How much longer what leaves these may take, by predictions, than the next in order, and still be tried before that:
those that spill 64 bytes or fewer take so much longer than predicted. Layer norm's forward of 262144 columns has three
that spill 8 to 24 bytes, a fourth that does not, of 127 registers, and a fifth that leaves some and takes a tenth
longer."""
STAGED = 24
"""Candidates, of those with the shortest predicted times, that are taken with a stage more, too. Not from a sweep."""
SPILLED = 1.25
"""How much longer than a kernel that spills another may take, by predictions, to be better. In the sweeps those that
spill 64 bytes or fewer take 4 % longer than predicted in the median, and 20 % at the ninetieth percentile, those that
spill up to 200 bytes 13 and 30 %."""


@lru_cache(maxsize=KEPT)
def chosen(split: Split) -> CudaSchedule | None:
    """That with the shortest predicted time, if there is any. Once for a pass that several splits have in common."""
    return next(iter(ranked(split)), None)


def refusal(split: Split) -> Refusal | None:
    """Why there is no schedule, if there is none."""
    if chosen(split) is not None:
        return None
    work = Work.of(split)
    if isinstance(work, Refusal):
        return work
    message = "a row and all of its column sums take more registers or shared memory than a cluster has"
    widest = max(work.copied, default=0) * work.columns
    return Refusal("row_registers", split.program.name, message, widest, split.target.shared_bytes)


def ranked(split: Split) -> tuple[CudaSchedule, ...]:
    """Candidates, the one with the shortest predicted time first, and the first of them with a stage more, too; none if
    there is none."""
    found = sorted((times_of(split, schedule).all, at, schedule) for at, schedule in enumerate(candidates(split)))
    more = (with_more_stages(each, split, _work(split, each)) for _, _, each in found[:STAGED])
    found += [(times_of(split, each).all, -1, each) for each in more if each is not None]
    return tuple(schedule for *_, schedule in sorted(found, key=lambda each: each[:2]))


def runner_up(split: Split, tried: Sequence[Schedule]) -> CudaSchedule | None:
    """What to take in place of schedules that spill: the best of those that leave more of the registers that a thread
    may have than the worst of these; None if there is none. Not than each: some that leave many spill because their
    predictions are off, and say nothing of others. The next in order, if that is much faster: it may spill, or not.
    None, too, if what leaves more takes longer than spilling does."""

    def share(schedule: CudaSchedule) -> float:
        return wanted_registers(_work(split, schedule), schedule) / resources.most_registers(
            schedule.warps, schedule.blocks, split.target
        )

    known = [each for each in tried if isinstance(each, CudaSchedule)]
    worst = max(map(share, known), default=math.inf)
    most_us = SPILLED * min((times_of(split, each).all for each in known), default=math.inf)
    alike = {each.but(stages=0) for each in known}  # as many registers, whatever the stages
    order = [s for s in ranked(split) if s.but(stages=0) not in alike]
    found = next((s for s in order if share(s) <= worst - FEWER), None)
    if found is None or times_of(split, found).all >= most_us:
        return None
    return order[0] if times_of(split, found).all > WORTH * times_of(split, order[0]).all else found


def times_of(split: Split, schedule: CudaSchedule, *, warm: bool = False) -> Times:
    """Of a kernel under a schedule, by the model of time. warm: whether the caches have what is read."""
    known = constants(split.target)
    if warm:
        known = known.warm()
    return times_us(_work(split, schedule), schedule, split.target, known)


def resources_of(split: Split, schedule: CudaSchedule) -> Resources:
    """What a kernel is predicted to hold."""
    work = _work(split, schedule)
    most = resources.most_registers(schedule.warps, schedule.blocks, split.target)
    registers = min(most, math.ceil(wanted_registers(work, schedule)))
    return Resources(registers, 0, resources.shared_bytes(work, schedule), "model")


def _work(split: Split, schedule: CudaSchedule) -> Work:
    """Raises ValueError where no kernel in CUDA C++ is written."""
    work = Work.under(split, schedule)
    if isinstance(work, Refusal):
        raise ValueError(str(work))
    return work
