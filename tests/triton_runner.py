"""Runs Triton kernels under Triton's interpreter, with every access to memory checked.

To be imported where ``TRITON_INTERPRET=1`` was set before Triton was. A kernel may read the elements of its inputs and
what was written to the memory of partial results, and has to write every element of its outputs once. Of an input that
an output may lie in the place of, it reads nothing that it has written there.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import InterpreterError
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tests import triton_interpreted  # noqa: F401  (puts in place what the interpreter lacks)
from tests.fuzz.memory import GUARD, poison
from tests.fuzz.outcome import Mismatch
from tests.triton_schedules import sizes_with
from weft.backends.abi import count
from weft.backends.triton import text as renderer
from weft.backends.triton import weft_triton
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import resolve, sizes_of
from weft.ir.program import Buffer, Program
from weft.plan.in_place import overwritable
from weft.plan.kernel import Kernel, Plan

assert triton.knobs.runtime.interpret, "TRITON_INTERPRET=1 has to be set before triton is imported"


def run_plan(
    plan: Plan, program: Program, inputs: Sequence[Tensor], parameters: Sequence[int] = (), programs: int = 2**31
) -> list[Tensor]:
    """Outputs of a program, one tensor a buffer. programs: of a persistent launch at the most. Raises Mismatch if
    memory is used in a wrong way."""
    sizes = sizes_with(plan, sizes_of(program, parameters))
    tensors = {b.name: t for b, t in zip(program.inputs, inputs, strict=True)}
    for kernel in plan.kernels:
        given = [tensors[b.name] for b in kernel.program.inputs]
        made = run(kernel, given, [sizes[p] for p in kernel.program.parameters], programs)
        tensors |= {o.buffer.name: t for o, t in zip(kernel.program.outputs, made, strict=True)}
    return [tensors[o.buffer.name] for o in program.outputs]


def run(
    kernel: Kernel, inputs: Sequence[Tensor], parameters: Sequence[int] = (), programs: int = 2**31
) -> list[Tensor]:
    """Outputs of one kernel, in tensors of their own."""
    refusal = renderer.supports(kernel)
    if refusal is not None:
        raise Mismatch("refused", str(refusal))
    sizes = sizes_of(kernel.program, parameters)
    memory = Memory()
    arguments: list[Any] = [memory.input(b, t, sizes) for b, t in zip(kernel.program.inputs, inputs, strict=True)]
    outputs = [memory.output(o.buffer, sizes) for o in kernel.program.outputs]
    tensors = dict(zip((b.name for b in kernel.program.inputs), inputs, strict=True))
    for output, tensor in zip(kernel.program.outputs, outputs, strict=True):
        for name in overwritable(kernel).get(output.buffer.name, ()):
            memory.overwrite(tensors[name], tensor)
    abi = renderer.abi(kernel)
    numbers_by_name = dict(zip(abi.parameters, parameters, strict=True))
    for partial in abi.partials:
        elements = count(partial.elements, numbers_by_name)
        arguments.append(memory.partial(elements, TORCH_DTYPES[partial.dtype]))
    if abi.counter:
        arguments.append(torch.zeros(1, dtype=torch.int64))
    arguments[len(inputs) : len(inputs)] = outputs
    numbers = [tl.tensor(TensorHandle(np.array([p], np.int64), tl.int64), tl.int64) for p in parameters]
    functions = _functions(renderer.render(kernel).text)
    with memory.watched(), _plain_errors(), np.errstate(all="ignore"):
        for launch in abi.launches:
            memory.begin()
            first, second = (count(extent, numbers_by_name) for extent in launch.grid)
            grid = (min(programs, first) if launch.persistent else first, second)
            if launch.cooperative:
                _one_after_the_other(functions, launch.entry, grid, (*arguments, *numbers))
                memory.begin()
                functions[f"{launch.entry}_finish"][grid](*arguments, *numbers)
            elif 0 not in grid:
                functions[launch.entry][grid](*arguments, *numbers)
    memory.check()
    return outputs


@contextmanager
def _plain_errors() -> Any:
    """What was raised inside a kernel, not the interpreter's word for it."""
    try:
        yield
    except InterpreterError as error:
        raise (error.__cause__ or error) from None


def _one_after_the_other(
    functions: dict[str, Any], entry: str, grid: tuple[int, int], arguments: Sequence[Any]
) -> None:
    """Programs that wait for each other, which they would for ever here: all of them up to there, then the finish."""
    waiting, finish = weft_triton.wait_for_all, functions[f"{entry}_finish"]
    try:
        weft_triton.wait_for_all = functions[f"{entry}_finish"] = _does_nothing
        functions[entry][grid](*arguments)
    finally:
        weft_triton.wait_for_all, functions[f"{entry}_finish"] = waiting, finish


def _checked_hint(handle: TensorHandle, name: str, values: Sequence[int]) -> None:
    """What a compiler is told of numbers, for it to load and store whole vectors, has to hold for each of them."""
    if name != "tt.divisibility" or len(set(values)) != 1:
        raise Mismatch("hint", f"{name} {values} is not checked")
    if (handle.data % values[0]).any():
        raise Mismatch("hint", f"{handle.data.reshape(-1)[:8]} are no multiples of {values[0]}")


def _does_nothing(*_: Any) -> None:
    pass


def _functions(text: str) -> dict[str, Any]:
    """What a generated module defines."""
    file = f"<kernel {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    namespace: dict[str, Any] = {"__name__": "kernel"}
    exec(compile(text, file, "exec"), namespace)
    return namespace


@dataclass
class Area:
    """The storage of one tensor. name: of the tensor; readable, writable, written: of every byte that is the first one
    of an element. places: outputs that may lie here, with how much further each byte is in theirs. inputs: how many
    have this storage."""

    name: str
    storage: Tensor
    readable: Any
    writable: Any
    written: Any
    partial: bool = False
    places: list[tuple[Area, int]] = field(default_factory=list)
    inputs: int = 0

    @property
    def address(self) -> int:
        return self.storage.untyped_storage().data_ptr()


class Memory:
    """All memory that a kernel may touch. Whatever else it reads, or writes at all, is a Mismatch."""

    def __init__(self) -> None:
        self.areas: list[Area] = []
        self.inputs: set[str] = set()

    def input(self, buffer: Buffer, tensor: Tensor, sizes: Mapping[str, int]) -> Tensor:
        area = self._add(buffer.name, tensor)
        self.inputs.add(buffer.name)
        area.inputs += 1
        area.readable[self._places(buffer, tensor, sizes)] = True
        return tensor

    def output(self, buffer: Buffer, sizes: Mapping[str, int]) -> Tensor:
        """A poisoned tensor that lies as the buffer does."""
        shape, strides = [sizes[d] for d in buffer.dims], [resolve(s, sizes) for s in buffer.strides]
        reach = 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) if 0 not in shape else 0
        storage = poison(GUARD + buffer.offset + reach + GUARD, TORCH_DTYPES[buffer.dtype])
        tensor = storage.as_strided(shape, strides, GUARD)
        area = self._add(buffer.name, tensor)
        area.writable[self._places(buffer, tensor, sizes)] = True
        return tensor

    def partial(self, count: int, dtype: torch.dtype) -> Tensor:
        tensor = poison(GUARD + count + GUARD, dtype)[GUARD : GUARD + count]
        area = self._add("partial", tensor)
        start = GUARD * dtype.itemsize
        area.writable[start : start + count * dtype.itemsize : dtype.itemsize] = True
        area.partial = True
        return tensor

    def overwrite(self, tensor: Tensor, output: Tensor) -> None:
        """An output may lie where an input lies: what was written to it cannot be read from the input any more. Not
        where other inputs are views of the same tensor: nothing is written over these."""
        area, other = self._add("", tensor), self._add("", output)
        if area.inputs == 1:
            shift = output.storage_offset() - tensor.storage_offset()
            area.places.append((other, shift * tensor.itemsize))

    def _add(self, name: str, tensor: Tensor) -> Area:
        count, address = tensor.untyped_storage().nbytes(), tensor.untyped_storage().data_ptr()
        for known in self.areas:
            if known.address == address:
                return known  # views of one tensor
        area = Area(name, tensor, *(np.zeros(count, bool) for _ in range(3)))
        self.areas.append(area)
        return area

    @staticmethod
    def _places(buffer: Buffer, tensor: Tensor, sizes: Mapping[str, int]) -> Any:
        """First bytes of a buffer's elements."""
        index = np.array([tensor.storage_offset() + buffer.offset])
        for dim, stride in zip(buffer.dims, buffer.strides, strict=True):
            index = (index[:, None] + np.arange(sizes[dim]) * resolve(stride, sizes)).reshape(-1)
        return index * tensor.itemsize

    def begin(self) -> None:
        """A launch begins: it may write what was not written yet, and read the partial results of those before."""
        for area in self.areas:
            if area.partial:
                area.readable |= area.written

    def check(self) -> None:
        """Raise Mismatch if an element was not written."""
        for area in self.areas:
            if area.name in self.inputs or area.partial:
                continue
            missing = int((area.writable & ~area.written).sum())
            if missing:
                raise Mismatch("unwritten", f"{area.name}: {missing} elements are never written")

    @contextmanager
    def watched(self) -> Any:
        load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store

        def checked_load(builder: Any, pointers: Any, mask: Any, *rest: Any) -> Any:
            self._look("read", pointers.data[mask.data.astype(bool)])
            return load(builder, pointers, mask, *rest)

        def checked_store(builder: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
            self._look("written", pointers.data[mask.data.astype(bool)])
            return store(builder, pointers, value, mask, *rest)

        InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = checked_load, checked_store
        try:
            with patch.object(TensorHandle, "set_attr", _checked_hint):
                yield
        finally:
            InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store = load, store

    def _look(self, what: str, pointers: Any) -> None:
        addresses = pointers.astype(np.int64)
        if not addresses.size:
            return
        first = int(addresses[0])
        area = next((a for a in self.areas if a.address <= first < a.address + a.readable.size), None)
        if area is None:
            raise Mismatch("outside", f"{what}: {first:#x} is in no tensor")
        at = addresses - area.address
        if at.min() < 0 or at.max() >= area.readable.size:
            raise Mismatch("outside", f"{area.name}: something behind its ends is {what}")
        if what == "read":
            if not area.readable[at].all():
                raise Mismatch("outside", f"{area.name}: something that is no element, or not there yet, is read")
            for output, shift in area.places:
                if output.written[at + shift].any():
                    raise Mismatch("overwritten", f"{area.name}: something is read where {output.name} is written")
            return
        if not area.writable[at].all():
            raise Mismatch("outside", f"{area.name}: something that is no element is written")
        if area.written[at].any() or np.unique(at).size != at.size:
            raise Mismatch("twice", f"{area.name}: an element is written twice")
        area.written[at] = True
