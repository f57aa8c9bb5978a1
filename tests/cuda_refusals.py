"""Rules by which no kernel in CUDA C++ is written, with ways to make them say so."""

from __future__ import annotations

from typing import Any

import torch

from tests.cuda_kernels import kernel_of, of_any_width, with_any_rows
from tests.refusal_cases import says
from weft.backends.cuda import build
from weft.backends.cuda.backend import BACKEND
from weft.backends.cuda.schedule import CudaSchedule
from weft.backends.cuda.work import Work
from weft.errors import Refusal
from weft.ir.parser import parse
from weft.plan.kernel import Kernel
from weft.plan.split import Split
from weft.target import Target


def split_of(body: str, parameters: str = "") -> Split:
    """A program of rows m and columns n, for an H200."""
    program = parse(f"program p({parameters})\n{body}end\n")
    return Split.of(program, ("m",), ("n",), Target.named("h200"), {})


def refused(body: str, rows: tuple[str, ...] = ("m",), segments: tuple[str, ...] = (), **fields: Any) -> Refusal:
    """Of a program whose columns are n."""
    refusal = supported(body, rows, segments, **fields)
    assert refusal is not None
    return refusal


def supported(
    body: str, rows: tuple[str, ...] = ("m",), segments: tuple[str, ...] = (), **fields: Any
) -> Refusal | None:
    """The same, if there is any."""
    dims = "".join(f"  dim {d} = {size}\n" for d, size in {"a": 3, "b": 4, "m": 8}.items() if d in rows)
    program = parse(f"program p()\n{dims}  dim n = 16\n{body}end\n")
    chosen = {"rows_per_tile": 1, "warps": 4, "vectors": 1, "stages": 2, "chunks": 8, "finish": "same"} | fields
    return BACKEND.supports(Kernel(program, CudaSchedule("CLUSTER", rows, ("n",), segments, **chosen)))


@says(
    "cuda_architecture: rms_norm_forward: copies rows ahead and shares them in clusters, which GPUs before Hopper "
    "cannot (have 80, needs 90)",
    80,
    90,
)
def _(*_: Any) -> Refusal | None:
    _, kernel = kernel_of("rms_norm_forward", (64, 256), warps=4, vectors=1)
    assert BACKEND.supports(kernel, Target.named("h200")) is None
    return BACKEND.supports(kernel, Target.named("a100"))


@says("cuda_rows: p: nothing is reduced along rows (have 0 reductions, needs 1)", 0, 1)
def _(*_: Any) -> Refusal | None:
    body = "  input x: f32 [m:16, n:1]\n  total: f32{n} = sum[m](x)\n  output y: f32 [n:1] = total\n"
    return BACKEND.check_fits(split_of(f"  dim m = 8\n  dim n = 16\n{body}"))


@says("cuda_nvrtc: p: no NVRTC: cuda-core is missing")
def _(monkeypatch: Any, *_: Any) -> Refusal | None:
    monkeypatch.setattr(build, "missing", lambda: "cuda-core")
    Work.of.cache_clear()
    body = "  input x: f32 [m:16, n:1]\n  sum: f32{m} = sum[n](x)\n  output y: f32 [m:1] = sum\n"
    found = BACKEND.check_fits(split_of(f"  dim m = 8\n  dim n = 16\n{body}"))
    Work.of.cache_clear()
    return found


@says("cuda_online: spread: no CUDA C++ is written for m2 over m (have 1 reduction, limit 0)", 1, 0)
def _(*_: Any) -> Refusal:
    body = "  input x: f32 [m:16, n:1]\n  spread: f32{n} = m2[m](x)\n  output y: f32 [n:1] = spread\n"
    return refused(body)


@says("cuda_online: total: no CUDA C++ is written for sumexp over m (have 1 reduction, limit 0)", 1, 0)
def _(*_: Any) -> Refusal:
    body = "  input x: f32 [m:16, n:1]\n  total: f32{n} = sumexp[m](x)\n  output y: f32 [n:1] = total\n"
    return refused(body)


@says("cuda_copies: p: reads no rows that could be copied ahead (have 0 inputs, needs 1)", 0, 1)
def _(*_: Any) -> Refusal:
    body = (
        "  input w: f32 [n:1]\n  input s: f32 [m:1]\n  product: f32{m, n} = mul(w, s)\n"
        "  sum: f32{m} = sum[n](product)\n  output y: f32 [m:1] = sum\n"
    )
    return refused(body, finish="none")


@says("cuda_columns: p: the columns of x do not lie next to each other (have 1 tensor, limit 0)", 1, 0)
def _(*_: Any) -> Refusal:
    body = "  input x: f32 [m:1, n:8]\n  sum: f32{m} = sum[n](x)\n  output y: f32 [m:1] = sum\n"
    return refused(body, finish="none")


@says("cuda_segments: first: keeps a of the segments (a, b), not all or none (have 1 dimension, needs 2)", 1, 2)
def _(*_: Any) -> Refusal:
    body = (
        "  input x: f32 [a:512, b:128, m:16, n:1]\n  first: f32{a, n} = sum[b, m](x)\n"
        "  second: f32{a, b, n} = sum[m](x)\n  output y: f32 [a:16, n:1] = first\n"
        "  output z: f32 [a:64, b:16, n:1] = second\n"
    )
    return refused(body, ("a", "b", "m"), ("a", "b"))


@says(
    "cuda_beginnings: p: rows of x are not equally far apart and begin at different places between two vectors "
    "(have 4 places, limit 1)",
    4,
    1,
)
def _(*_: Any) -> Refusal:
    body = (
        "  input x: f32 [a:OUTER, m:17, n:1]\n  sum: f32{a, m} = sum[n](x)\n  total: f32{n} = sum[a, m](x)\n"
        "  output y: f32 [a:8, m:1] = sum\n  output z: f32 [n:1] = total\n"
    )
    assert supported(body.replace("OUTER", "136"), ("a", "m")) is None  # all rows are equally far apart
    alone = "".join(line for line in body.splitlines(keepends=True) if "total" not in line)
    assert supported(alone.replace("OUTER", "200"), ("a", "m"), finish="none") is None  # and nothing is kept of columns
    return refused(body.replace("OUTER", "200"), ("a", "m"))


@says(
    "cuda_stages: rms_norm_backward: its row tiles come behind by more than it has stages (have 1 stage, needs 2)",
    1,
    2,
)
def _(*_: Any) -> Refusal | None:
    for stages, lag in ((1, 0), (2, 1)):
        _, kernel = kernel_of("rms_norm_backward", (64, 256), warps=4, vectors=1, stages=stages, lag=lag)
        assert BACKEND.supports(kernel) is None
    _, kernel = kernel_of("rms_norm_backward", (64, 256), warps=4, vectors=1, stages=1, lag=1)
    return BACKEND.supports(kernel)


@says(
    "cuda_groups: rms_norm_backward: rows of a group begin at different places between two vectors "
    "(have 4 groups, limit 1)",
    4,
    1,
)
def _(*_: Any) -> Refusal | None:
    def refused_by(columns: int, rows_per_tile: int = 8, **fields: Any) -> Refusal | None:
        _, kernel = kernel_of("rms_norm_backward", (64, columns), vectors=3, rows_per_tile=rows_per_tile, **fields)
        return BACKEND.supports(kernel)

    for fields in (
        {},
        {"rows_per_tile": 32},
        {"tile": "registers"},
        {"groups": 8},
        {"groups": 16, "rows_per_tile": 16},
    ):
        assert refused_by(256, **{"warps": 4, "groups": 4} | fields) is None
    against: tuple[dict[str, Any], ...] = (
        *({"cluster": 2}, {"rows_per_tile": 6}, {"rows_per_tile": 36}, {"weights": "shared"}),
        *({"warps": 6}, {"groups": 32, "rows_per_tile": 32}, {"groups": 8, "lag": 1, "stages": 3}),
    )
    for fields in against:
        refusal = refused_by(256, **{"warps": 4, "groups": 4} | fields)
        assert refusal is not None
        assert refusal.rule == "cuda_groups"
    assert refused_by(257, warps=8, groups=8) is None
    return refused_by(257, warps=4, groups=4)


@says(
    "cuda_tile: rms_norm_backward: its row tiles come behind, and their rows are not in shared memory then "
    "(have 1 row tile, limit 0)",
    1,
    0,
)
def _(*_: Any) -> Refusal | None:
    for tile, lag in (("registers", 0), ("shared", 1)):
        _, kernel = kernel_of("rms_norm_backward", (64, 256), warps=4, vectors=1, stages=2, lag=lag, tile=tile)
        assert BACKEND.supports(kernel) is None
    _, kernel = kernel_of("rms_norm_backward", (64, 256), warps=4, vectors=1, stages=2, lag=1, tile="registers")
    return BACKEND.supports(kernel)


@says(
    "cuda_exponentials: layer_norm_forward: has no exponentials that are added up, and used again for numbers of 16 "
    "bits (have 0 exponentials, needs 1)",
    0,
    1,
)
def _(*_: Any) -> Refusal | None:
    for name, dtype, is_refused in (
        ("softmax_forward", torch.bfloat16, False),
        ("softmax_forward", torch.float32, True),
        ("log_softmax_forward", torch.bfloat16, True),
    ):
        _, kernel = kernel_of(name, (64, 256), dtype, warps=4, vectors=1, tile="exponentials")
        refusal = BACKEND.supports(kernel)
        assert (refusal is not None and refusal.rule == "cuda_exponentials") == is_refused
    _, kernel = kernel_of("layer_norm_forward", (64, 256), warps=4, vectors=1, tile="exponentials")
    return BACKEND.supports(kernel)


@says(
    "cuda_shared_memory: softmax_forward: its stages take more shared memory than a block can have "
    "(have 262784 bytes, limit 232448)",
    262784,
    232448,
)
def _(*_: Any) -> Refusal | None:
    _, kernel = kernel_of("softmax_forward", (64, 65536), warps=4, vectors=64)
    return BACKEND.supports(kernel)


@says(
    "cuda_index: p: counts row tiles of a chunk in 32 bits (have 2250000081, limit 2147483647)", 2250000081, 2**31 - 1
)
def _(*_: Any) -> Refusal | None:
    kernel = with_any_rows(of_any_width(warps=4, vectors=1))
    sizes = {"m": 8, "n": 501, "s0": 501, "rows": 8}
    assert BACKEND.check_sizes(kernel, sizes) is None
    many = 250_000_000
    return BACKEND.check_sizes(kernel, sizes | {"m": many, "rows": many})


@says(
    "cuda_width: p: has rows that are wider than what the blocks of a cluster were given place for "
    "(have 1040 columns, limit 1024)",
    1040,
    1024,
)
def _(*_: Any) -> Refusal | None:
    kernel = of_any_width(cluster=2, warps=4, vectors=1)
    sizes = {"m": 8, "n": 1024, "s0": 1024}
    assert BACKEND.check_sizes(kernel, sizes) is None
    return BACKEND.check_sizes(kernel, sizes | {"n": 1040, "s0": 1040})
