"""What commands of benchmarks have in common: workloads to choose from, and the GPU that some need."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch

from weft.bench.workloads import WORKLOADS


def add_workloads(parser: argparse.ArgumentParser, default: Sequence[str]) -> None:
    """``--workload``: names of workloads, those of ``default`` without it."""
    parser.add_argument(
        "--workload",
        metavar="WORKLOAD",
        nargs="+",
        choices=list(WORKLOADS),
        default=default,
        help="of those that weft bench has",
    )


def require_gpu(parser: argparse.ArgumentParser, device: str | None = None) -> None:
    """Ends a command that needs a GPU where torch sees none. device: what ``--device`` says, where there is that."""
    if device not in (None, "cuda") or torch.cuda.is_available():
        return
    if device is None:
        parser.error("torch sees no GPU here, and this times kernels on one")
    parser.error("--device cuda: torch sees no GPU here; use --device cpu")
