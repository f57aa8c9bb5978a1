"""The machine whose fibers are the threads of a kernel in CUDA C++: what is wrong with a text is found by it."""

from __future__ import annotations

from subprocess import CalledProcessError
from typing import Any

import pytest
import torch

from tests.cuda_header import bit_patterns
from tests.on_host.assembly import with_calls
from tests.on_host.kernels import MANY, WrongLaunchError, check, narrow, wide
from weft.ir.dtypes import TORCH_DTYPES

pytestmark = pytest.mark.where_changed("tests/on_host", "weft/backends", "weft/ir", "weft/lowering", "weft/plan")

ONE: dict[str, Any] = {"warps": 2, "vectors": 2, "chunks": 3}
BOTH: dict[str, Any] = {"cluster": 2, "warps": 1, "vectors": 2, "chunks": 3}
BEHIND: dict[str, Any] = BOTH | {"stages": 3, "lag": 1}
WAITS = "  wait_for_threads<warps * WARP>();\n  T total"
BROKEN: dict[str, tuple[str, dict[str, Any], str, str]] = {
    "a stage is read before it is filled": ("softmax_forward", ONE, "ring.wait_until_filled();", ""),
    "a stage is filled before it is free": ("softmax_forward", ONE, "ring.wait_until_free();", ""),
    "a stage is never free": ("softmax_forward", BOTH, "ring.release();", ""),
    "a warp says too early that it has read": ("softmax_forward", ONE, "  __syncwarp();\n  if (WEFT", "  if (WEFT"),
    "nobody waits for what is read": ("softmax_forward", ONE, "fence.proxy.async.shared::cta;", ""),
    "a row reduction has one place": ("softmax_forward", ONE, ", 2> exchange(", ", 1> exchange("),
    "a cluster's row reduction has one place": ("layer_norm_forward", BOTH, ", 2> exchange(", ", 1> exchange("),
    "tiles behind have two places": ("layer_norm_forward", BEHIND, ", 4> exchange(", ", 2> exchange("),
    "too few bytes are expected": ("softmax_forward", BOTH, "parts * count * sizeof(T));\n", "sizeof(T));\n"),
    "blocks start before each other": ("softmax_forward", BOTH, "w::wait_for_cluster<cluster>();", ""),
    "the finish does not wait": ("layer_norm_backward", ONE, "w::wait_for_all<threads>(barrier);", ""),
    "columns are added up before all are there": ("layer_norm_backward", ONE, WAITS, "  T total"),
    "a phase is another's": ("softmax_forward", ONE, "stage = 0, parity ^= 1", "stage = 0"),
    "a queue has one place": ("softmax_forward", BOTH, "TileQueue<cluster, 4> queue", "TileQueue<cluster, 1> queue"),
    "numbers of rows are not waited for": ("layer_norm_backward", BOTH, "ring.numbers_copied();", ""),
    "numbers of rows are another tile's": ("layer_norm_backward", BEHIND, "memory + stage * stage_bytes", "memory"),
    "a copy ends before the row": ("softmax_forward", ONE, "to) + GRANULE - 1)", "to))"),
    "what lies before a row counts": ("softmax_forward", ONE, "if (!inside(column + i, columns)) n", "if (0) n"),
    "a tile is nobody's": ("softmax_forward", ONE, "+ turn * clusters;", "+ turn * clusters + 1;"),
    "barriers are started without a fence": ("softmax_forward", BOTH, "w::started_barriers();", ""),
    "a block does not acquire": ("softmax_forward", BOTH, "wait<(cluster > 1)>(", "wait<false>("),
    "a vector is not aligned": ("softmax_forward", ONE, "if (together && all) {", "if (all) {"),
}  # fmt: skip
"""A workload, a schedule, and what of the text, or of the headers, is replaced by what."""


@pytest.mark.parametrize("what", list(BROKEN))
def test_what_is_broken_is_found(what: str) -> None:
    name, fields, part, instead = BROKEN[what]

    def change(text: str) -> str:
        assert part in text
        return text.replace(part, instead)

    early = 3 * (what == "a vector is not aligned")
    with pytest.raises(WrongLaunchError):
        check(name, (17, 1003), early=early, machines=MANY, change=change, **fields)


def test_what_threads_wait_for_is_told() -> None:
    with pytest.raises(WrongLaunchError, match="all wait: block 0 from thread 0 on for the barrier in shared memory"):
        check("softmax_forward", (17, 1003), change=lambda text: text.replace("ring.release();", ""), **BOTH)


# assembly


def test_instructions_become_calls() -> None:
    text = (
        'int f() {\n  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"\n      : "=r"(found) : "r"(min(a, b)), '
        '"r"(w::c) : "memory");\n}\n#define OP(name) asm(#name ".rn.f16x2 %0, %2;" : "=r"(x) : "r"(y), "r"(z));\n'
        'asm("{\\n.reg .pred done;\\nA_%=:\\ntry.it done, [%0];\\n@!done bra A_%=;\\n}" ::"r"(b));\n'
        'asm("" : "+r"(word));\n'
    )
    assert with_calls(text).splitlines() == [
        "int f() {",
        "  { ptx::mapa_shared_cluster_u32((found), (min(a, b)), (w::c)); }",
        "",
        "}",
        "#define OP(name) { ptx::name##_rn_f16x2((x), (z)); }",
        "{ { bool done; A_2: ptx::try_it(done, (b)); if (!done) goto A_2; } }",
        "{  }",
    ]


def test_an_instruction_that_nobody_emulates_does_not_compile(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CalledProcessError):
        check("softmax_forward", (3, 515), change=lambda text: text.replace("mapa.", "mapb."), **BOTH)
    assert "mapb_shared_cluster_u32" in capfd.readouterr().err


# floats of 16 and 8 bits


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f8e4m3", "f8e5m2"])
def test_narrow_floats_are_rounded_as_in_torch(dtype: str) -> None:
    """Those of 8 bits too, but for what is beyond the largest one: it is that one."""
    torchs, kind = TORCH_DTYPES[dtype], ["bf16", "f16", "f8e4m3", "f8e5m2"].index(dtype)
    own = bit_patterns(dtype)
    numbers, bits = own.double(), own.view(torch.uint8 if own.element_size() == 1 else torch.int16).tolist()
    found = torch.tensor([wide(each % 2 ** (8 * own.element_size()), kind) for each in bits], dtype=torch.float64)
    assert torch.equal(found.nan_to_num(1.5), numbers.nan_to_num(1.5))
    assert torch.equal(found.isnan(), numbers.isnan())
    some = bit_patterns("f32")[::97]
    if own.element_size() == 1:
        some = some.clamp(-torch.finfo(torchs).max, torch.finfo(torchs).max)
    rounded = torch.tensor([wide(narrow(each, kind), kind) for each in some.tolist()], dtype=torch.float64)
    right = some.to(torchs).double()
    assert torch.equal(rounded.nan_to_num(1.5), right.nan_to_num(1.5))
    assert torch.equal(rounded.signbit()[~right.isnan()], right.signbit()[~right.isnan()])
