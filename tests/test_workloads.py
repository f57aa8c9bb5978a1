"""The workloads compute what they say, and their exact inputs make results independent of the order of summation."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.exact_inputs import WEIGHT_OUTPUTS, exact_inputs, exact_norm_backward_inputs, exact_norm_forward_inputs
from weft.bench.inputs import IGNORED, NORM_EPS, Shape, batch_and_sequence, batch_sequence_heads
from weft.bench.workloads import WORKLOADS, Workload

NAMES = {
    "rms_norm_forward",
    "rms_norm_backward",
    "layer_norm_forward",
    "layer_norm_backward",
    "thunder_layer_norm_backward",
    "add_rms_norm_forward",
    "add_rms_norm_backward",
    "layer_norm_backward_bias",
    "softmax_forward",
    "softmax_backward",
    "log_softmax_forward",
    "log_softmax_backward",
    "cross_entropy_forward",
    "cross_entropy_backward",
    "modulated_layer_norm_forward",
    "modulated_layer_norm_backward",
    "qk_norm_forward",
    "qk_norm_backward",
    "row_column_sum",
    "row_column_amax",
    "rms_norm_fp8",
    "gelu_backward_bias",
    "batch_norm_forward",
}
SHAPES = [(64, 128), (33, 96), (7, 40), (128, 1000), (5, 37), (1, 2)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

each_workload = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS.keys())


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, so that comparison tells zeros of different sign apart."""
    return tensor.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[tensor.element_size()])


def two_pass_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm by sums; PyTorch's CPU kernel updates a running mean, which no input makes exact."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centred = wide - wide.mean(-1, keepdim=True)
    rstd = (centred.square().mean(-1, keepdim=True) + NORM_EPS).rsqrt()
    return (centred * rstd * weight + bias).to(x.dtype)


def outputs(workload: Workload, *inputs: Tensor) -> tuple[Tensor, ...]:
    if workload.name == "layer_norm_forward" and inputs[0].dtype == torch.float32:
        return (two_pass_layer_norm(*inputs),)
    return workload.outputs(*inputs)


def test_the_names_are_the_ones_that_benchmarks_and_documents_use():
    assert set(WORKLOADS) == NAMES
    assert all(name == workload.name for name, workload in WORKLOADS.items())


def doubled(value: Tensor) -> Tensor:
    """Floats as float64; targets as they are."""
    return value.double() if value.is_floating_point() else value


@each_workload
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_inputs_give_the_bits_of_float64_rounded_once(workload: Workload, shape: Shape, dtype: torch.dtype):
    if workload.name == "batch_norm_forward" and shape[0] == 1:
        with pytest.raises(ValueError, match="M = 2 or"):
            exact_inputs(workload.name, shape, dtype, seed=1)
        return
    inputs = exact_inputs(workload.name, shape, dtype, seed=1)
    expected = outputs(workload, *map(doubled, inputs))
    for got, want in zip(outputs(workload, *inputs), expected, strict=True):
        assert torch.isfinite(got.double()).all()
        assert torch.equal(bits(got), bits(want.to(got.dtype)))


@each_workload
def test_exact_inputs_do_not_depend_on_the_order_of_summation(workload: Workload):
    rows, columns = 33, 96
    inputs = exact_inputs(workload.name, (rows, columns), torch.float32)
    # sizes that a tensor's axes can have: all different, so that the size of an axis says what it counts
    batch, sequence = batch_and_sequence(rows)
    *_, heads = batch_sequence_heads(rows)
    assert (batch, sequence, heads) == (3, 11, 3)  # batches of one workload, heads of another
    order = {size: torch.randperm(size) for size in (rows, columns, batch, sequence)}
    order[heads * columns] = (order[heads][:, None] * columns + order[columns]).flatten()

    def permuted(value: Tensor) -> Tensor:
        if value.dtype == torch.int64:
            value = torch.where(value == IGNORED, IGNORED, order[columns].argsort()[value.clamp(min=0)])
        for axis, size in enumerate(value.shape):
            value = value.index_select(axis, order[size]) if size > 1 else value
        return value

    shuffled = outputs(workload, *(permuted(value) for value in inputs))
    for got, value in zip(shuffled, outputs(workload, *inputs), strict=True):
        assert torch.equal(got.double(), permuted(value.double()))


@each_workload
@pytest.mark.parametrize("kind", ["make_inputs", "exact_inputs"])
def test_inputs_are_fresh_reproducible_and_of_the_dtypes_promised(workload: Workload, kind: str):
    make = workload.make_inputs if kind == "make_inputs" else partial(exact_inputs, workload.name)
    first, again, other = (
        make((6, 40), torch.bfloat16),
        make((6, 40), torch.bfloat16),
        make((6, 40), torch.bfloat16, seed=1),
    )
    for value, same, different in zip(first, again, other, strict=True):
        assert value.dtype == dtype_promised(value)
        assert torch.equal(value, same)
        assert value.data_ptr() != same.data_ptr()
        assert not torch.equal(value, different) or kind == "exact_inputs" or value.dim() == 0
    wide = make((6, 40), torch.float64)
    assert all(value.dtype in (torch.float64, torch.int64) for value in wide)
    assert [v.dtype == torch.int64 for v in wide] == [v.dtype == torch.int64 for v in first]


def dtype_promised(value: Tensor) -> torch.dtype:
    """Of an input for data of shape (6, 40) in bfloat16: statistics have one element a row, or one in all."""
    if value.dtype == torch.int64:
        return torch.int64
    return torch.float32 if value.numel() in (1, 6) else torch.bfloat16


@each_workload
@pytest.mark.parametrize("shape", [(0, 5), (1, 1), (1, 3), (7, 1), (7, 3)], ids=str)
def test_random_inputs_have_any_shape(workload: Workload, shape: Shape):
    inputs = workload.make_inputs(shape, torch.bfloat16)
    assert sum(value.numel() == shape[0] * shape[1] for value in inputs) >= 1
    if workload.name == "row_column_amax" and shape[0] == 0:
        with pytest.raises(IndexError):
            workload.outputs(*inputs)
        return
    for value in workload.outputs(*inputs):
        assert value.double().isfinite().all() or (shape[0] == 0 and workload.name == "cross_entropy_forward")


def test_rows_are_made_of_batches_and_heads():
    for rows in range(300):
        batch, sequence = batch_and_sequence(rows)
        assert batch * sequence == rows
        assert 1 <= batch <= 8
        assert batch <= sequence or rows == 0
        batch, sequence, heads = batch_sequence_heads(rows)
        assert batch * sequence * heads == rows
        assert 1 <= heads <= 8
    assert batch_and_sequence(16384) == (8, 2048)
    assert batch_sequence_heads(131072) == (8, 2048, 8)


@each_workload
def test_weight_outputs_are_the_sums_over_rows(workload: Workload):
    """They are the vectors whose shape does not change with the number of rows of a batch element."""
    few, many = 16, 32
    assert batch_and_sequence(few)[0] == batch_and_sequence(many)[0]
    shapes = ([v.shape for v in workload.outputs(*workload.make_inputs((m, 40), torch.float32))] for m in (few, many))
    same = [i for i, (a, b) in enumerate(zip(*shapes, strict=True)) if a == b and len(a) > 0]
    largest = [1] if workload.name == "row_column_amax" else []  # no sum
    assert same == [*WEIGHT_OUTPUTS.get(workload.name, ()), *largest]


@each_workload
def test_a_lost_row_changes_exact_column_sums(workload: Workload):
    inputs = exact_inputs(workload.name, (7, 40), torch.float32)
    full = outputs(workload, *inputs)
    axis = next((v.dim() - 2 for v in inputs if v.dim() > 1), 0)  # of positions, where there are batches or heads
    shorter = outputs(workload, *(v.narrow(axis, 0, 6) if v.shape[axis : axis + 1] == (7,) else v for v in inputs))
    for index in (*WEIGHT_OUTPUTS.get(workload.name, ()), *LARGEST_OR_LOSS.get(workload.name, ())):
        assert not torch.equal(full[index], shorter[index])


LARGEST_OR_LOSS = {"row_column_amax": (1,), "cross_entropy_forward": (0,)}
"""Other results that a lost row changes."""


@pytest.mark.parametrize("norm", ["rms_norm", "layer_norm"])
def test_norm_backwards_agree_with_autograd(norm: str):
    shape = (9, 50)
    backward = WORKLOADS[f"{norm}_backward"]
    inputs = backward.make_inputs(shape, torch.float64)
    dy, x, weight = (value.clone().requires_grad_() for value in inputs[:3])
    bias = torch.zeros_like(weight, requires_grad=True)
    if norm == "rms_norm":
        wanted = torch.autograd.grad(F.rms_norm(x, (50,), weight, NORM_EPS), (x, weight), dy)
    else:
        wanted = torch.autograd.grad(F.layer_norm(x, (50,), weight, bias, NORM_EPS), (x, weight, bias), dy)
    torch.testing.assert_close(backward.outputs(*inputs), wanted, rtol=1e-9, atol=1e-9)


def test_the_other_backwards_agree_with_the_plain_ones():
    dy, x, weight, mean, rstd = WORKLOADS["layer_norm_backward"].make_inputs((9, 64), torch.float64)
    dx, dweight, dbias = WORKLOADS["layer_norm_backward"].outputs(dy, x, weight, mean, rstd)
    thunder = WORKLOADS["thunder_layer_norm_backward"].outputs(weight, mean.squeeze(1), dy, x, rstd)
    torch.testing.assert_close(thunder, (dx, dweight, dbias), rtol=1e-5, atol=1e-5)
    with_bias = WORKLOADS["layer_norm_backward_bias"].outputs(dy, x, weight, mean, rstd)
    torch.testing.assert_close(with_bias, (dx, dweight, dbias, dx.sum(0)))

    dy, dresidual, x, weight, rstd = WORKLOADS["add_rms_norm_backward"].make_inputs((9, 64), torch.float64)
    dx, dweight = WORKLOADS["rms_norm_backward"].outputs(dy, x, weight, rstd)
    added = WORKLOADS["add_rms_norm_backward"].outputs(dy, dresidual, x, weight, rstd)
    torch.testing.assert_close(added, (dx + dresidual, dweight))


@pytest.mark.parametrize("softmax", ["softmax", "log_softmax"])
def test_softmax_backwards_agree_with_autograd(softmax: str):
    (x,) = WORKLOADS[f"{softmax}_forward"].make_inputs((9, 50), torch.float64)
    dy = torch.randn_like(x)
    (y,) = WORKLOADS[f"{softmax}_forward"].outputs(x.requires_grad_())
    (wanted,) = torch.autograd.grad(y, x, dy)
    assert_equal_in_float64(WORKLOADS[f"{softmax}_backward"].outputs(dy, y.detach()), (wanted,))


def assert_equal_in_float64(got: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    torch.testing.assert_close(tuple(got), tuple(wanted), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shape", [(9, 50), (1, 3), (64, 1)], ids=str)
def test_cross_entropy_agrees_with_pytorchs(shape: Shape):
    x, target = WORKLOADS["cross_entropy_forward"].make_inputs(shape, torch.float64)
    assert shape[0] < 9 or (target == IGNORED).any()
    loss, *saved = WORKLOADS["cross_entropy_forward"].outputs(x, target)
    expected = F.cross_entropy(x.requires_grad_(), target)
    assert_equal_in_float64([loss], [expected])

    dloss, *others = WORKLOADS["cross_entropy_backward"].make_inputs(shape, torch.float64)
    assert_equal_in_float64(others, [x, target, *saved])
    (wanted,) = torch.autograd.grad(expected, x, dloss)
    assert_equal_in_float64(WORKLOADS["cross_entropy_backward"].outputs(dloss, x.detach(), target, *saved), [wanted])


@pytest.mark.parametrize("shape", [(12, 50), (7, 4), (1, 3)], ids=str)
def test_modulated_layer_norm_agrees_with_autograd(shape: Shape):
    dy, x, scale, mean, rstd = WORKLOADS["modulated_layer_norm_backward"].make_inputs(shape, torch.float64)
    shift = torch.randn_like(scale)
    leaves = [value.clone().requires_grad_() for value in (x, scale, shift)]
    (y,) = WORKLOADS["modulated_layer_norm_forward"].outputs(*leaves)
    normalised = F.layer_norm(x, x.shape[-1:], eps=NORM_EPS)
    assert_equal_in_float64([y], [normalised * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)])
    got = WORKLOADS["modulated_layer_norm_backward"].outputs(dy, x, scale, mean, rstd)
    assert_equal_in_float64(got, torch.autograd.grad(y, leaves, dy))


@pytest.mark.parametrize("shape", [(48, 50), (7, 4), (1, 3)], ids=str)
def test_qk_norm_agrees_with_autograd_through_the_view_of_the_projection(shape: Shape):
    dy, x, weight, rstd = WORKLOADS["qk_norm_backward"].make_inputs(shape, torch.float64)
    batch, heads, sequence, dim = x.shape
    projection = x.transpose(1, 2).flatten(2)
    assert projection.data_ptr() == x.data_ptr(), "x is no view of a projection"
    projection, weight = projection.clone().requires_grad_(), weight.requires_grad_()
    (y,) = WORKLOADS["qk_norm_forward"].outputs(projection.view(batch, sequence, heads, dim).transpose(1, 2), weight)
    got = WORKLOADS["qk_norm_backward"].outputs(dy, x, weight.detach(), rstd)
    assert_equal_in_float64(got, torch.autograd.grad(y, (projection, weight), dy))


def test_gelu_backward_agrees_with_autograd():
    dy, x = WORKLOADS["gelu_backward_bias"].make_inputs((9, 50), torch.float64)
    bias = torch.zeros(50, dtype=torch.float64, requires_grad=True)
    x.requires_grad_()
    wanted = torch.autograd.grad(F.gelu(x + bias), (x, bias), dy)
    assert_equal_in_float64(WORKLOADS["gelu_backward_bias"].outputs(dy, x.detach()), wanted)


def test_batch_norm_is_pytorchs_in_training():
    x, weight, bias = WORKLOADS["batch_norm_forward"].make_inputs((33, 20), torch.float64)
    expected = F.batch_norm(x, None, None, weight, bias, training=True, eps=NORM_EPS)
    assert_equal_in_float64(WORKLOADS["batch_norm_forward"].outputs(x, weight, bias), [expected])


def test_fp8_outputs_times_their_scales_are_the_norm():
    x, weight = WORKLOADS["rms_norm_fp8"].make_inputs((33, 64), torch.bfloat16)
    quantised, scale = WORKLOADS["rms_norm_fp8"].outputs(x, weight)
    norm = F.rms_norm(x.double(), (64,), weight.double(), NORM_EPS)
    assert quantised.double().abs().amax(1).eq(448).all()
    # three bits of mantissa: half a unit is 2^-4 of the value; below the smallest normal number, 2^-10 of the scale
    bound = norm.abs() * 2**-4 + scale.double() * 2**-10
    assert ((quantised.double() * scale.double() - norm).abs() <= bound * 1.001).all()
    zeros = torch.zeros(2, 8, dtype=torch.bfloat16)
    assert all(v.double().isfinite().all() for v in WORKLOADS["rms_norm_fp8"].outputs(zeros, weight[:8]))


def test_shapes_without_exact_statistics_are_refused():
    with pytest.raises(ValueError, match="N >= 4"):
        exact_norm_forward_inputs(True, ["x"], (4, 3), torch.float32)
    with pytest.raises(ValueError, match="at least two"):
        exact_norm_backward_inputs(False, ["x"], (4, 1), torch.float32)
