"""Peers that only make sense on a GPU. Nothing here imports one before it is asked for, on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor

from weft.bench.case import Case
from weft.bench.inputs import NORM_EPS
from weft.bench.peers import call_candidate, eager_call, inductor_call
from weft.bench.reason import Reason
from weft.runtime.timing import Candidate

PIPELINED = ("mix_order_reduction_allow_multi_stages", "mix_order_reduction_non_strict_mode")
PACKAGES = {"liger": "liger_kernel", "quack": "quack"}


def inductor_pipelined(case: Case) -> Candidate | Reason:
    """Inductor's kernels of both directions with pipelined loops and without the gates that leave them out."""
    known = [name for name in PIPELINED if hasattr(torch._inductor.config.triton, name)]
    if not known:
        return Reason("no_option", "inductor_pipelined", f"torch {torch.__version__} has none of its options")
    return inductor_call(case, "inductor_pipelined", {f"triton.{name}": True for name in known})


def package_candidate(peer: str, case: Case) -> Candidate | Reason:
    """The kernel of another package for a workload. Raises what the package raises where it cannot do it."""
    package = PACKAGES[peer]
    if find_spec(package) is None:
        return Reason("not_installed", peer, f"{package} is not installed")
    make = CALLS[peer].get(case.workload)
    if make is None:
        return Reason("not_done", peer, f"no call of {package} is known for {case.workload}")
    candidate = call_candidate(peer, make(*case.inputs), ())
    candidate.run()
    return candidate


def _liger(name: str) -> Callable[..., Any]:
    """An autograd function of Liger, as the package chooses it for the device."""
    return getattr(import_module("liger_kernel.ops"), f"Liger{name}Function").apply


def _liger_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return _liger("RMSNorm")(x, weight, NORM_EPS, 0.0, "llama", False)


def _liger_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return _liger("FusedAddRMSNorm")(x, residual, weight, NORM_EPS, 0.0, "llama", False)


def _liger_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return _liger("LayerNorm")(x, weight, bias, NORM_EPS)


def _quack(module: str, name: str) -> Callable[..., Any]:
    return getattr(import_module(f"quack.{module}"), name)


def _quack_rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    return _quack("rmsnorm", "rmsnorm")(x, weight, eps=NORM_EPS)


def _quack_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return _quack("rmsnorm", "rmsnorm")(x, weight, residual=residual, eps=NORM_EPS, prenorm=True)


def _quack_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Callable[[], Tensor]:
    """It takes its weights in float32 only."""
    own = (weight.float(), bias.float())
    return lambda: _quack("rmsnorm", "layernorm_fwd")(x, *own, eps=NORM_EPS)


def _quack_layer_norm_gradients(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    statistics = (rstd.flatten(), mean.flatten())
    return lambda: _quack("rmsnorm", "layernorm_bwd")(x, weight, dy, *statistics)


def _gradients(
    function: Callable[..., Any], leaves: tuple[Tensor, ...], *gradients: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    """The backward of one forward, as often as it is called. Gradients in the order of the leaves."""
    own = [t.detach().requires_grad_() for t in leaves]
    with torch.enable_grad():
        y = function(*own)
    return lambda: torch.autograd.grad(y, own, gradients, retain_graph=True)


Maker = Callable[..., Callable[[], Any]]


def _rms_norms(norm: Callable[..., Any], add_norm: Callable[..., Any]) -> dict[str, Maker]:
    """Both directions of both, by the forwards."""
    return {
        "rms_norm_forward": lambda *inputs: partial(norm, *inputs),
        "rms_norm_backward": lambda dy, x, weight, rstd: _gradients(norm, (x, weight), dy),
        "add_rms_norm_forward": lambda *inputs: partial(add_norm, *inputs),
        "add_rms_norm_backward": lambda dy, dresidual, x, weight, rstd: _gradients(
            lambda a, b: add_norm(a, torch.zeros_like(a), b), (x, weight), dy, dresidual
        ),
    }


CALLS: dict[str, dict[str, Maker]] = {
    "liger": {
        **_rms_norms(_liger_rms_norm, _liger_add_rms_norm),
        "layer_norm_forward": lambda *inputs: partial(_liger_layer_norm, *inputs),
        "layer_norm_backward": lambda dy, x, weight, mean, rstd: _gradients(
            _liger_layer_norm, (x, weight, torch.zeros_like(weight)), dy
        ),
        "softmax_forward": lambda x: partial(_liger("Softmax"), x),
        "softmax_backward": lambda dy, y: _gradients(_liger("Softmax"), (y.float().log().to(y.dtype),), dy),
    },
    "quack": {
        **_rms_norms(_quack_rms_norm, _quack_add_rms_norm),
        "layer_norm_forward": _quack_layer_norm,
        "layer_norm_backward": _quack_layer_norm_gradients,
        "softmax_forward": lambda x: partial(_quack("softmax", "softmax"), x),
        "softmax_backward": lambda dy, y: partial(_quack("softmax", "softmax_bwd"), dy, y),
    },
}
"""By peer and workload: given the inputs, what is timed. Statistics that the forward saved are the peer's own; what is
converted for a peer is converted before it is timed."""

GPU_PEERS: dict[str, Callable[[Case], Candidate | Reason]] = {
    "eager": eager_call,
    "inductor": inductor_call,
    "inductor_pipelined": inductor_pipelined,
    **{peer: partial(package_candidate, peer) for peer in PACKAGES},
}
"""By name: what makes a call of a peer."""
