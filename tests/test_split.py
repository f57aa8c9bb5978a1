"""What a schedule is chosen for: a program, its rows and columns, and a target, as one value."""

from __future__ import annotations

import pytest

from weft.backends.triton.choice import forget, gpu_schedule
from weft.ir.parser import parse
from weft.plan.kernel import Kernel
from weft.plan.split import Split
from weft.target import Target

H200 = Target.named("h200")
TEXT = """program p(s0, s1)
  dim t = {t}
  dim b = {b}
  dim n = 1024
  input x: f32 [t:2048, b:1024, n:1]
  squares: f32{{t, b, n}} = mul(x, x)
  row: f32{{t, b}} = sum[n](squares)
  scaled: f32{{t, b, n}} = mul(x, row)
  gradient: f32{{b, n}} = sum[t](scaled)
  output y: f32 [b:1024, n:1] = gradient
end
"""


def split_of(t: int | str = 64, b: int | str = 2, hints: dict[str, int] | None = None) -> Split:
    return Split.of(parse(TEXT.format(t=t, b=b)), ("t", "b"), ("n",), H200, hints or {})


def test_segments_are_first_of_the_rows() -> None:
    split = split_of()
    assert split.dims == (("b", "t"), ("n",), ("b",))
    assert split.inside == ("t",)
    assert (split.width, split.segment_count) == (1024, 2)
    assert split.has_inner
    assert split.has_outer


def test_the_split_of_a_kernel_is_that_of_its_schedule() -> None:
    split = split_of(hints={"s1": 8, "s0": 2048})
    kernel = Kernel(split.program, gpu_schedule(split))
    assert Split.of_kernel(kernel, H200, {"s0": 2048, "s1": 8}) == split


def test_the_order_of_hints_makes_no_other_choice() -> None:
    forget()
    gpu_schedule(split_of(hints={"s0": 2048, "s1": 8}))
    gpu_schedule(split_of(hints={"s1": 8, "s0": 2048}))
    assert (gpu_schedule.cache_info().hits, gpu_schedule.cache_info().misses) == (1, 1)
    gpu_schedule(split_of(hints={"s0": 4096, "s1": 8}))
    assert gpu_schedule.cache_info().misses == 2
    forget()
    assert gpu_schedule.cache_info().currsize == 0


@pytest.mark.parametrize(("t", "dynamic"), [(66, False), ("s1", True)])
def test_a_number_of_rows_is_known_or_not(t: int | str, dynamic: bool) -> None:
    assert split_of(t, 2, {"s1": 1}).is_dynamic == dynamic


def test_hints_stand_for_sizes_known_at_run_time() -> None:
    assert split_of("s1", 2, {"s1": 7}).sizes.elements(("t", "b")) == 14
