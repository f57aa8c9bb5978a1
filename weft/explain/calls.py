"""What is wrong with a call that fails: the user's line, and the argument that may be meant otherwise."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from traceback import extract_tb
from typing import Any

import torch

from weft.capture.sources import in_torch
from weft.errors import CallError


def call(function: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any] | None = None) -> Any:
    """What the function returns, called as it is and not traced. Raises CallError for what it raises, which is the
    cause; but what there is no memory for stays as it is."""
    try:
        return function(*inputs, **(keywords or {}))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise CallError(_message(function, inputs, keywords or {}, error)) from error


def _message(function: Callable[..., Any], inputs: Sequence[Any], keywords: Mapping[str, Any], error: Exception) -> str:
    """In one line."""
    name = getattr(function, "__name__", type(function).__name__)
    cause = " ".join(str(error).split("\n\n")[0].split())
    said = f"{name} fails on these inputs: {type(error).__name__}: {cause}{line_of(error)}"
    called = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        signature = inspect.signature(called)
    except (TypeError, ValueError):  # a builtin
        return said
    try:
        arguments = signature.bind(*inputs, **keywords).arguments
    except TypeError:
        return f"{said}; it is called as {name}{signature}"
    plain = [f"{k} is {reprlib.repr(v)}" for k, v in arguments.items() if type(v) in (int, float, str)]
    if not plain or not isinstance(error, TypeError | AttributeError):
        return said
    return f'{said}; {", ".join(plain)}: a tensor is given as it is, or as its type, "bf16[8192,4096]"'


def line_of(error: Exception) -> str:
    """`` at file.py:12: code`` of the innermost line that is the user's, below the one that caught the error; empty if
    there is none."""
    frames = [f for f in extract_tb(error.__traceback__)[1:] if not in_torch(f.filename) and f.filename[0] != "<"]
    return f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}: {frames[-1].line}" if frames else ""
