# pyright: basic, reportAttributeAccessIssue=none, reportArgumentType=none
"""What Triton's interpreter lacks: the device's library, and casts that round.

The interpreter computes with NumPy. It has nothing for the functions of a device's library, cuts floats of 16 and 8
bits off where a GPU rounds to nearest even, and takes reductions by functions it does not know element by element.
To be imported where kernels are interpreted: it puts all this in place. It also leaves out what the interpreter does
over and over again without any effect, more than half of its time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder, ReduceOps, TensorHandle

from weft.backends.triton import weft_triton

_FLOATS = {
    tl.float64: torch.float64,
    tl.float32: torch.float32,
    tl.bfloat16: torch.bfloat16,
    tl.float16: torch.float16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
_STORED_AS = {1: torch.uint8, 2: torch.int16}
"""Bits of floats that NumPy does not have, by bytes."""


def _elementwise(function: Callable[..., Any]) -> Callable[..., tl.tensor]:
    def apply(*operands: tl.tensor) -> tl.tensor:
        first, *others = operands
        for other in others:
            first, _ = interpreter.interpreter_semantic.broadcast_impl_value(first, other)
        data = function(*(x.handle.data for x in operands)).astype(first.handle.data.dtype)
        return tl.tensor(TensorHandle(data, first.dtype), first.type)

    return apply


FUNCTIONS = {
    "exp": _elementwise(np.exp),
    "expm1": _elementwise(np.expm1),
    "log1p": _elementwise(np.log1p),
    "log10": _elementwise(np.log10),
    "tan": _elementwise(np.tan),
    "asin": _elementwise(np.arcsin),
    "acos": _elementwise(np.arccos),
    "atan": _elementwise(np.arctan),
    "atan2": _elementwise(np.arctan2),
    "sinh": _elementwise(np.sinh),
    "cosh": _elementwise(np.cosh),
    "tanh": _elementwise(np.tanh),
    "erfc": _elementwise(np.vectorize(math.erfc, otypes=[np.float64])),
    "pow": _elementwise(np.power),
    "fmod": _elementwise(np.fmod),
    "copysign": _elementwise(np.copysign),
    "round": _elementwise(np.rint),
}
"""Those of ``weft_triton`` that come from the device's library."""
for name, function in FUNCTIONS.items():
    setattr(weft_triton, name, function)


def _cast(builder: InterpreterBuilder, source: TensorHandle, target: Any) -> TensorHandle:
    """Between floats and to floats: to nearest even, numbers too large for eight bits to the largest one."""
    # a comparison's result has the type of what is compared, and NumPy's booleans
    old, new = tl.int1 if source.data.dtype == np.bool_ else source.dtype.scalar, target.scalar
    if new not in _FLOATS and old not in _FLOATS:
        return _cast_in_numpy(builder, source, target)
    data = torch.from_numpy(np.ascontiguousarray(source.data))
    values = data.view(_FLOATS[old]) if old in _FLOATS else data
    if new not in _FLOATS:
        return TensorHandle(values.double().numpy().astype(interpreter._get_np_dtype(new)), new)
    dtype = _FLOATS[new]
    if dtype.itemsize == 1:
        largest = torch.finfo(dtype).max
        values = values.float().clamp(-largest, largest)
    result = values.to(dtype)
    stored = result if new in (tl.float64, tl.float32) else result.view(_STORED_AS[dtype.itemsize])
    return TensorHandle(stored.numpy().view(interpreter._get_np_dtype(new)), new)


_cast_in_numpy = InterpreterBuilder.cast_impl
InterpreterBuilder.cast_impl = _cast
InterpreterBuilder.create_fp_to_fp = lambda builder, source, target, rounding: _cast(builder, source, target)


def _reduce(reduction: ReduceOps, operands: tuple[tl.tensor, ...]) -> Any:
    """By a function that the interpreter does not know: half of the elements with the other half until one is left."""
    if reduction.combine_fn in _KNOWN:
        return _reduce_in_numpy(reduction, operands)
    axis, parts = reduction.axis, [x.handle.data for x in operands]
    types = [x.dtype for x in operands]
    while parts[0].shape[axis] > 1:
        halves = [np.split(part, 2, axis) for part in parts]
        tensors = [_block(half[side], dtype) for side in (0, 1) for half, dtype in zip(halves, types, strict=True)]
        combined = reduction.combine_fn.fn(*tensors)
        parts = [x.handle.data for x in (combined if isinstance(combined, tuple) else (combined,))]
    if not reduction.keep_dims:
        parts = [part.squeeze(axis) for part in parts]
    return tuple(reduction.to_tensor(part, dtype) for part, dtype in zip(parts, types, strict=True))


def _block(data: Any, dtype: Any) -> tl.tensor:
    return tl.tensor(TensorHandle(data, dtype.scalar), tl.block_type(dtype, list(data.shape)))


_KNOWN = (
    *(tl.standard._argmin_combine_tie_break_left, tl.standard._argmax_combine_tie_break_left),
    *(tl.standard._elementwise_max, tl.standard._elementwise_min, tl.standard._sum_combine),
)
_reduce_in_numpy = ReduceOps.apply_impl
ReduceOps.apply_impl = _reduce


# what has no effect

# Integers are computed a second time, in 64 bits, for an assertion that is left out without the option ``debug``.
assert not interpreter.interpreter_builder.options.debug
interpreter.interpreter_builder.options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)

_PATCHED: list[dict[str, Any]] = []
"""Namespaces of the functions that the kernel which runs has called."""


def _launch(executor: GridExecutor, *arguments: Any, **options: Any) -> None:
    _PATCHED.clear()
    _launch_in_triton(executor, *arguments, **options)


def _call(function: InterpretedFunction, *arguments: Any, **options: Any) -> Any:
    """A function that a kernel calls. Triton goes through all names of its language at each call, and finds the
    interpreter's in place of those that there are for the namespace of the function after the first one."""
    namespace = function.fn.__globals__
    if not any(known is namespace for known in _PATCHED):
        interpreter._patch_lang(function.fn)
        _PATCHED.append(namespace)
    try:
        return function.rewrite()(*arguments, **options)
    except Exception as error:
        raise interpreter.InterpreterError(repr(error)) from error


_launch_in_triton = GridExecutor.__call__
GridExecutor.__call__ = _launch
InterpretedFunction.__call__ = _call


def _tuple(made: tl.core.tuple, values: Iterable[Any], kind: Any = None) -> None:
    """Each tensor and each type of one has a tuple, whose type nobody asks for."""
    made.values = list(values)
    if kind is not None:
        _tuple_in_triton(made, made.values, kind)


_tuple_in_triton = tl.core.tuple.__init__
tl.core.tuple.__init__ = _tuple
tl.core.tuple.type = functools.cached_property(lambda made: tl.core._type_for_tuple_values(made.values))
tl.core.tuple.type.__set_name__(tl.core.tuple, "type")

_numpy_type = interpreter._get_np_dtype
_numpy_types = functools.cache(lambda name: _numpy_type(tl.dtype(name)))


def _known_numpy_type(kind: Any) -> Any:
    """Triton makes a dictionary of all types at each call."""
    scalar = kind.scalar
    return _numpy_type(scalar) if scalar.is_ptr() else _numpy_types(scalar.name)


interpreter._get_np_dtype = _known_numpy_type
