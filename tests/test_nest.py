"""Between plan and text: what a nest says is what is printed, and one that uses what is not there yet is none."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.cases import make_case
from tests.cuda_kernels import kernel_of
from weft.backends.abi import count
from weft.backends.cuda.launches import lowered
from weft.backends.listed import backend_of, render
from weft.bench.workloads import WORKLOADS
from weft.errors import VerificationError
from weft.ir.dtypes import itemsize
from weft.lowering.nest import (
    Accumulate,
    Compute,
    Exponentials,
    Gather,
    GridSync,
    Hold,
    Keep,
    Load,
    Nest,
    Reduce,
    Statement,
    Store,
    Tasks,
    Tile,
    Tiles,
)
from weft.lowering.verify import verify_nest
from weft.plan.cost import estimate
from weft.plan.kernel import Kernel, Plan
from weft.plan.planner import plan
from weft.target import Target

BOTH = ("rms_norm_forward", "layer_norm_backward", "softmax_forward", "cross_entropy_forward")


@cache
def kernels_of(name: str, shape: tuple[int, int]) -> tuple[Kernel, ...]:
    case = make_case(name, WORKLOADS[name].make_inputs(shape, torch.bfloat16), dynamic_rows=False)
    planned = plan(case.program, Target.named("h200"), {})
    assert isinstance(planned, Plan)
    return planned.kernels


def nests(name: str, rows: int = 4096) -> tuple[Nest, ...]:
    (kernel,) = kernels_of(name, (rows, 1024))
    return backend_of(kernel).lower(kernel)


def test_a_backward_adds_up_columns_tile_by_tile_and_finishes_them() -> None:
    (nest,) = nests("layer_norm_backward")
    passed, finish = nest.phases()
    assert nest.body == (*passed.body, GridSync(), *finish.body)
    found = list(passed.statements())
    (tiles,) = (each for each in found if isinstance(each, Tiles))
    (tile,) = tiles.body
    assert isinstance(tile, Tile)
    assert tiles.ahead
    sums = {each.value for each in tile.body if isinstance(each, Accumulate)}
    assert sums == {each.value for each in found if isinstance(each, Keep)}
    (exchange,) = (each for each in found if isinstance(each, Reduce))
    assert len(exchange.values) == 2  # in one exchange
    (tasks,) = finish.body
    assert isinstance(tasks, Tasks)
    assert {name for each in tasks.body if isinstance(each, Gather) for name in each.values} == sums
    assert [each.output for each in tasks.body if isinstance(each, Store) and each.complete] == ["out1", "out2"]


@pytest.mark.only_triton
@pytest.mark.parametrize("columns", [1024, 70000])
@pytest.mark.parametrize("name", BOTH)
def test_each_load_and_store_of_a_text_is_one_of_the_nest(name: str, columns: int) -> None:
    for kernel in kernels_of(name, (512, columns)):
        first, *_ = backend_of(kernel).lower(kernel)[0].phases()
        _, function, *_ = render(kernel).text.split("@triton.jit")
        found, ops = list(first.statements()), {value.name: value.op for value in first.program.values}
        picked = [each for each in found if isinstance(each, Compute) and ops[each.value] == "pick"]
        assert function.count("tl.load(") == len(picked) + sum(isinstance(each, Load) for each in found)
        assert function.count("tl.store(") == sum(isinstance(each, Store | Keep) for each in found)


def test_a_nest_prints_its_values_as_the_program_has_them() -> None:
    (passed,) = nests("layer_norm_backward")
    lines = str(passed).splitlines()
    assert lines[0] == "nest layer_norm_backward"
    assert "        compute mul_2: f32{m} = mul(sum, const)" in lines
    assert lines.index("    keep sum_2") < lines.index("  grid sync") < lines.index("  tasks")


def test_what_is_used_was_loaded_or_computed() -> None:
    (passed,) = nests("softmax_forward")
    (tile,) = (each for each in passed.statements() if isinstance(each, Tile))
    for dropped in (Load, Compute, Reduce):
        first = next(each for each in tile.body if isinstance(each, dropped))
        body = tuple(each for each in tile.body if each != first)
        with pytest.raises(VerificationError, match="is not there yet"):
            verify_nest(replace(passed, body=(replace(tile, body=body),)))
    with pytest.raises(VerificationError, match="loads out0, which is no input"):
        verify_nest(replace(passed, body=(Load("out0"),)))


def test_terms_of_a_sum_are_held_before_they_are_used() -> None:
    fields = {"cluster": 2, "warps": 4, "vectors": 1, "tile": "exponentials"}
    _, kernel = kernel_of("softmax_forward", (64, 2048), **fields)
    _, (passed,) = lowered(kernel)
    for dropped, message in ((Hold, "nobody holds sumexp"), (Exponentials, "nobody holds the terms of sumexp")):
        found = verify_nest(without(passed, ()))
        assert any(isinstance(each, dropped) for each in found.statements())
        with pytest.raises(VerificationError, match=message):
            verify_nest(without(passed, (dropped,)))


def without(nest: Nest, kinds: tuple[type, ...]) -> Nest:
    """A nest without statements of some kinds."""

    def kept(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        some = (each for each in body if not isinstance(each, kinds))
        return tuple(replace(each, body=kept(each.body)) if hasattr(each, "body") else each for each in some)

    return replace(nest, body=kept(nest.body))


@pytest.mark.parametrize(
    ("name", "shape"), [*((name, (512, 1024)) for name in WORKLOADS), *((name, (16, 70000)) for name in BOTH)]
)
def test_what_is_priced_is_what_the_nest_says(name: str, shape: tuple[int, int]) -> None:
    """Launches and workspace of the model of time, which prices thousands of schedules that are never lowered."""
    for kernel in kernels_of(name, shape):
        abi = backend_of(kernel).abi(kernel)
        priced = estimate(kernel, Target.named("h200"), {})
        assert priced.launches == len(abi.launches)
        elements = [count(partial.elements, {}) * itemsize(partial.dtype) for partial in abi.partials]
        assert priced.workspace_bytes == sum(elements)
