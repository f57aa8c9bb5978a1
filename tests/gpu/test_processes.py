"""What a second process finds of the first one's work."""

from __future__ import annotations

from pathlib import Path

from tests.test_backend import run_python

BLOCK = """
    import json, os, torch, weft
    from weft.bench.workloads import WORKLOADS

    workload = WORKLOADS["rms_norm_backward"]
    inputs = workload.make_inputs((4096, 1024), torch.bfloat16, "cuda", 3)
    made = weft.fuse(workload.fn, strict=True)(*inputs)
    torch.cuda.synchronize()
    triton = os.environ["TRITON_CACHE_DIR"]
    left = [name for _, _, names in os.walk(triton) for name in names if name.startswith("weft_")]
    print(json.dumps(weft.counters.to_dict() | {"sum": made[0].double().sum().item(), "left": left}))
"""


def test_a_second_process_compiles_nothing(tmp_path: Path) -> None:
    cold, warm = (run_python(BLOCK, tmp_path, TRITON_CACHE_DIR=str(tmp_path / "triton")) for _ in range(2))
    assert cold["builds"] == cold["kernels"] >= 1
    assert (warm["builds"], warm["pass_calls"], warm["fallbacks"]) == (0, 0, 0)
    assert warm["cache_hits"] == warm["launches"] == cold["launches"]
    assert warm["sum"] == cold["sum"]
    assert cold["left"] == warm["left"] == []


def test_a_damaged_kernel_is_made_anew(tmp_path: Path) -> None:
    environment = {"TRITON_CACHE_DIR": str(tmp_path / "triton")}
    cold = run_python(BLOCK, tmp_path, **environment)
    for path in (tmp_path / "weft").rglob("*.zip"):
        content = path.read_bytes()
        path.write_bytes(content[: len(content) // 2])
    warm = run_python(BLOCK, tmp_path, **environment)
    assert warm["builds"] == cold["builds"]
    assert (warm["sum"], warm["fallbacks"]) == (cold["sum"], 0)
