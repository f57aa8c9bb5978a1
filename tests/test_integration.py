"""What real programs do: through weft they compute what they compute eagerly, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import weft
from tests.cases import often
from weft.plan import planner

Function = Callable[..., Any]


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every region is taken, however small; nothing was compiled or counted yet."""
    monkeypatch.setattr(planner, "check_worthwhile", lambda *_: None)
    torch._dynamo.reset()
    weft.counters.reset()


def norm(x: Tensor, w: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w)


def tuple_of(result: Any) -> tuple[Tensor, ...]:
    return (result,) if isinstance(result, Tensor) else tuple(result)


def gradients(function: Function, inputs: tuple[Any, ...]) -> list[Tensor]:
    """Outputs and the gradients of all inputs that ask for one, under fixed random cotangents."""
    outputs = [out for out in tuple_of(function(*inputs)) if out.is_floating_point()]
    leaves = [t for t in dict.fromkeys(inputs) if isinstance(t, Tensor) and t.requires_grad]
    differentiable = [out for out in outputs if out.requires_grad]
    if not leaves or not differentiable:
        return outputs
    seeds = [torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape).cos() for out in differentiable]
    found = torch.autograd.grad(differentiable, leaves, seeds, allow_unused=True)
    return outputs + [g for g in found if g is not None]


def same(function: Function, *inputs: Any, launches: int | None = None, **options: Any) -> Function:
    """Compare a compiled function with itself in eager mode. launches: at least so many kernels ran."""
    compiled = torch.compile(function, backend="weft", **options)
    mine, theirs = gradients(compiled, inputs), gradients(function, inputs)
    assert len(mine) == len(theirs)
    for a, b in zip(mine, theirs, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-4, equal_nan=True)
    assert weft.counters.launches >= (1 if launches is None else launches)
    assert weft.counters.fallbacks == 0
    assert weft.counters.refusals["internal_error"] == 0
    return compiled


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, dtype=dtype).requires_grad_()


# inputs that share memory


def test_the_same_tensor_twice() -> None:
    x, w = leaf(20, 32), leaf(32)
    same(lambda a, b, w: norm(a + b, w) * b, x, x, w)


def test_overlapping_views() -> None:
    base, w = torch.randn(21, 32), leaf(32)
    same(lambda a, b, w: norm(a, w) - F.softmax(b, -1), base[:-1], base[1:], w)
    same(lambda x, w: norm(x[:-1] - x[1:], w), leaf(21, 32), w)


def test_expanded_inputs() -> None:
    w = leaf(32)
    same(norm, torch.randn(1, 32).expand(20, 32), w)
    same(norm, torch.randn(20, 1).expand(20, 32), w)
    same(lambda x, r, w: norm(x + r, w), leaf(20, 32), torch.randn(32).expand(20, 32), w)


def test_rows_that_overlap_in_memory() -> None:
    windows = torch.randn(200).as_strided((20, 32), (8, 1))
    same(norm, windows, leaf(32))
    same(lambda x: (F.softmax(x, -1), x.sum(0)), windows)


# inputs that are written


def test_an_input_that_is_written_before_and_after_it_is_read() -> None:
    def step(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        x.add_(1)
        y = norm(x, w)
        x.mul_(2)
        return y, F.softmax(x, -1)

    x, w = torch.randn(20, 32), torch.randn(32)
    mine, theirs = x.clone(), x.clone()
    got = torch.compile(step, backend="weft", fullgraph=True)(mine, w)
    torch.testing.assert_close(got, step(theirs, w))
    torch.testing.assert_close(mine, theirs)
    assert weft.counters.launches >= 1


def test_running_statistics_of_a_batch_norm() -> None:
    torch.manual_seed(0)
    modules = [nn.Sequential(nn.Linear(16, 24), nn.BatchNorm1d(24), nn.LayerNorm(24)) for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    compiled = torch.compile(modules[0], backend="weft", fullgraph=True)
    for _ in range(3):
        x = torch.randn(40, 16)
        mine, theirs = compiled(x), modules[1](x)
        torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-4)
        mine.square().sum().backward()
        theirs.square().sum().backward()
    for (name, a), (_, b) in zip(modules[0].named_buffers(), modules[1].named_buffers(), strict=True):
        torch.testing.assert_close(a, b, msg=name)
    for a, b in zip(modules[0].parameters(), modules[1].parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-3)
    assert weft.counters.launches >= 3


def test_a_view_of_an_input_that_is_written() -> None:
    def step(state: Tensor, x: Tensor) -> Tensor:
        total = F.softmax(state + x, -1)
        state[2:5].copy_(total[2:5] * 2)
        return F.softmax(state, -1).sum(0)

    state, x = torch.randn(20, 32), torch.randn(20, 32)
    mine, theirs = state.clone(), state.clone()
    torch.testing.assert_close(torch.compile(step, backend="weft")(mine, x), step(theirs, x))
    torch.testing.assert_close(mine, theirs)


# graphs


def test_unsupported_operations_in_the_middle() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = norm(x, w)
        y = torch.sort(y, -1).values.cumsum(-1)
        return F.softmax(y, -1)

    same(function, leaf(20, 32), leaf(32), launches=2)


def test_graph_breaks() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = norm(x, w)
        torch._dynamo.graph_break()
        return F.softmax(y, -1) * 2

    same(function, leaf(20, 32), leaf(32), launches=4)
    assert weft.counters.pass_calls == 4


@pytest.mark.parametrize("asking", often(["x", "w", "b", "xw", "xb", "wb"], ["x", "b", "xw"]))
def test_gradients_for_some_inputs_only(asking: str) -> None:
    inputs = [torch.randn(20, 32), torch.randn(32), torch.randn(32)]
    for name, t in zip("xwb", inputs, strict=True):
        t.requires_grad_(name in asking)
    same(lambda x, w, b: F.layer_norm(x, (32,), w, b).sin(), *inputs)


def test_no_grad_and_inference_mode() -> None:
    x, w = leaf(20, 32), leaf(32)
    compiled = torch.compile(norm, backend="weft")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(compiled(x, w), norm(x, w))
    with torch.inference_mode():
        made = torch.randn(20, 32)
        torch.testing.assert_close(compiled(made, w), norm(made, w))
    mine = torch.autograd.grad(compiled(x, w).sum(), (x, w))
    theirs = torch.autograd.grad(norm(x, w).sum(), (x, w))
    torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-4)
    assert weft.counters.fallbacks == 0


def test_a_double_backward_is_the_error_of_any_compiled_function() -> None:
    x, w = leaf(20, 32), leaf(32)
    (first,) = torch.autograd.grad(torch.compile(norm, backend="weft")(x, w).sin().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        torch.autograd.grad(first.sum(), x)


def test_activation_checkpointing() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        y = checkpoint(lambda x: norm(x, w).sin(), x, use_reentrant=False)
        assert isinstance(y, Tensor)
        return F.softmax(y, -1)

    same(function, leaf(20, 32), leaf(32), launches=2)


def test_dropout_draws_as_it_does_without_weft() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.dropout(norm(x, w), 0.3, training=True)

    x, w = leaf(200, 32), leaf(32)
    results: list[list[Tensor]] = []
    for backend in ("weft", "inductor"):
        torch.manual_seed(7)
        y = torch.compile(function, backend=backend)(x, w)
        results.append([y, *torch.autograd.grad(y.sum(), (x, w))])
    torch.testing.assert_close(results[0], results[1], rtol=2e-4, atol=2e-4)
    assert weft.counters.launches >= 1
    kept = (results[0][0] != 0).float().mean().item()
    assert abs(kept - 0.7) < 0.03


# functions of functions


def test_transforms_of_a_function_inside_the_graph() -> None:
    def function(x: Tensor, w: Tensor) -> Tensor:
        return F.softmax(norm(x, w), -1)

    x, w = torch.randn(20, 32), torch.randn(32)
    each = torch.randn(4, 20, 32)
    cases: list[tuple[Function, tuple[Tensor, ...]]] = [
        (torch.func.grad(lambda x, w: function(x, w).square().sum(), argnums=1), (x, w)),
        (torch.func.vmap(function, in_dims=(0, None)), (each, w)),
        (lambda x, w: torch.func.jvp(function, (x, w), (x.sin(), w.cos())), (x, w)),
        (torch.func.vmap(torch.func.grad(lambda x, w: function(x, w).square().sum()), in_dims=(0, None)), (each, w)),
    ]
    for transformed, inputs in cases:
        torch._dynamo.reset()
        mine = tuple_of(torch.compile(transformed, backend="weft")(*inputs))
        torch.testing.assert_close(mine, tuple_of(transformed(*inputs)), rtol=2e-4, atol=2e-4)
    assert weft.counters.launches >= 1


# modules


class Tagged(Tensor):
    """A tensor with a name, nothing else."""


def test_a_tensor_subclass() -> None:
    x, w = torch.randn(20, 32).as_subclass(Tagged), torch.randn(32)
    mine = torch.compile(norm, backend="weft")(x, w)
    torch.testing.assert_close(mine.as_subclass(Tensor), norm(x, w).as_subclass(Tensor))


def test_tied_weights_and_hooks() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.LayerNorm(32)
            self.second = nn.LayerNorm(32)
            self.second.weight = self.first.weight
            self.linear = nn.Linear(32, 32)

        def forward(self, x: Tensor) -> Tensor:
            return self.second(self.linear(self.first(x)))

    model = Model()
    seen: list[tuple[int, ...]] = []
    model.first.register_forward_hook(lambda _, args, out: seen.append(tuple(out.shape)) or out * 2)
    model.linear.weight.register_hook(lambda g: g * 3)
    x = torch.randn(20, 32)

    def step(run: Function) -> list[Tensor]:
        model.zero_grad()
        run(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]  # type: ignore[union-attr]

    theirs, mine = step(model), step(torch.compile(model, backend="weft"))
    torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)
    assert len(seen) >= 2
    assert weft.counters.launches >= 2


# numbers


@pytest.mark.parametrize("rows", often([0, 1, 2], [0]))
def test_empty_and_small_batches(rows: int) -> None:
    for dynamic in (False, True):
        torch._dynamo.reset()
        same(lambda x, w: norm(x, w).sin(), leaf(rows, 32), leaf(32), launches=0, dynamic=dynamic)


def test_double_precision() -> None:
    x, w = leaf(20, 32, dtype=torch.float64), leaf(32, dtype=torch.float64)
    compiled = same(lambda x, w: norm(x, w).sin(), x, w)
    torch.testing.assert_close(compiled(x, w), norm(x, w).sin(), rtol=1e-13, atol=1e-13)


def test_autocast_inside_and_outside() -> None:
    linear = nn.Linear(32, 32)

    def inside(x: Tensor, w: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return norm(linear(x).float(), w)

    x, w = leaf(20, 32), leaf(32)
    for function in (inside, lambda x, w: norm(linear(x), w)):
        torch._dynamo.reset()
        with torch.autocast("cpu", torch.bfloat16):
            mine = torch.compile(function, backend="weft")(x, w)
            theirs = function(x, w)
        assert mine.dtype == theirs.dtype
        torch.testing.assert_close(mine, theirs, rtol=0.02, atol=0.02)
    assert weft.counters.launches >= 2


def test_one_thread_deterministic_algorithms_and_another_default_device() -> None:
    x, w = leaf(600, 32), leaf(32)
    before = torch.get_num_threads()
    compiled = same(lambda x, w: norm(x, w).sin(), x, w)
    expected = gradients(compiled, (x, w))
    try:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        for a, b in zip(gradients(compiled, (x, w)), expected, strict=True):
            assert torch.equal(a, b)
        torch.set_default_device("meta")
        made = compiled(x, w)
    finally:
        torch.set_default_device(None)
        torch.use_deterministic_algorithms(False)
        torch.set_num_threads(before)
    assert torch.equal(made, expected[0])


def test_twenty_batches_and_lengths_compile_nothing_new() -> None:
    def block(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return F.softmax(F.layer_norm(x, (32,), w, b), -1) * x

    w, b = leaf(32), leaf(32)
    compiled = torch.compile(block, backend="weft", dynamic=True)
    sizes = [(2 + i * 7 % 11, 3 + i * 5 % 13) for i in range(20)]  # the first two differ: equal ones share a symbol
    assert len(set(sizes)) == 20
    counts: set[tuple[int, int]] = set()
    for batch, length in sizes:
        x = leaf(batch, length, 32)
        for mine, theirs in zip(gradients(compiled, (x, w, b)), gradients(block, (x, w, b)), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=2e-4, atol=2e-4)
        counts.add((weft.counters.builds + weft.counters.cache_hits, weft.counters.pass_calls))
    assert len(counts) == 1
    assert weft.counters.pass_calls == 2
    assert weft.counters.launches >= 40
    assert weft.counters.fallbacks == 0
