"""Names of element types. A program states them as short names; torch is asked only at the edge."""

from __future__ import annotations

import torch

TORCH_DTYPES: dict[str, torch.dtype] = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "i64": torch.int64,
    "i32": torch.int32,
    "bool": torch.bool,
}
NAMES: dict[torch.dtype, str] = {dtype: name for name, dtype in TORCH_DTYPES.items()}

FLOATS = ("f64", "f32", "bf16", "f16")
NARROW_FLOATS = ("bf16", "f16")
INTEGERS = ("i64", "i32")


def itemsize(dtype: str) -> int:
    """Bytes of one element."""
    return TORCH_DTYPES[dtype].itemsize


def compute_dtype(dtype: str) -> str:
    """The type arithmetic on ``dtype`` is done in: 16-bit floats are stored as such and computed in float32."""
    return "f32" if dtype in NARROW_FLOATS else dtype


def is_float(dtype: str) -> bool:
    return dtype in FLOATS


def preserves_value(source: str, target: str) -> bool:
    """Whether every number of ``source`` is a number of ``target``, so that a cast there and back changes nothing."""
    wider = {
        "bf16": ("bf16", "f32", "f64"),
        "f16": ("f16", "f32", "f64"),
        "f32": ("f32", "f64"),
        "f64": ("f64",),
        "bool": tuple(TORCH_DTYPES),
        "i32": ("i32", "i64", "f64"),
        "i64": ("i64",),
    }
    return target in wider[source]
