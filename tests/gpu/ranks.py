"""What one of two ranks does: ``python -m tests.gpu.ranks TASK FOLDER RANK cuda|cpu`` writes ``FOLDER/RANK.json``.

A process that hangs ends by itself, with the stacks of its threads. On CPUs the ranks communicate through Gloo, which
only shows that the task runs.
"""

from __future__ import annotations

import faulthandler
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

import weft
from tests.accuracy import rms
from weft.bench.models import ResidualMix
from weft.bench.workloads import WORKLOADS
from weft.runtime import launch

LIMIT_S = 180
ITERATIONS, CALLS = 50, 2
"""All-reduces, and calls of every function beside each."""
SEEDS = 3
MARGIN = 32
STEPS = 6
Function = Callable[..., Sequence[Tensor]]


def main(task: str, folder: Path, rank: int, device: str) -> None:
    faulthandler.dump_traceback_later(LIMIT_S, exit=True)
    where = torch.device(device, rank) if device == "cuda" else torch.device("cpu")
    if device == "cuda":
        torch.cuda.set_device(where)
    found = TASKS[task](folder, rank, where) | {"fallbacks": weft.counters.fallbacks}
    (folder / f"{rank}.json").write_text(json.dumps(found))


def beside_all_reduces(folder: Path, rank: int, device: torch.device) -> dict[str, Any]:
    """Backwards while an all-reduce is in flight on another stream."""
    inputs = [_inputs("rms_norm_backward", device, seed) for seed in range(SEEDS)]
    layer_inputs = [_inputs("layer_norm_backward", device, seed) for seed in range(SEEDS)]
    first = weft.fuse(WORKLOADS["rms_norm_backward"].fn, strict=True, sm_margin=MARGIN)
    alone = {"before the group": [list(first(*each)) for each in inputs]}
    before = _finishes()
    with _group(folder, rank, device):
        second = weft.fuse(WORKLOADS["layer_norm_backward"].fn, strict=True)
        fused = weft.fuse(_norm)
        calls: dict[str, tuple[Function, list[tuple[Tensor, ...]]]] = {
            "before the group": (first, inputs),
            "in the group": (second, layer_inputs),
            "through autograd": (lambda *own: _gradients(fused, own), [each[1:3] for each in inputs]),
        }
        for name in ("in the group", "through autograd"):
            function, given = calls[name]
            alone[name] = [list(function(*each)) for each in given]
        exact = {
            "before the group": WORKLOADS["rms_norm_backward"].fn,
            "in the group": WORKLOADS["layer_norm_backward"].fn,
            "through autograd": lambda *own: _gradients(_norm, own),
        }
        errors = {
            name: max(_error(alone[name][at], exact[name], calls[name][1][at]) for at in range(SEEDS)) for name in alone
        }
        counts = _repeat(calls, alone, device)
    digests = {name: [_digest(results) for results in made] for name, made in alone.items()}
    return counts | {"errors": errors, "digests": digests, "before": before, "finishes": _finishes()}


def _repeat(
    calls: dict[str, tuple[Function, list[tuple[Tensor, ...]]]],
    alone: dict[str, list[list[Tensor]]],
    device: torch.device,
) -> dict[str, Any]:
    """wrong: calls with other bits than without an all-reduce, by function; in_flight: all-reduces that had not ended
    when the calls beside them had; reduced: what became of ones."""
    on_gpu = device.type == "cuda"
    buffer = torch.ones(2**28 if on_gpu else 2**10, device=device)
    dist.all_reduce(torch.ones(1, device=device))  # the first one makes the communicator
    _synchronise(device)
    side = torch.cuda.Stream() if on_gpu else None
    in_flight, wrong = 0, dict.fromkeys(calls, 0)
    for iteration in range(ITERATIONS):
        if side is not None:
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            work = dist.all_reduce(buffer, async_op=True)
        seed = iteration % SEEDS
        made = {name: [function(*given[seed]) for _ in range(CALLS)] for name, (function, given) in calls.items()}
        if on_gpu:
            torch.cuda.current_stream().synchronize()
        in_flight += not work.is_completed()
        with torch.cuda.stream(side):
            work.wait()
        _synchronise(device)
        for name, several in made.items():
            wrong[name] += sum(not all(map(torch.equal, each, alone[name][seed])) for each in several)
    reduced = [buffer.min().item(), buffer.max().item()]
    return {"wrong": wrong, "in_flight": in_flight, "reduced": reduced}


def data_parallel(folder: Path, rank: int, device: torch.device) -> dict[str, Any]:
    """Losses of a small model, each rank with data of its own: eager and weft."""
    with _group(folder, rank, device):
        trained = {backend: _train(backend, rank, device) for backend in ("eager", "weft")}
    return {
        "losses": {backend: losses for backend, (losses, _) in trained.items()},
        "digests": {backend: digest for backend, (_, digest) in trained.items()},
        "launches": weft.counters.launches,
        "finishes": _finishes(),
    }


def _train(backend: str, rank: int, device: torch.device) -> tuple[list[float], str]:
    """In float32: what differs is the order of sums. Losses, and a digest of the parameters behind them."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = ResidualMix(dim=256, blocks=2, heads=4, kv_heads=2, vocabulary=512).to(device)
    parallel = DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    step = parallel if backend == "eager" else torch.compile(parallel, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses: list[float] = []
    for number in range(STEPS):
        batch = [t.to(device) for t in model.make_batch(8, 128, seed=2 * number + rank)]
        optimizer.zero_grad()
        loss = step(*batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, _digest([p.detach() for p in model.parameters()])


TASKS: dict[str, Callable[[Path, int, torch.device], dict[str, Any]]] = {
    "beside_all_reduces": beside_all_reduces,
    "data_parallel": data_parallel,
}


@contextmanager
def _group(folder: Path, rank: int, device: torch.device) -> Iterator[None]:
    """Both ranks, which meet in a file of the folder."""
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=60),
        device_id=device if on_gpu else None,
    )
    yield
    _synchronise(device)
    dist.destroy_process_group()


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight) * x


def _gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> list[Tensor]:
    leaves = [t.detach().requires_grad_() for t in inputs]
    with torch.enable_grad():
        return list(torch.autograd.grad(function(*leaves).square().sum(), leaves))


def _inputs(name: str, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    """Made on the CPU, so that they are the same on every device."""
    return tuple(t.to(device) for t in WORKLOADS[name].make_inputs((4096, 1024), torch.bfloat16, "cpu", seed))


def _error(made: Sequence[Tensor], function: Function, inputs: Sequence[Tensor]) -> float:
    """The largest root mean square of a result's error, as a fraction of that of the result in float64."""
    exact = function(*(t.double() for t in inputs))
    return max(rms(mine.double() - wanted) / rms(wanted) for mine, wanted in zip(made, exact, strict=True))


def _finishes() -> list[str]:
    """Of all kernels with column sums so far."""
    found = {executable.kernel.schedule.finish for executable in launch._KERNELS.values()}
    return sorted(found - {"none"})


def _digest(tensors: Sequence[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
