"""Turns a group of nodes with aligned axes into a program: dimensions, buffers, values, outputs."""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from weft.capture.axes import Operand, Space
from weft.capture.lower import POINTWISE, REDUCTIONS, project, reduced_axes
from weft.capture.nodes import Strides, is_constant, strides_of, tensor_args
from weft.capture.opaque import lower_opaque
from weft.capture.parts import larger_slice, lower_joined, sliced
from weft.capture.refine import Axis, Extent, MisalignedError, Refinement, extent, parameter
from weft.ir import dtypes
from weft.ir.builder import Builder
from weft.ir.program import Buffer, Dim, Program, Size

aten = torch.ops.aten
prims = torch.ops.prims


@dataclass(frozen=True)
class LoweredGroup:
    """A program, the nodes its inputs stand for, and the expressions its parameters stand for."""

    program: Program
    inputs: tuple[fx.Node, ...]
    parameters: dict[str, Extent]


class GroupLowering:
    """Lowers the members of one group in graph order."""

    def __init__(self, name: str, members: Sequence[fx.Node], spaces: dict[fx.Node, Space], refine: Refinement) -> None:
        self.members = list(members)
        self.spaces = spaces
        self.refine = refine
        self.parameters: dict[str, Extent] = {}
        self.env: dict[fx.Node, str | tuple[str, ...]] = {}
        self.bindings: list[tuple[fx.Node, tuple[Axis, ...], str]] = []
        atoms = self._bind_inputs()
        self.dim_names = {atom: f"d{i}" for i, atom in enumerate(atoms)}
        dims = tuple(Dim(self.dim_names[a], parameter(refine.size(a), self.parameters)) for a in atoms)
        self.builder = Builder(name, dims)

    def run(self, outputs: Sequence[tuple[fx.Node, Strides, bool]]) -> LoweredGroup:
        """outputs: what is written, each with strides for its axes, and whether it is zeros beside it."""
        builder = self.builder
        names: dict[fx.Node, str] = {}
        for index, (base, axes, _) in enumerate(self.bindings):  # slices are behind what they are parts of
            dims, strides = self.layout(axes, strides_of(base))
            whole, place = sliced(base, names)
            within = names.get(whole, "") if place is not None and whole is not base else ""
            dtype, name = dtypes.NAMES[base.meta["val"].dtype], base_name(sliced(base)[0])
            buffer = Buffer(name, dtype, tuple(dims), tuple(strides), 0, within, (place or 0) * bool(within))
            names[base] = name = builder.add_input(buffer)
            self.bindings[index] = (base, axes, name)
        for node in self.members:
            self.env[node] = NodeLowering(self, node).lower()
        for node, wanted, is_zero in outputs:
            value = self.env[node]
            assert isinstance(value, str)
            if is_zero:
                dtype = builder.dtype(value)
                value = builder.cast(builder.const(0, dtypes.compute_dtype(dtype)), dtype)
            dims, strides = self.layout(self.spaces[node].result, wanted)
            builder.output(f"out{len(builder.outputs)}", value, dtypes.NAMES[node.meta["val"].dtype], dims, strides)
        builder.parameters = tuple(self.parameters)
        inputs = tuple(base for base, _, _ in self.bindings)
        return LoweredGroup(builder.finish(), inputs, self.parameters)

    def _bind_inputs(self) -> list[int]:
        """One binding a tensor where its uses agree on the axes; the atoms of the group, large tensors first."""
        for node in self.members:
            for operand in self.spaces[node].operands:
                if operand.base not in self.spaces and not is_constant(operand.base):
                    self._bind(operand)
        order = {node: i for i, node in enumerate(self.members[0].graph.nodes)}
        bases = [base for base, _, _ in self.bindings]
        # what is a part of a larger slice comes behind it
        self.bindings.sort(key=lambda each: (larger_slice(each[0], bases) is not each[0], order[each[0]]))
        spaces = sorted(
            (self.spaces[node].axes for node in self.members), key=lambda axes: -len(self.refine.atoms(axes))
        )
        return list(dict.fromkeys(atom for axes in spaces for atom in self.refine.atoms(axes)))

    def _bind(self, operand: Operand) -> None:
        spaces = [space.axes for space in self.spaces.values()]
        for base, axes, _ in self.bindings:
            if base is operand.base and self.refine.can_unify(axes, operand.axes, spaces):
                return
        self.bindings.append((operand.base, operand.axes, ""))

    def layout(self, axes: Sequence[Axis], axis_strides: Strides) -> tuple[list[str], list[Size]]:
        """Dimensions and strides of a tensor; broadcast axes (stride zero) are left out."""
        dims: list[str] = []
        strides: list[Size] = []
        for axis, stride in zip(axes, axis_strides, strict=True):
            if stride == 0:
                continue
            found: list[tuple[str, Size]] = []
            for atom in reversed(self.refine.leaves(axis)):
                found.append((self.dim_names[atom], parameter(stride, self.parameters)))
                stride = stride * self.refine.size(atom)
            for dim, size in reversed(found):
                dims.append(dim)
                strides.append(size)
        return dims, strides

    def names_of(self, axes: Sequence[Axis]) -> list[str]:
        return [self.dim_names[atom] for atom in self.refine.atoms(axes)]

    def read(self, operand: Operand) -> str | tuple[str, ...]:
        """The value of an operand: of a member, of a constant, or of an input."""
        if operand.base in self.env:
            return self.env[operand.base]
        if is_constant(operand.base):
            return self._constant(operand)
        want = [self.refine.leaves(axis) for axis in operand.axes]
        for base, axes, name in self.bindings:
            if base is operand.base and [self.refine.leaves(axis) for axis in axes] == want:
                return name
        raise AssertionError(f"{operand.base} has no binding")

    def _constant(self, operand: Operand) -> str:
        node = operand.base
        dtype = dtypes.NAMES[node.meta["val"].dtype]
        if node.target is prims.iota.default:
            dtype = dtypes.compute_dtype(dtype)
            return self._iota(node, self.positions(operand.axes[0], dtype), dtype)
        number: Any = node.args[1] if node.target is aten.full.default else node.args[0]
        rounded = torch.tensor(number, dtype=node.meta["val"].dtype).item()
        return self.builder.const(rounded, dtypes.compute_dtype(dtype))

    def _iota(self, node: fx.Node, position: str, dtype: str) -> str:
        """``start + step * position``."""
        start, step = node.kwargs.get("start", 0), node.kwargs.get("step", 1)
        if step != 1:
            position = self.builder.op("mul", position, self.number(step, dtype))
        return position if start == 0 else self.builder.op("add", position, self.number(start, dtype))

    def number(self, number: Any, dtype: str) -> str:
        """A number of the graph as a value: a constant, or a parameter if it is known at run time only."""
        if isinstance(number, fx.Node):
            number = number.meta["val"]
        if isinstance(number, int | float):
            return self.builder.const(number, dtype)
        size = parameter(extent(number), self.parameters)
        if isinstance(size, int):
            return self.builder.const(size, dtype)
        return self.builder.op("parameter", dtype=dtype, attributes=(size,))

    def positions(self, axis: Axis, dtype: str) -> str:
        """The index along an axis as a value over its dimensions."""
        builder, total, stride = self.builder, "", 1
        for atom in reversed(self.refine.leaves(axis)):
            if not isinstance(stride, int):
                raise MisalignedError("an index over a dimension of run-time size", stride, "a fixed size")
            term = builder.op("iota", dtype=dtype, attributes=(self.dim_names[atom],))
            if stride != 1:
                term = builder.op("mul", term, builder.const(stride, dtype))
            total = builder.op("add", total, term) if total else term
            stride = stride * self.refine.size(atom)
        return total or builder.const(0, dtype)


class NodeLowering:
    """What a lowering function sees of its node: operands as values in the dtype it computes in."""

    def __init__(self, group: GroupLowering, node: fx.Node) -> None:
        self.group = group
        self.node = node
        self.space = group.spaces[node]
        value = node.meta["val"]
        self.result_dtype = dtypes.NAMES[(value[0] if isinstance(value, list | tuple) else value).dtype]
        self.compute = dtypes.compute_dtype(self.result_dtype)
        self._operands = {id(arg): i for i, arg in reversed(list(enumerate(self._tensor_args())))}

    def lower(self) -> str | tuple[str, ...]:
        function = project if self.node.target is operator.getitem else POINTWISE.get(self.node.target)
        if self.space.opaque:
            function = lower_opaque
        elif self.space.numbers:
            function = lower_joined
        found = REDUCTIONS[self.node.target](self) if function is None else function(self)
        if isinstance(found, tuple):
            return tuple(self.group.builder.cast(v, self.result_dtype) for v in found)
        return self.group.builder.cast(found, self.result_dtype)

    def arg(self, index: int, dtype: str | None = None) -> str:
        """Operand ``index`` of the node, cast to ``dtype`` (the compute type of the result unless given)."""
        dtype = dtype or self.compute
        argument = self.node.args[index]
        if not isinstance(argument, fx.Node) or not isinstance(argument.meta["val"], torch.Tensor):
            return self.group.number(argument, dtype)
        value = self.group.read(self.space.operands[self._operands[id(argument)]])
        assert isinstance(value, str)
        return self.group.builder.cast(value, dtype)

    def operand(self, position: int) -> str:
        """An operand by its position in the space, cast to the compute type of the result."""
        value = self.group.read(self.space.operands[position])
        assert isinstance(value, str)
        return self.group.builder.cast(value, self.compute)

    def results(self) -> tuple[str, ...]:
        """All results of the node that the operand is."""
        value = self.group.read(self.space.operands[0])
        assert isinstance(value, tuple)
        return value

    def op(self, name: str, *args: str) -> str:
        """Arithmetic on booleans is what it is of the numbers 0 and 1, where ATen has it: a product is ``and``."""
        return self.group.builder.op(LOGICAL.get(name, name) if self.compute == "bool" else name, *args)

    def const(self, number: float | int) -> str:
        return self.group.builder.const(number, self.compute)

    def keyword(self, name: str, position: int, default: Any) -> Any:
        return self.node.kwargs.get(name, self.node.args[position] if len(self.node.args) > position else default)

    def promoted(self, *indices: int) -> str:
        """The dtype in which operands are compared."""
        shown: list[Any] = []
        for index in indices:
            argument = self.node.args[index]
            value = argument.meta["val"] if isinstance(argument, fx.Node) else argument
            if not isinstance(value, torch.Tensor):
                shown.append(1 if isinstance(value, torch.SymInt) else value)
            else:
                shown.append(torch.empty((1,) * value.ndim, dtype=value.dtype, device="meta"))
        return dtypes.compute_dtype(dtypes.NAMES[torch.result_type(*shown)])

    def reduce(self, op: str, value: str) -> str:
        return self.group.builder.reduce(op, value, self._dropped())

    def count(self) -> str:
        """Number of elements one result of the reduction is made from."""
        return self.group.builder.count(self._dropped(), self.compute)

    def positions(self) -> str:
        """The index along the (one) reduced axis."""
        (axis,) = reduced_axes(self.node, len(self.space.axes))
        return self.group.positions(self.space.axes[axis], "i64")

    def axes_of_no_operand(self) -> list[Axis]:
        """Those along which all operands are the same."""
        refine = self.group.refine
        read = [operand.axes for operand in self.space.operands if not is_constant(operand.base)]
        known = {atom for axes in read for atom in refine.atoms(axes)}
        return [axis for axis in self.space.axes if not known.issuperset(refine.leaves(axis))]

    def _dropped(self) -> list[str]:
        dims = reduced_axes(self.node, len(self.space.axes))
        return self.group.names_of([self.space.axes[i] for i in dims])

    def _tensor_args(self) -> list[fx.Node]:
        return tensor_args(self.node) if self.node.target is not operator.getitem else [self.node.args[0]]  # type: ignore[list-item]


LOGICAL = {
    "mul": "logical_and",
    "minimum": "logical_and",
    "bitwise_and": "logical_and",
    "add": "logical_or",
    "maximum": "logical_or",
    "bitwise_or": "logical_or",
    "bitwise_xor": "ne",
    "bitwise_not": "logical_not",
}


def base_name(node: fx.Node) -> str:
    """The name of a node without its number, so that equal regions of a model have equal programs."""
    name = re.sub(r"(_default|_tensor|_self|_dim|_int)?(_\d+)*$", "", node.name)
    return re.sub(r"\W", "_", name) or "value"
