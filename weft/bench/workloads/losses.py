"""Softmax, log-softmax and cross-entropy over the rows of logits."""

import torch
from torch import Tensor

from weft.bench.inputs import IGNORED, random_cross_entropy_inputs, random_softmax_inputs
from weft.bench.workloads.workload import Workload, wide


def softmax_forward(x: Tensor) -> Tensor:
    """`y [M, N]`, the softmax of each row of `x [M, N]`."""
    return torch.softmax(x, -1)


def softmax_backward(dy: Tensor, y: Tensor) -> Tensor:
    """`dx [M, N]` from the gradient `dy [M, N]` and the saved output `y [M, N]`."""
    product = wide(dy) * wide(y)
    dx = product - wide(y) * product.sum(-1, keepdim=True)
    return dx.to(dy.dtype)


def log_softmax_forward(x: Tensor) -> Tensor:
    """The log-softmax of each row of `x`, both `[M, N]`."""
    return torch.log_softmax(x, -1)


def log_softmax_backward(dy: Tensor, log_y: Tensor) -> Tensor:
    """`dx [M, N]` from the gradient `dy [M, N]` and the saved output `log_y [M, N]`."""
    dx = wide(dy) - wide(log_y).exp() * wide(dy).sum(-1, keepdim=True)
    return dx.to(dy.dtype)


def cross_entropy_forward(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The mean over positions that are not ignored, and what the backward needs: the loss `[]`, the largest logit
    `[M, 1]`, the logarithm of the sum of `exp(x - largest)` `[M, 1]`, and the count of positions `[]`.

    `x [M, N]` are logits, `target [M]` is int64; where it is `IGNORED` the position does not count. This is the form
    that `F.cross_entropy` has when it is compiled. Results are float32 (float64 for float64).
    """
    logits = wide(x)
    maximum = logits.amax(1, keepdim=True)
    below = logits - maximum
    log_total = below.exp().sum(1, keepdim=True).log()
    valid = target != IGNORED
    chosen = (below - log_total).gather(1, torch.where(valid, target, 0).unsqueeze(1)).squeeze(1)
    count = valid.sum().to(logits.dtype)
    loss = torch.where(valid, -chosen, 0.0).sum() / count
    return loss, maximum, log_total, count


def cross_entropy_backward(
    dloss: Tensor, x: Tensor, target: Tensor, maximum: Tensor, log_total: Tensor, count: Tensor
) -> Tensor:
    """`dx [M, N]`: the softmax of the saved logits less one at the target, over the count, times `dloss []`.

    As it is compiled from `F.cross_entropy`: the gradient of the log-probabilities is a comparison of positions with
    the target, which is never stored, and its sum along a row gives the factor of the softmax.
    """
    valid = (target != IGNORED).unsqueeze(1)
    safe = torch.where(valid, target.unsqueeze(1), 0)
    here = torch.arange(x.shape[1], device=x.device) == safe
    dlog = torch.where(here, -1.0, 0.0).to(maximum.dtype) * torch.where(valid, dloss / count, 0.0)
    softmax = (wide(x) - maximum - log_total).exp()
    return (dlog - softmax * dlog.sum(1, keepdim=True)).to(x.dtype)


LOSSES = (
    Workload(softmax_forward, (4096, 50257), random_softmax_inputs),
    Workload(softmax_backward, (4096, 50257), random_softmax_inputs),
    Workload(log_softmax_forward, (4096, 50257), random_softmax_inputs),
    Workload(log_softmax_backward, (4096, 50257), random_softmax_inputs),
    Workload(cross_entropy_forward, (4096, 128256), random_cross_entropy_inputs),
    Workload(cross_entropy_backward, (4096, 128256), random_cross_entropy_inputs),
)
