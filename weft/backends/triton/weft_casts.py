# pyright: basic, reportAttributeAccessIssue=none, reportOptionalOperand=none, reportOperatorIssue=none, reportGeneralTypeIssues=none, reportArgumentType=none
"""Casts that generated Triton kernels call, through ``weft_triton``.

NVIDIA's GPUs round two floats to 16 bits in one instruction, and take two out of a register in one each; the compiler
does so only where it can tell, which it cannot where a rounded number is stored and computed with as well: there it
rounds one at a time, by another and slower instruction. On other GPUs, and interpreted, these are Triton's own casts.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@tl.core.builtin
def _targets_nvidia(_semantic: Any = None) -> Any:
    return tl.constexpr(getattr(_semantic.builder.options, "backend_name", "") == "cuda")


def _never() -> bool:
    return False


is_nvidia = _never if triton.knobs.runtime.interpret else _targets_nvidia


@triton.jit
def to_f32(x):
    """x: bfloat16."""
    if is_nvidia():
        result = tl.inline_asm_elementwise(
            "{ shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000; }", "=r,=r,r", [x], tl.float32, is_pure=True, pack=2
        )
    else:
        result = x.to(tl.float32)
    return result


@triton.jit
def to_f32_again(x):
    """What ``to_f32`` gives, in other words: a compiler that saw that it is the same would keep the first result until
    here, in twice the registers. x: bfloat16 or float16."""
    if not is_nvidia():
        result = x.to(tl.float32)
    elif x.dtype == tl.bfloat16:
        result = tl.inline_asm_elementwise(
            "{ prmt.b32 $0, $2, 0, 0x1044; prmt.b32 $1, $2, 0, 0x3244; }",
            "=r,=r,r",
            [x],
            tl.float32,
            is_pure=False,
            pack=2,
        )
    else:
        result = tl.inline_asm_elementwise(
            "{ .reg .b16 low, high; mov.b32 {low, high}, $2; cvt.f32.f16 $0, low; cvt.f32.f16 $1, high; }",
            "=f,=f,r",
            [x],
            tl.float32,
            is_pure=False,
            pack=2,
        )
    return result


@triton.jit
def to_bf16(x):
    """Rounded to nearest even. x: float32."""
    if is_nvidia():
        result = tl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,f,f", [x], tl.bfloat16, is_pure=True, pack=2
        )
    else:
        result = x.to(tl.bfloat16)
    return result


@triton.jit
def to_f16(x):
    """Rounded to nearest even. x: float32."""
    if is_nvidia():
        result = tl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,f,f", [x], tl.float16, is_pure=True, pack=2
        )
    else:
        result = x.to(tl.float16)
    return result


# floats of 16 bits, two at a time and rounded once, as bfloat16 has it from compute capability 8.0 on: by fma alone;
# Triton takes no single one for two


@triton.jit
def add_halves(x, y):
    """x + y. Both bfloat16 or both float16."""
    if is_nvidia() and (x.numel > 1 or y.numel > 1):
        result = _in_pairs(
            x,
            y,
            "{ .reg .b32 one; mov.b32 one, 0x3f803f80; fma.rn.bf16x2 $0, $1, one, $2; }",
            "add.rn.f16x2 $0, $1, $2;",
        )
    else:
        result = (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)
    return result


@triton.jit
def sub_halves(x, y):
    """x - y. Both bfloat16 or both float16."""
    if is_nvidia() and (x.numel > 1 or y.numel > 1):
        result = _in_pairs(
            x,
            y,
            "{ .reg .b32 one; mov.b32 one, 0xbf80bf80; fma.rn.bf16x2 $0, $2, one, $1; }",
            "sub.rn.f16x2 $0, $1, $2;",
        )
    else:
        result = (x.to(tl.float32) - y.to(tl.float32)).to(x.dtype)
    return result


@triton.jit
def mul_halves(x, y):
    """x * y. Both bfloat16 or both float16."""
    if is_nvidia() and (x.numel > 1 or y.numel > 1):
        result = _in_pairs(
            x,
            y,
            "{ .reg .b32 zero; mov.b32 zero, 0x80008000; fma.rn.bf16x2 $0, $1, $2, zero; }",  # -0.0 changes no zero
            "mul.rn.f16x2 $0, $1, $2;",
        )
    else:
        result = (x.to(tl.float32) * y.to(tl.float32)).to(x.dtype)
    return result


@triton.jit
def _in_pairs(x, y, of_bf16: tl.constexpr, of_f16: tl.constexpr):
    if x.dtype == tl.bfloat16:
        result = tl.inline_asm_elementwise(of_bf16, "=r,r,r", [x, y], tl.bfloat16, is_pure=True, pack=2)
    else:
        result = tl.inline_asm_elementwise(of_f16, "=r,r,r", [x, y], tl.float16, is_pure=True, pack=2)
    return result


# floats of eight bits: Triton's casts stop at the largest number, also for infinities; where they do differs by device


@triton.jit
def to_f8e4m3(x):
    """Rounded to nearest even. Beyond 448 once rounded: NaN, as in torch before 2.13. x: any type."""
    wide = x.to(tl.float32)
    return tl.where(tl.abs(wide) > 464.0, float("nan"), wide).to(tl.float8e4nv)


@triton.jit
def to_f8e4m3_saturated(x):
    """Rounded to nearest even. Beyond 448, infinities too: 448, as in torch from 2.13 on. x: any type."""
    wide = x.to(tl.float32)
    # min and max would make numbers of NaN
    return tl.where(tl.abs(wide) > 448.0, tl.where(wide < 0, -448.0, 448.0), wide).to(tl.float8e4nv)


@triton.jit
def to_f8e5m2(x):
    """Rounded to nearest even. Beyond 57344 once rounded: infinity. x: any type."""
    wide = x.to(tl.float32)
    bits = wide.to(tl.float8e5).to(tl.uint8, bitcast=True)
    infinity = tl.where(wide < 0, 0xFC, 0x7C).to(tl.uint8)
    return tl.where(tl.abs(wide) >= 61440.0, infinity, bits).to(tl.float8e5, bitcast=True)
