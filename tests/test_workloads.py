"""The workloads compute what they say, and their exact inputs make results independent of the order of summation."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from weft.bench.inputs import NORM_EPS, Shape, exact_norm_backward_inputs, exact_norm_forward_inputs
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
}
SHAPES = [(64, 128), (33, 96), (7, 40), (128, 1000), (5, 37), (1, 2)]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]

each_workload = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS.keys())


def bits(tensor: Tensor) -> Tensor:
    """The tensor's bits as integers, so that comparison tells zeros of different sign apart."""
    return tensor.contiguous().view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


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


@each_workload
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exact_inputs_give_the_bits_of_float64_rounded_once(workload: Workload, shape: Shape, dtype: torch.dtype):
    inputs = workload.exact_inputs(shape, dtype, seed=1)
    expected = outputs(workload, *(value.double() for value in inputs))
    for got, want in zip(outputs(workload, *inputs), expected, strict=True):
        assert torch.isfinite(got).all()
        assert torch.equal(bits(got), bits(want.to(dtype)))


@each_workload
def test_exact_inputs_do_not_depend_on_the_order_of_summation(workload: Workload):
    rows, columns = 33, 96
    inputs = workload.exact_inputs((rows, columns), torch.float32)
    row_order, column_order = torch.randperm(rows), torch.randperm(columns)

    def permuted(value: Tensor) -> Tensor:
        value = value[..., column_order] if value.shape[-1] == columns else value
        return value[row_order] if value.shape[0] == rows else value

    shuffled = outputs(workload, *(permuted(value) for value in inputs))
    for got, value in zip(shuffled, outputs(workload, *inputs), strict=True):
        assert torch.equal(got, permuted(value))


@each_workload
@pytest.mark.parametrize("kind", ["make_inputs", "exact_inputs"])
def test_inputs_are_fresh_reproducible_and_of_the_dtypes_promised(workload: Workload, kind: str):
    make = getattr(workload, kind)
    first, again, other = (
        make((6, 40), torch.bfloat16),
        make((6, 40), torch.bfloat16),
        make((6, 40), torch.bfloat16, seed=1),
    )
    for value, same, different in zip(first, again, other, strict=True):
        assert value.dtype == (torch.float32 if value.shape in {(6,), (6, 1)} else torch.bfloat16)
        assert torch.equal(value, same)
        assert value.data_ptr() != same.data_ptr()
        assert not torch.equal(value, different) or kind == "exact_inputs"
    assert all(value.dtype == torch.float64 for value in make((6, 40), torch.float64))


@each_workload
def test_weight_outputs_are_the_sums_over_rows(workload: Workload):
    results = workload.outputs(*workload.make_inputs((6, 40), torch.float32))
    assert tuple(index for index, value in enumerate(results) if value.dim() == 1) == workload.weight_outputs


@each_workload
def test_a_lost_row_changes_exact_column_sums(workload: Workload):
    inputs = workload.exact_inputs((7, 40), torch.float32)
    full = outputs(workload, *inputs)
    shorter = outputs(workload, *(value[:-1] if value.shape[0] == 7 else value for value in inputs))
    for index in workload.weight_outputs:
        assert not torch.equal(full[index], shorter[index])


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


def test_softmax_backward_agrees_with_autograd():
    (x,) = WORKLOADS["softmax_forward"].make_inputs((9, 50), torch.float64)
    dy = torch.randn_like(x)
    y = torch.softmax(x.requires_grad_(), -1)
    (wanted,) = torch.autograd.grad(y, x, dy)
    torch.testing.assert_close(WORKLOADS["softmax_backward"].outputs(dy, y.detach())[0], wanted)


def test_shapes_without_exact_statistics_are_refused():
    with pytest.raises(ValueError, match="N >= 4"):
        exact_norm_forward_inputs(["x"], True, (4, 3), torch.float32)
    with pytest.raises(ValueError, match="at least two"):
        exact_norm_backward_inputs(["x"], False, (4, 1), torch.float32)
