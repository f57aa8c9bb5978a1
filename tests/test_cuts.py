"""Passes of many loads: cut in two where their values fit no registers, with the same results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.plan_cases import CPU, DATA, M, N, interpreted, program
from tests.together import prepare
from weft.ir.builder import Builder
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import interpret
from weft.ir.program import Dim, Program
from weft.ir.structure import analyse
from weft.options import Options
from weft.plan.cuts import cuts
from weft.plan.fitting import scheduled
from weft.plan.kernel import Plan
from weft.plan.legality import kind_of
from weft.plan.planner import plan_split
from weft.plan.split import Split
from weft.plan.verify import verify_plan
from weft.runtime.launch import run_plan
from weft.target import Target

H200 = Target.named("h200")


def tree(count: int, rows: int = 16, columns: int = 64, row_sum: int = 0, column_sums: Sequence[int] = ()) -> Program:
    """Inputs that are added or multiplied one after the other; all of them are in what is stored. row_sum: how many
    have met in what is summed up along rows, if anything is; column_sums: in what is summed up over them."""
    builder = Builder("p", (Dim("m", rows), Dim("n", columns)))
    names = [builder.input(f"x{at}", ("f32", "bf16")[at % 2], ("m", "n"), (columns, 1)) for at in range(count)]
    value = builder.cast(names[0], "f32")
    for at, name in enumerate(names[1:], 2):
        value = builder.op("tanh", builder.op(("add", "mul")[at % 2], value, builder.cast(name, "f32")))
        if at == row_sum:
            mean = builder.op("div", builder.reduce("sum", value, ("n",)), builder.count(("n",), "f32"))
            value = builder.op("sub", value, mean)
        if at in column_sums:
            builder.output(f"column{at}", builder.reduce("sum", value, ("m",)), "f32", ("n",), (1,))
    builder.output("out0", value, "f32", ("m", "n"), (columns, 1))
    return builder.finish()


def inputs_of(given: Program) -> list[Tensor]:
    sizes = {d.name: d.size for d in given.dims}
    shapes = [[int(sizes[d]) for d in b.dims] for b in given.inputs]
    return [torch.randn(s).to(TORCH_DTYPES[b.dtype]) for s, b in zip(shapes, given.inputs, strict=True)]


CASES = [(6, 0, ()), (9, 4, ()), (9, 0, (3, 9)), (12, 5, (2, 7, 12)), (24, 20, (22,))]


@pytest.mark.built_together(1)
@pytest.mark.parametrize(("count", "row_sum", "column_sums"), CASES)
def test_every_cut_computes_the_same(count: int, row_sum: int, column_sums: tuple[int, ...]) -> None:
    given = replace(tree(count, row_sum=row_sum, column_sums=column_sums), name=f"tree_of_{count}_{row_sum}")
    inputs = inputs_of(given)
    whole = plan_split(given, M, N, CPU, {})
    assert isinstance(whole, Plan)
    assert len(whole.kernels) == 1
    exact = interpret(given, inputs)
    found = cuts(given, M, {}, {})
    assert found
    every: list[Plan] = []
    for way in found:
        assert [analyse(part, M).pass_count for part in way.programs] == [1, 1]
        assert all(len(part.inputs) < count for part in way.programs)
        kernels = tuple(scheduled(Split.of(part, M, N, CPU, {})) for part in way.programs)
        kinds = tuple(kind_of(part, N) for part in way.programs)
        every.append(verify_plan(replace(whole, kernels=kernels, kinds=kinds, products=way.products), given))
    prepare(every)
    for chosen in every:
        for mine, compiled, right in zip(
            interpreted(chosen, given, inputs), run_plan(chosen, given, inputs, (), Options.read()), exact, strict=True
        ):
            torch.testing.assert_close(mine, right)
            torch.testing.assert_close(compiled.double(), right.double(), rtol=1e-5, atol=1e-5)


def test_cuts_with_fewest_bytes_are_first_and_each_further_one_leaves_less_to_load() -> None:
    found = cuts(tree(24), M, {}, {})
    counts = [[len(part.inputs) for part in way.programs] for way in found]
    moved = [sum(each) for each in counts]
    assert moved == sorted(moved)
    assert [max(each) for each in counts] == sorted((max(each) for each in counts), reverse=True)
    assert max(counts[-1]) <= 13


def test_nothing_is_cut_behind_a_column_sum_or_where_one_part_would_load_all() -> None:
    body = """
  column: f32{n} = sum[m](x)
  scaled: f32{n} = mul(column, w)
  output out0: f32 [n:1] = scaled
"""
    assert cuts(program(DATA, body), M, {}, {}) == []


@pytest.mark.only_triton
def test_a_pass_of_many_loads_is_cut_and_says_why() -> None:
    given = tree(48, columns=1024, row_sum=40)
    chosen = plan_split(given, M, N, H200, {})
    assert isinstance(chosen, Plan)
    verify_plan(chosen, given)
    assert len(chosen.kernels) > 1
    assert all(held.spill_bytes == 0 for held in chosen.resources)
    (decision,) = [d for d in chosen.decisions if d.refusal is not None]
    refusal = decision.refusal
    assert refusal is not None
    assert refusal.rule == "registers"
    assert refusal.have is not None
    assert refusal.limit is not None
    assert float(refusal.have) > float(refusal.limit)
    assert len(decision.apart) == len(chosen.kernels)
    assert decision.together_us is not None
    assert decision.apart_us == pytest.approx(chosen.predicted_us)
    inputs = inputs_of(given)
    for mine, right in zip(interpreted(chosen, given, inputs), interpret(given, inputs), strict=True):
        torch.testing.assert_close(mine, right)


def test_a_pass_of_few_loads_stays_one_kernel() -> None:
    chosen = plan_split(tree(8, 4096, 1024, row_sum=5, column_sums=(3,)), M, N, H200, {})
    assert isinstance(chosen, Plan)
    assert len(chosen.kernels) == 1
    assert chosen.cuts == ()
