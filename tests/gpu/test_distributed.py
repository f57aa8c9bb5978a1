"""Two ranks with a GPU each: beside all-reduces, and training in parallel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_backend import ROOT

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are fewer than two CUDA devices")

LIMIT_S = 200
LOSS_TOLERANCE = 1e-4
"""Relative: what float32 sums in another order come to in six steps. With one thread of a CPU it was 1e-7."""


def run_ranks(task: str, folder: Path, device: str = "cuda") -> list[dict[str, Any]]:
    """What both ranks found, each in a process with caches of its own."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "lo",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.gpu.ranks", task, str(folder), str(rank), device],
            env=environment
            | {
                "TORCHINDUCTOR_CACHE_DIR": str(folder / f"inductor{rank}"),
                "WEFT_CACHE_DIR": str(folder / f"weft{rank}"),
            },
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said: list[str] = []
    try:
        said = [rank.communicate(timeout=LIMIT_S)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert not any(rank.returncode for rank in ranks), "\n\n".join(text[-3000:] for text in said)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_backwards_beside_an_all_reduce_are_right_and_alike_on_both_ranks(tmp_path: Path) -> None:
    ranks = run_ranks("beside_all_reduces", tmp_path)
    for seen in ranks:
        assert not any(seen["wrong"].values()), seen
        assert max(seen["errors"].values()) < 0.01, seen["errors"]
        assert seen["reduced"] == [2.0**50, 2.0**50], seen["reduced"]
        assert seen["in_flight"] > 0, "every all-reduce had ended before the kernels beside it"
        assert seen["before"] == ["same"], "what was compiled before the group waits for all of its programs"
        assert seen["finishes"] == ["same", "separate"]
        assert seen["fallbacks"] == 0
    assert ranks[0]["digests"] == ranks[1]["digests"]


def test_training_in_parallel_has_the_losses_of_eager(tmp_path: Path) -> None:
    ranks = run_ranks("data_parallel", tmp_path)
    for seen in ranks:
        eager, mine = (torch.tensor(seen["losses"][backend]) for backend in ("eager", "weft"))
        torch.testing.assert_close(mine, eager, rtol=LOSS_TOLERANCE, atol=0)
        assert eager[-1] < eager[0]
        assert seen["launches"] > 0
        assert seen["finishes"] == ["separate"]
        assert seen["fallbacks"] == 0
    assert ranks[0]["losses"]["weft"] != ranks[1]["losses"]["weft"], "both ranks had the same data"
    assert ranks[0]["digests"] == ranks[1]["digests"], "the ranks' parameters have come apart"
