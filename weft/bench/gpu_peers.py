"""Peers that only make sense on a GPU. Nothing here imports one before it is asked for, on a machine with a GPU."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch._inductor.config
from torch import Tensor

from weft.bench.case import Case
from weft.bench.inputs import NORM_EPS
from weft.bench.peers import call_candidate, inductor_call
from weft.bench.reason import Reason
from weft.bench.timing import Candidate

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
    return call_candidate(peer, make(*case.inputs), ())


def _liger(name: str) -> Callable[..., Any]:
    """The call of an autograd function of Liger that overwrites none of its arguments."""
    module, function = {
        "rms_norm": ("liger_kernel.ops.rms_norm", "LigerRMSNormFunction"),
        "layer_norm": ("liger_kernel.ops.layer_norm", "LigerLayerNormFunction"),
        "softmax": ("liger_kernel.ops.softmax", "LigerSoftmaxFunction"),
    }[name]
    apply = getattr(import_module(module), function).apply
    if name == "rms_norm":
        return lambda x, weight: apply(x, weight, NORM_EPS, 0.0, "llama", False)
    return (lambda x, weight, bias: apply(x, weight, bias, NORM_EPS)) if name == "layer_norm" else apply


def _quack(module: str, name: str) -> Callable[..., Any]:
    return getattr(import_module(f"quack.{module}"), name)


def _gradients(function: Callable[..., Tensor], leaves: tuple[Tensor, ...], dy: Tensor) -> Callable[[], Any]:
    """The backward of one forward, as often as it is called. Gradients in the order of the leaves."""
    own = [t.detach().requires_grad_() for t in leaves]
    with torch.enable_grad():
        y = function(*own)
    return lambda: torch.autograd.grad(y, own, dy, retain_graph=True)


Maker = Callable[..., Callable[[], Any]]
CALLS: dict[str, dict[str, Maker]] = {
    "liger": {
        "rms_norm_forward": lambda x, weight: lambda: _liger("rms_norm")(x, weight),
        "rms_norm_backward": lambda dy, x, weight, rstd: _gradients(_liger("rms_norm"), (x, weight), dy),
        "layer_norm_forward": lambda x, weight, bias: lambda: _liger("layer_norm")(x, weight, bias),
        "layer_norm_backward": lambda dy, x, weight, mean, rstd: _gradients(
            _liger("layer_norm"), (x, weight, torch.zeros_like(weight)), dy
        ),
        "softmax_forward": lambda x: lambda: _liger("softmax")(x),
    },
    "quack": {
        "rms_norm_forward": lambda x, weight: lambda: _quack("rmsnorm", "rmsnorm")(x, weight, eps=NORM_EPS),
        "rms_norm_backward": lambda dy, x, weight, rstd: _gradients(
            lambda a, b: _quack("rmsnorm", "rmsnorm")(a, b, eps=NORM_EPS), (x, weight), dy
        ),
        "softmax_forward": lambda x: lambda: _quack("softmax", "softmax")(x),
        "softmax_backward": lambda dy, y: lambda: _quack("softmax", "softmax_bwd")(dy, y),
    },
}
"""By peer and workload: given the inputs, what is timed. Statistics that the forward saved are the peer's own."""
