"""Launches in graphs in which TorchInductor fuses kernels of its own around them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._inductor.utils import run_and_get_code

import weft


def shifted(x: Tensor, w: Tensor) -> Tensor:
    """Indexing, which weft leaves to Inductor, on what two launches write and read."""
    normed = F.rms_norm(x, (x.shape[-1],), w)
    turned = normed.index_select(0, torch.arange(x.shape[0] - 1, -1, -1, device=x.device)) * 2 + normed.sin()
    return F.softmax(turned, -1)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_kernel_of_inductor_beside_launches_compiles(dtype: torch.dtype) -> None:
    x = torch.randn(512, 1024, device="cuda", dtype=dtype, requires_grad=True)
    w = torch.randn(1024, device="cuda", dtype=dtype, requires_grad=True)
    made, codes = run_and_get_code(torch.compile(shifted, backend="weft"), x, w)
    made.square().sum().backward()
    assert "weft_launch(" in codes[0]
    assert "triton_poi" in codes[0]
    grads, wanted = [x.grad, w.grad], torch.autograd.grad(shifted(x.double(), w.double()).square().sum(), [x, w])
    bound = 1e-4 if dtype == torch.float32 else 3e-2
    for grad, exact in zip(grads, wanted, strict=True):
        assert grad is not None
        assert (grad.double() - exact.double()).norm() <= bound * exact.double().norm()
    assert weft.counters.fallbacks == 0
