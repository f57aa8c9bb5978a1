"""A mixed-order kernel with a Triton schedule, and a text for it that was written by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from weft.backends.source import Source
from weft.backends.triton.backend import TritonBackend
from weft.backends.triton.schedule import TritonSchedule
from weft.ir.parser import parse
from weft.plan.kernel import Kernel

PROGRAM = parse(
    """program p(s0)
  dim m = s0
  dim n = 64
  input x: bf16 [m:64, n:1]
  cast: f32{m, n} = cast(x)
  row: f32{m} = sum[n](cast)
  scaled: f32{m, n} = mul(cast, row)
  column: f32{n} = sum[m](scaled)
  output y: f32 [m:64, n:1] = scaled
  output columns: f32 [n:1] = column
end
"""
)
SEPARATE = Kernel(
    PROGRAM,
    TritonSchedule(
        "STREAM",
        ("m",),
        ("n",),
        rows_per_tile=4,
        finish="separate",
        piece_columns=64,
        warps=4,
        stages=2,
        chunks=8,
    ),
)
SAME = replace(SEPARATE, schedule=replace(SEPARATE.schedule, finish="same"))
TEXT = """import triton
import triton.language as tl


@triton.jit
def weft_p(x, y, columns, column_partial, s0):
    c = tl.arange(0, 64)
    tiles = tl.cdiv(s0, 4)
    chunks = tl.minimum(tiles, 8)
    for chunk in tl.range(tl.program_id(0), chunks, tl.num_programs(0)):
        column = tl.zeros([4, 64], tl.float32)
        for tile in tl.range(chunk, tiles, chunks, num_stages=2):
            r = tile * 4 + tl.arange(0, 4)
            at = r[:, None] * 64 + c[None, :]
            cast = tl.load(x + at, mask=(r < s0)[:, None], other=0).to(tl.float32)
            scaled = cast * tl.sum(cast, axis=1)[:, None]
            tl.store(y + at, scaled, mask=(r < s0)[:, None])
            column += scaled
        tl.store(column_partial + chunk * 64 + c, tl.sum(column, axis=0))


@triton.jit
def weft_p_finish(x, y, columns, column_partial, s0):
    chunks = tl.minimum(tl.cdiv(s0, 4), 8)
    for task in tl.range(tl.program_id(0), 2, tl.num_programs(0)):
        c = task * 32 + tl.arange(0, 32)
        column = tl.zeros([32], tl.float32)
        for chunk in tl.range(0, chunks):
            column += tl.load(column_partial + chunk * 64 + c)
        tl.store(columns + c, column)
"""
SOURCE = Source("triton", "p", TEXT)
"""Of ``SEPARATE``."""


def render_by_hand(patch: pytest.MonkeyPatch, source: Source = SOURCE) -> None:
    """Let the backend for Triton write this text, whatever the kernel."""

    patch.setattr(TritonBackend, "render", lambda *_: source)
    patch.setattr(TritonBackend, "supports", lambda *_: None)
