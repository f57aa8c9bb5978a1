"""Outputs that lie where an input lies: which may, that kernels then write the same bits, and where graphs do it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch._functorch.config
import torch.nn.functional as F
from torch import Tensor, fx
from torch._inductor.utils import run_and_get_code

from tests.cases import NAMES, make_case, planned
from tests.test_workload_kernels import OPTIONS, SHAPE, torch_inputs
from weft.backends.cpp.schedule import CppSchedule
from weft.backends.listed import render
from weft.backends.triton.schedule import TritonSchedule
from weft.integration.backend import WeftPass
from weft.ir.parser import parse
from weft.ir.program import Program
from weft.plan.in_place import overwritable
from weft.plan.kernel import Kernel, Plan
from weft.runtime import launch
from weft.runtime.executable import Executable, digest_of

ROWS, COLUMNS = 64, 512


def kernel(body: str, inputs: str = "input x: f32 [m:8, n:1]", **schedule: Any) -> Kernel:
    program = parse(f"program p()\n  dim m = 6\n  dim n = 8\n  {inputs}\n{body}\nend\n")
    made = TritonSchedule if "warps" in schedule else CppSchedule
    return Kernel(program, made("ONE_SHOT", ("m",), ("n",), (), 1, **schedule))


SCALED = """
  total: f32{m} = sum[n](x)
  scaled: f32{m, n} = mul(x, total)
  output out0: f32 [m:8, n:1] = scaled
"""


def test_an_output_may_overwrite_what_no_later_loop_reads() -> None:
    assert overwritable(kernel(SCALED)) == {"out0": ("x",)}
    twice = """
  double: f32{m, n} = add(x, x)
  total: f32{m} = sum[n](double)
  scaled: f32{m, n} = mul(x, total)
  output out0: f32 [m:8, n:1] = double
  output out1: f32 [m:8, n:1] = scaled
"""
    assert overwritable(kernel(twice)) == {"out1": ("x",)}
    assert overwritable(kernel(twice, held=("double",))) == {"out1": ("x",)}


def test_an_output_that_a_loop_writes_earlier_than_its_program_says_is_not_put_where_a_later_one_reads() -> None:
    """The sum of exponentials comes out of the loop that takes the largest element too."""
    body = """
  largest: f32{m} = max[n](x)
  below: f32{m, n} = sub(x, largest)
  power: f32{m, n} = exp(below)
  total: f32{m} = sum[n](power)
  share: f32{m, n} = div(power, total)
  length: f32{m, n} = abs(below)
  lengths: f32{m} = sum[n](length)
  scaled: f32{m, n} = mul(x, lengths)
  output out0: f32 [m:8, n:1] = share
  output out1: f32 [m:8, n:1] = scaled
"""
    looped = replace(kernel(body, warps=1).schedule, scheme="LOOP", piece_columns=32)
    plain = kernel(body)
    assert overwritable(plain) == {"out0": ("x",), "out1": ("x",)}
    assert overwritable(Kernel(plain.program, looped)) == {"out1": ("x",)}


@pytest.mark.parametrize(
    ("inputs", "places"),
    [
        ("input x: f32 [m:8, n:1]\n  input y: f32 [m:8, n:1]", ("x", "y")),
        ("input x: f32 [m:8, n:1]\n  input y: f32 [m:1, n:6]", ("x",)),
        ("input x: f32 [m:8, n:1]\n  input y: f32 [m:16, n:1]", ("x",)),
        ("input x: f32 [m:8, n:1]\n  input y: i32 [m:8, n:1]", ("x",)),
        ("input x: f32 [m:8, n:1]\n  input y: f32 [n:1]", ("x",)),
    ],
)
def test_places_are_of_one_size_and_layout(inputs: str, places: tuple[str, ...]) -> None:
    body = """
  total: f32{m} = sum[n](x)
  other: f32{m, n} = mul(wide, total)
  output out0: f32 [m:8, n:1] = other
"""
    wide = "  wide: f32{m, n} = add(x, y)\n"
    if "y: i32" in inputs:
        wide = "  number: f32{m, n} = cast(y)\n  wide: f32{m, n} = add(x, number)\n"
    assert overwritable(kernel(wide + body[1:], inputs)) == {"out0": places}


def test_an_output_overwrites_only_what_its_elements_are_computed_from() -> None:
    """Nothing else makes a thread of a GPU wait for what another one loads."""
    body = """
  total: f32{m} = sum[n](x)
  other: f32{m, n} = mul(y, total)
  output out0: f32 [m:8, n:1] = other
"""
    assert overwritable(kernel(body, "input x: f32 [m:8, n:1]\n  input y: f32 [m:8, n:1]")) == {"out0": ("y",)}


@pytest.mark.parametrize(("rows", "columns", "shares"), [(1, 128, True), (2, 64, True), (1, 64, False)])
def test_an_element_that_two_threads_load_is_not_overwritten(rows: int, columns: int, shares: bool) -> None:
    """Four warps have 128 threads."""
    found = kernel(SCALED)
    schedule = TritonSchedule("ONE_SHOT", ("m",), ("n",), (), rows, piece_columns=columns, warps=4, stages=1)
    assert bool(overwritable(replace(found, schedule=schedule))) == shares


def test_what_elements_are_taken_from_by_their_address_is_not_overwritten() -> None:
    """A thread may store its part of the row before another one has loaded the element."""
    body = """
  numbers: i64{n} = iota[n]()
  same: bool{m, n} = eq(numbers, i)
  zero: f32{} = const[0.0]()
  chosen: f32{m, n} = where(same, x, zero)
  taken: f32{m} = sum[n](chosen)
  double: f32{m, n} = add(x, x)
  output out0: f32 [m:8, n:1] = double
  output out1: f32 [m:1] = taken
"""
    found = kernel(body, "input x: f32 [m:8, n:1]\n  input i: i64 [m:1]")
    assert overwritable(found) == {"out0": ("x",)}
    looped = TritonSchedule("LOOP", ("m",), ("n",), (), 1, piece_columns=128, warps=4)
    assert overwritable(replace(found, schedule=looped)) == {}


def test_a_column_sum_overwrites_nothing() -> None:
    body = "  total: f32{n} = sum[m](x)\n  output out0: f32 [n:1] = total\n"
    assert overwritable(kernel(body, "input x: f32 [m:8, n:1]\n  input y: f32 [n:1]")) == {}


@pytest.mark.built_together(1)
@pytest.mark.parametrize("name", NAMES)
def test_kernels_write_the_same_bits_in_place(name: str) -> None:
    """Every kernel, with every output that may overwrite an input in the place of one."""
    inputs = torch_inputs(name, SHAPE, "bf16")
    case = make_case(name, inputs)
    plan = planned(case)
    check_in_place(plan, case.program, case.bind(inputs))


def check_in_place(plan: Plan, program: Program, inputs: Sequence[Tensor]) -> None:
    """Each output that may lie in the place of an input has the bits there that it has in memory of its own."""
    launch.prepare(plan.kernels, [render(each) for each in plan.kernels], OPTIONS)
    tensors = {b.name: t for b, t in zip(program.inputs, inputs, strict=True)}
    for each in plan.kernels:
        given = [tensors[b.name] for b in each.program.inputs]
        apart = run(each, given, {})
        for output, places in overwritable(each).items():
            for place in places:
                shared = run(each, given, {output: place})
                assert [_bits(a) for a in apart] == [_bits(b) for b in shared], (output, place)
        tensors |= {o.buffer.name: t for o, t in zip(each.program.outputs, apart, strict=True)}


def test_some_kernels_of_the_workloads_have_such_outputs() -> None:
    found = [
        name
        for name in NAMES
        if any(map(overwritable, planned(make_case(name, torch_inputs(name, SHAPE, "bf16"))).kernels))
    ]
    assert len(found) > len(NAMES) // 2


def run(each: Kernel, given: Sequence[Tensor], places: dict[str, str], found: Executable | None = None) -> list[Tensor]:
    """Outputs of a kernel on copies of its inputs. places: inputs that outputs overwrite, by output."""
    inputs = {b.name: _copy(t) for b, t in zip(each.program.inputs, given, strict=True)}
    sizes = {d.name: d.size for d in each.program.dims}
    fresh = {o.buffer.name: launch.allocate(o.buffer, sizes, given[0].device) for o in each.program.outputs}  # type: ignore[arg-type]
    outputs = [
        inputs[places[name]].as_strided(tensor.shape, tensor.stride()) if name in places else tensor
        for name, tensor in fresh.items()
    ]
    (found or launch.find(digest_of(each), str(each)))(list(inputs.values()), outputs, [])
    return outputs


def _copy(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _bits(tensor: Tensor) -> bytes:
    return tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes()


def test_aten_writes_the_same_in_place() -> None:
    """Without a function, where the result that is written last is an input itself."""
    body = """
  total: f32{m} = sum[n](x)
  scaled: f32{m, n} = mul(x, total)
  output out0: f32 [m:8, n:1] = scaled
  output out1: f32 [m:8, n:1] = x
"""
    each = kernel(body)
    x = torch.randn(6, 8)
    first, second = run(each, [x], {"out0": "x"}, Executable(each, None))
    torch.testing.assert_close(first, x * x.sum(1, keepdim=True))
    assert torch.equal(second, x)


# graphs


def loss(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x @ weight, target)


def batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, weight = torch.randn(ROWS, 32, generator=generator), torch.randn(32, COLUMNS, generator=generator)
    return x.requires_grad_(), weight.requires_grad_(), torch.randint(COLUMNS, (ROWS,), generator=generator)


@contextmanager
def overwritten() -> Generator[list[fx.Node]]:
    """Saved tensors that launches of the graphs compiled meanwhile write over."""
    found: list[fx.Node] = []
    call = WeftPass.__call__

    def spy(self: WeftPass, graph: fx.Graph) -> None:
        call(self, graph)
        found.extend(n.args[0] for n in graph.nodes if n.target is torch.ops.weft.over.default)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WeftPass, "__call__", spy)
        torch._dynamo.reset()
        yield found


def gradients(function: Callable[..., Any], backend: str, *inputs: Tensor) -> list[Tensor]:
    for tensor in inputs:
        tensor.grad = None
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    result = compiled(*inputs)
    results = [result] if isinstance(result, Tensor) else list(result)
    torch.autograd.backward(results, [torch.ones_like(each) for each in results])
    return [tensor.grad for tensor in inputs if tensor.grad is not None]


def test_the_gradient_of_the_logits_takes_their_place() -> None:
    """Memory of their size is allocated once, for the logits themselves."""
    inputs = batch()
    with overwritten() as found:
        mine, (forward, backward) = run_and_get_code(lambda: gradients(loss, "weft", *inputs))
    assert [tuple(node.meta["val"].shape) for node in found] == [(ROWS, COLUMNS)]
    allocation = f"empty_strided_cpu(({ROWS}, {COLUMNS})"
    assert (forward.count(allocation), backward.count(allocation)) == (1, 0)
    for ours, theirs in zip(mine, gradients(loss, "eager", *inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def with_logits(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logits = x @ weight
    return F.cross_entropy(logits, target), logits


def with_view(x: Tensor, weight: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    logits = x @ weight
    return F.cross_entropy(logits, target), logits[1]


@pytest.mark.parametrize("function", [with_logits, with_view])
def test_what_a_user_has_is_not_overwritten(function: Callable[..., Any]) -> None:
    inputs = batch()
    with overwritten() as found:
        mine = gradients(function, "weft", *inputs)
    assert found == []
    for ours, theirs in zip(mine, gradients(function, "eager", *inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_what_something_else_reads_is_not_overwritten() -> None:
    """A product of the logits needs them after their gradient is there, or before."""

    def function(x: Tensor, weight: Tensor, target: Tensor) -> Tensor:
        logits = x @ weight
        return F.cross_entropy(logits, target) + (logits @ weight.T).sum()

    inputs = batch()
    with overwritten() as found:
        mine = gradients(function, "weft", *inputs)
    assert found == []
    for ours, theirs in zip(mine, gradients(function, "eager", *inputs), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_nothing_is_overwritten_where_autograd_gives_nothing_away() -> None:
    inputs = batch()
    with torch._functorch.config.patch(donated_buffer=False), overwritten() as found:
        gradients(loss, "weft", *inputs)
    assert found == []


def test_a_backward_that_is_kept_for_another_overwrites_nothing() -> None:
    inputs = batch()
    exact = gradients(loss, "eager", *inputs)
    with overwritten() as found:
        result = torch.compile(loss, backend="weft", fullgraph=True)(*inputs)
        for keep in (True, True, False):
            mine = torch.autograd.grad(result, inputs[:2], retain_graph=keep)
            for ours, theirs in zip(mine, exact, strict=True):
                torch.testing.assert_close(ours, theirs)
    assert found == []


def test_a_backward_that_overwrites_is_not_kept_for_another() -> None:
    """As with TorchInductor, autograd says so."""
    inputs = batch()
    with overwritten() as found:
        compiled = torch.compile(loss, backend="weft", fullgraph=True)
        compiled(*inputs).backward()
        with pytest.raises(RuntimeError, match="retain_graph"):
            compiled(*inputs).backward(retain_graph=True)
    assert len(found) == 1


def test_forwards_overwrite_nothing() -> None:
    x = torch.randn(ROWS, COLUMNS)
    kept = x.clone()
    with overwritten() as found:
        torch.compile(lambda x: torch.softmax(x, -1), backend="weft", fullgraph=True)(x)
    assert found == []
    assert torch.equal(x, kept)
