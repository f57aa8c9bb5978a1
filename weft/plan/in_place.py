"""Which outputs of a kernel may lie where one of its inputs lies."""

from __future__ import annotations

from weft.backends.listed import backend_of
from weft.ir.online import online_along_rows
from weft.ir.ops import lookup
from weft.ir.program import Buffer, Program
from weft.ir.structure import loops_of, reachable
from weft.plan.kernel import Kernel


def overwritable(kernel: Kernel) -> dict[str, tuple[str, ...]]:
    """For each output, by name, the inputs that it may overwrite, one of them.

    Each element of such an input is read by the one step of the kernel that writes the same place, before that writes
    it, and by none that follows: the input varies over all dimensions, has the dtype and the layout of the output, the
    output's element is computed from the input's, and no later loop over the columns loads it. That a value is computed
    from another is what orders a load and a store of two threads of a GPU.
    """
    program, schedule = _as_computed(kernel), kernel.schedule
    every = {dim.name for dim in program.dims}
    if not schedule.columns or not backend_of(kernel).loads_apart(kernel):
        return {}
    loops = loops_of(program, schedule.rows, schedule.columns, schedule.held)
    picked = {value.args[0] for value in program.values if value.op == "pick"}
    wide = [b.name for b in program.inputs if set(b.dims) == every and b.name not in picked]
    last = {name: max((k for k, used in enumerate(loops.used) if name in used), default=-1) for name in wide}
    found: dict[str, tuple[str, ...]] = {}
    for stage, stores in enumerate(loops.stores):
        for output in stores:
            operands = _operands(output.value, program)
            same = (b for b in program.inputs if b.name in last and _lies_alike(b, output.buffer))
            if names := tuple(b.name for b in same if last[b.name] <= stage and b.name in operands):
                found[output.buffer.name] = names
    return found


def _as_computed(kernel: Kernel) -> Program:
    """With fewer loops over the columns than the program says, where each loads a row again, and elements of a row that
    are loaded by their addresses, by any thread and at any time."""
    looped = kernel.schedule.scheme in ("LOOP", "CLUSTER")
    return online_along_rows(kernel.program, kernel.schedule.columns) if looped else kernel.program


def _operands(value: str, program: Program) -> set[str]:
    """What an element of a value is computed from, not looking behind reductions."""
    by_name = program.by_name()

    def operands(name: str) -> tuple[str, ...]:
        is_pointwise = name in by_name and lookup(by_name[name].op).kind != "reduction"
        return by_name[name].args if is_pointwise else ()

    return {*reachable([value], operands)}


def _lies_alike(one: Buffer, other: Buffer) -> bool:
    """Whether equal indices are equal places, of one size."""
    same = one.dtype == other.dtype and one.offset == other.offset
    return same and one.stride_of == other.stride_of
