"""Evaluates a program on plain tensors: the definition of every op and the reference of every test.

Every value is held as a tensor with one axis for each dimension of the program, of size one where it does not vary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import torch
from torch import Tensor

from weft.ir import dtypes
from weft.ir.ops import identity, lookup
from weft.ir.program import Buffer, Program, Size, Value


def interpret(
    program: Program, inputs: Sequence[Tensor], parameters: Sequence[int] = (), *, exact: bool = True
) -> list[Tensor]:
    """Outputs of ``program``, each with the shape of its buffer's dimensions.

    inputs: one tensor a buffer, in order, bound by the buffer's strides to the tensor's own storage.
    parameters: values of ``program.parameters``.
    exact: compute in float64 and do not round at casts between floats, so that the result is what the formulas mean.
    Otherwise every op runs in the program's own dtypes, as eager PyTorch would, and outputs have the buffers' dtypes.
    """
    sizes = sizes_of(program, parameters)
    run = Evaluation(program, sizes, exact)
    for buffer, tensor in zip(program.inputs, inputs, strict=True):
        run.env[buffer.name] = run.load(buffer, tensor)
    last = _last_uses(program)
    for place, value in enumerate(program.values):
        run.env[value.name] = run.evaluate(value)
        for arg in {arg for arg in value.args if last[arg] == place}:
            del run.env[arg]
    results: list[Tensor] = []
    for output in program.outputs:
        shape = [sizes[d] for d in output.buffer.dims]
        aligned = run.align(run.env[output.value], output.buffer.dims)
        results.append(aligned.expand(shape).contiguous())
    return results


def _last_uses(program: Program) -> dict[str, int]:
    """By name, the place of the last value that needs it; behind all of them for what is written."""
    last = {arg: place for place, value in enumerate(program.values) for arg in value.args}
    return last | {output.value: len(program.values) for output in program.outputs}


def interpret_into(
    program: Program, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int] = ()
) -> None:
    """Evaluate in the program's own dtypes and write into ``outputs``, one tensor a buffer, in order."""
    sizes = sizes_of(program, parameters)
    for output, tensor, result in zip(
        program.outputs, outputs, interpret(program, inputs, parameters, exact=False), strict=True
    ):
        bind(output.buffer, tensor, sizes).copy_(result)


def sizes_of(program: Program, parameters: Sequence[int]) -> dict[str, int]:
    """Sizes of all dimensions and values of all parameters, by name."""
    found: dict[str, int] = dict(zip(program.parameters, map(int, parameters), strict=True))
    for dim in program.dims:
        found[dim.name] = found[dim.size] if isinstance(dim.size, str) else dim.size
    return found


def resolve(size: Size, sizes: Mapping[str, int]) -> int:
    return sizes[size] if isinstance(size, str) else size


def bind(buffer: Buffer, tensor: Tensor, sizes: Mapping[str, int]) -> Tensor:
    """View of ``tensor`` with one axis a dimension of ``buffer``."""
    strides = [resolve(s, sizes) for s in buffer.strides]
    return tensor.as_strided([sizes[d] for d in buffer.dims], strides, tensor.storage_offset() + buffer.offset)


class Evaluation:
    """Values of a program by name in ``env``, each with one axis a dimension of the program.

    sizes: of all dimensions and parameters. part: the positions along some dimensions that are evaluated; of the others
    all are.
    """

    def __init__(
        self, program: Program, sizes: Mapping[str, int], exact: bool, part: Mapping[str, range] | None = None
    ) -> None:
        self.axes = {dim.name: i for i, dim in enumerate(program.dims)}
        self.sizes = sizes
        self.part = {d: range(sizes[d]) for d in self.axes} | dict(part or {})
        self.exact = exact
        self.env: dict[str, Tensor] = {}
        self.device = torch.device("cpu")

    def dtype(self, name: str) -> torch.dtype:
        return torch.float64 if self.exact and dtypes.is_float(name) else dtypes.TORCH_DTYPES[name]

    def load(self, buffer: Buffer, tensor: Tensor) -> Tensor:
        self.device = tensor.device
        bound = self.bind(buffer, tensor).to(self.dtype(buffer.dtype))
        order = sorted(range(len(buffer.dims)), key=lambda i: self.axes[buffer.dims[i]])
        bound = bound.permute(order)
        present = set(buffer.dims)
        for dim, axis in self.axes.items():
            if dim not in present:
                bound = bound.unsqueeze(axis)
        return bound

    def bind(self, buffer: Buffer, tensor: Tensor) -> Tensor:
        """View of the evaluated part of ``tensor`` with one axis a dimension of ``buffer``."""
        bound = bind(buffer, tensor, self.sizes)
        for axis, dim in enumerate(buffer.dims):
            bound = bound.narrow(axis, self.part[dim].start, len(self.part[dim]))
        return bound

    def align(self, tensor: Tensor, dims: Sequence[str]) -> Tensor:
        """Axes of ``dims`` in that order; the others have size one and go."""
        rest = [axis for dim, axis in self.axes.items() if dim not in dims]
        kept = tensor.permute([self.axes[d] for d in dims] + rest)
        return kept.reshape(kept.shape[: len(dims)])

    def evaluate(self, value: Value) -> Tensor:
        dtype = self.dtype(value.dtype)
        ones = [1] * len(self.axes)
        if value.op == "const":
            number = value.attributes[0]
            wide = torch.float64 if isinstance(number, float) else dtype  # a number beyond float32 becomes infinite
            return torch.full(ones, number, dtype=wide, device=self.device).to(dtype)  # type: ignore[arg-type]
        if value.op == "parameter":
            return torch.full(ones, self.sizes[str(value.attributes[0])], dtype=dtype, device=self.device)
        if value.op == "size":
            number = prod(self.sizes[str(dim)] for dim in value.attributes)
            return torch.full(ones, number, dtype=dtype, device=self.device)
        if value.op == "iota":
            dim = str(value.attributes[0])
            here = self.part[dim]
            ones[self.axes[dim]] = len(here)
            return torch.arange(here.start, here.stop, dtype=dtype, device=self.device).reshape(ones)
        args = [self.env[arg] for arg in value.args]
        if value.op == "cast":
            return args[0].to(dtype)
        op = lookup(value.op)
        if op.kind == "reduction":
            axes = [self.axes[str(dim)] for dim in value.attributes]
            return reduce(value, args[0], axes)
        if op.kind == "gather":
            return op.evaluate(*args, self.axes[str(value.attributes[0])])
        return op.evaluate(*args)


def reduce(value: Value, operand: Tensor, axes: list[int]) -> Tensor:
    """The reduction ``value`` of an operand, in the operand's dtype; dropped axes keep size one."""
    if value.op != "sum" and any(operand.shape[axis] == 0 for axis in axes):
        # the identity of max and min: torch refuses an empty reduction, a kernel returns the identity
        shape = [1 if i in axes else n for i, n in enumerate(operand.shape)]
        return torch.full(shape, identity(value.op, value.dtype), dtype=operand.dtype, device=operand.device)
    return lookup(value.op).evaluate(operand, axes)
