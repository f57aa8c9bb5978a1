"""Functions with less in them than a given one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from tests.fuzz.function_generator import Function, Statement, namespace


def smaller_functions(function: Function, seed: int) -> Iterator[Function]:
    """Outputs, gradients and statements go, inputs become plain; the largest steps first."""
    if len(function.outputs) > 1:
        for output in function.outputs:
            rest = tuple(o for o in function.outputs if o != output)
            yield replace(function, outputs=(output,)).alive()
            yield replace(function, outputs=rest).alive()
    if function.gradients:
        yield replace(function, gradients=False)
    values = _values(function, seed)
    names = [i.target for i in function.inputs]
    for at in reversed(range(len(function.body))):
        statement = function.body[at]
        yield _without(function, at, values)
        before = [*names, *(s.target for s in function.body[:at])]
        mine = values[statement.target]
        for other in before:
            if values[other].shape == mine.shape and values[other].dtype == mine.dtype:
                yield _replaced(function, at, other)
        for operand in sorted(statement.reads()):
            if operand in function.outputs or values[operand].numel() == 0:
                continue
            if statement.target in function.outputs:
                outputs = tuple(operand if o == statement.target else o for o in function.outputs)
                yield replace(function, outputs=tuple(dict.fromkeys(outputs))).alive()
    for i, made in enumerate(function.inputs):
        plain = _made_like(made.target, values[made.target])
        if plain != made and len(plain.text) < len(made.text):
            inputs = (*function.inputs[:i], plain, *function.inputs[i + 1 :])
            yield replace(function, inputs=inputs)


def _values(function: Function, seed: int) -> dict[str, Tensor]:
    found = namespace(False, seed)
    for statement in (*function.inputs, *function.body):
        found[statement.target] = eval(statement.text, found)
    return {s.target: found[s.target] for s in (*function.inputs, *function.body)}


def _made_like(target: str, value: Tensor) -> Statement:
    """An input with the shape and dtype of a value."""
    sizes = ", ".join(map(str, value.shape))
    if value.is_floating_point():
        short = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}[value.dtype]
        return Statement(target, f"draw({sizes}).to({short})")
    if value.dtype == torch.bool:
        return Statement(target, f"draw({sizes}) > 0")
    low, high = (int(value.min()), int(value.max()) + 1) if value.numel() else (0, 1)
    return Statement(target, f"integers({low}, {high}{', ' + sizes if sizes else ''}).to({value.dtype})")


def _without(function: Function, at: int, values: dict[str, Tensor]) -> Function:
    """A statement becomes an input."""
    target = function.body[at].target
    fresh = f"x{1 + max((int(i.target[1:]) for i in function.inputs), default=0)}"
    body = tuple(s.renamed(target, fresh) for s in (*function.body[:at], *function.body[at + 1 :]))
    outputs = tuple(o for o in function.outputs if o != target)
    inputs = (*function.inputs, _made_like(fresh, values[target]))
    return replace(function, inputs=inputs, body=body, outputs=outputs).alive()


def _replaced(function: Function, at: int, other: str) -> Function:
    """Another value stands for that of a statement."""
    target = function.body[at].target
    body = tuple(s.renamed(target, other) for s in (*function.body[:at], *function.body[at + 1 :]))
    outputs = tuple(dict.fromkeys(other if o == target else o for o in function.outputs))
    outputs = tuple(o for o in outputs if o.startswith("v"))
    return replace(function, body=body, outputs=outputs).alive()
