"""Names of element types. A program states them as short names; torch is asked only at the edge."""

from __future__ import annotations

import torch

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "f8e4m3": torch.float8_e4m3fn,
    "f8e5m2": torch.float8_e5m2,
    "i64": torch.int64,
    "i32": torch.int32,
    "i8": torch.int8,
    "u8": torch.uint8,
    "bool": torch.bool,
}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}

FLOATS = ("f64", "f32", "bf16", "f16", "f8e4m3", "f8e5m2")
HALVES = ("bf16", "f16")
INTEGERS = ("i64", "i32", "i8", "u8")
_COMPUTED_IN = {"bf16": "f32", "f16": "f32", "f8e4m3": "f32", "f8e5m2": "f32", "i8": "i32", "u8": "i32"}


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return TORCH_DTYPES[dtype].itemsize


def compute_dtype(dtype: str) -> str:
    """The type arithmetic on ``dtype`` is done in. Floats of 16 and 8 bits are computed in float32, integers of 8 bits
    in 32 bits, which gives the same bits once cast back."""
    return _COMPUTED_IN.get(dtype, dtype)


def is_narrow(dtype: str) -> bool:
    """Whether values of this type are only loaded, cast and stored."""
    return dtype in _COMPUTED_IN


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def preserves_value(source: str, target: str) -> bool:
    """Whether every number of ``source`` is a number of ``target``, so that a cast there and back changes nothing."""
    wider = {
        "bf16": ("bf16", "f32", "f64"),
        "f16": ("f16", "f32", "f64"),
        "f32": ("f32", "f64"),
        "f64": ("f64",),
        "f8e4m3": ("f8e4m3", "bf16", "f16", "f32", "f64"),
        "f8e5m2": ("f8e5m2", "bf16", "f16", "f32", "f64"),
        "bool": tuple(TORCH_DTYPES),
        "u8": ("u8", "i32", "i64", "bf16", "f16", "f32", "f64"),
        "i8": ("i8", "i32", "i64", "bf16", "f16", "f32", "f64"),
        "i32": ("i32", "i64", "f64"),
        "i64": ("i64",),
    }
    return target in wider[source]
