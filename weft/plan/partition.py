"""Cuts a program into kernels, one a pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from weft.ir import dtypes
from weft.ir.builder import Builder
from weft.ir.ops import lookup
from weft.ir.program import Output, Program, Size
from weft.ir.structure import Structure, analyse, is_outer, reachable
from weft.plan.sizes import Sizes


@dataclass(frozen=True)
class Passes:
    """One program a pass, in order, and run-time strides of intermediates as products of sizes."""

    programs: tuple[Program, ...]
    products: dict[str, tuple[Size, ...]]


def cut(
    program: Program,
    found: Structure,
    hints: Mapping[str, int],
    products: Mapping[str, tuple[Size, ...]] | None = None,
    mark: str = "",
) -> Passes:
    """Programs of the passes of ``program``. A value that a later pass needs is stored, unless computing it again from
    inputs reads fewer bytes than a store and a load move. Buffers keep their names; an intermediate is named after its
    value. products: run-time strides that there are already. mark: before the number of the pass in the names of its
    values, where these are to differ from those of other passes."""
    count = 1 + max(_output_pass(found, o) for o in program.outputs)
    if count == 1:
        return Passes((program,), {})
    needed, stored = needs(program, found, recomputed(program, found, hints))
    known = dict(products or {})
    programs: list[Program] = []
    for each in range(count):
        outputs = [o for o in program.outputs if _output_pass(found, o) == each]
        saved = [name for name, p in stored.items() if p == each]
        own = f"{mark}{each}" if mark else ""
        programs.append(_assemble(program, f"{program.name}_{each}", needed[each], outputs, stored, saved, known, own))
    return Passes(tuple(programs), known)


def needs(program: Program, found: Structure, again: set[str]) -> tuple[dict[int, set[str]], dict[str, int]]:
    """Values that each pass computes, and the pass of each one that is stored for a later one. again: those that are
    computed again instead."""
    at = {o: _output_pass(found, o) for o in program.outputs}
    stored: dict[str, int] = {}
    needed: dict[int, set[str]] = {}
    for each in reversed(range(1 + max(at.values()))):
        roots = {o.value for o in program.outputs if at[o] == each} | {name for name, p in stored.items() if p == each}
        needed[each] = _needed(program, found, roots, each, again, stored)
    return needed, stored


def _output_pass(found: Structure, output: Output) -> int:
    """The pass that writes an output: the one after its value's, if that is complete only after the rows it fills."""
    return found.passes[output.value] + bool(found.dropped[output.value] & set(output.buffer.dims))


def recomputed(program: Program, found: Structure, hints: Mapping[str, int]) -> set[str]:
    """Pointwise values worth computing again in a later pass: what they are made from (inputs and results of
    reductions, which are stored anyway) is no more than a store and a load of the value itself would move."""
    sizes, types = Sizes(program, hints), program.types()

    def bytes_of(name: str) -> int:
        return sizes.elements(types[name][1]) * dtypes.itemsize(types[name][0])

    sources: dict[str, set[str]] = {b.name: {b.name} for b in program.inputs}
    for value in program.values:
        reduction = lookup(value.op).kind == "reduction"
        sources[value.name] = {value.name} if reduction else set().union(*(sources[a] for a in value.args))
    pointwise = [v.name for v in program.values if lookup(v.op).kind != "reduction" and not found.is_epilogue(v.name)]
    return {name for name in pointwise if sum(map(bytes_of, sources[name])) <= 2 * bytes_of(name)}


def _needed(
    program: Program, found: Structure, roots: set[str], at: int, again: set[str], stored: dict[str, int]
) -> set[str]:
    """Values that pass ``at`` computes; what it takes from earlier passes is added to ``stored``."""
    by_name = program.by_name()

    def is_taken(name: str) -> bool:
        return found.passes[name] < at and name not in again

    def operands(name: str) -> tuple[str, ...]:
        return () if name not in by_name or is_taken(name) else by_name[name].args

    reached = [name for name in reachable(roots, operands) if name in by_name]
    stored |= {name: found.passes[name] for name in reached if is_taken(name)}
    return {name for name in reached if not is_taken(name)}


def _assemble(
    program: Program,
    name: str,
    needed: set[str],
    outputs: Sequence[Output],
    given: Iterable[str],
    saved: Sequence[str],
    products: dict[str, tuple[Size, ...]],
    mark: str = "",
) -> Program:
    """Part of a program: computes ``needed``, reads from memory what else it takes and is ``given`` there, writes
    ``outputs`` and ``saved``. mark: behind the names of its values, which are new ones otherwise."""
    by_name, types = program.by_name(), program.types()
    used = {arg for v in needed for arg in by_name[v].args} | {o.value for o in outputs}
    given = [value for value in given if value in used - needed]
    builder = Builder.like(program, extra=(saved_name(program, v, mark) for v in {*given, *saved}))
    builder.name = name
    renamed = {b.name: builder.add_input(b) for b in program.inputs if b.name in used}
    for value in given:
        dtype, dims = types[value]
        renamed[value] = builder.input(
            saved_name(program, value, mark), dtype, dims, _contiguous(program, dims, products)
        )
    for value in program.values:
        if value.name in needed:
            args, own = [renamed[a] for a in value.args], value.name + mark if mark else ""
            renamed[value.name] = builder.op(value.op, *args, dtype=value.dtype, attributes=value.attributes, name=own)
    for output in outputs:
        builder.add_output(output.buffer, renamed[output.value])
    for value in saved:
        dtype, dims = types[value]
        strides = _contiguous(program, dims, products)
        builder.output(saved_name(program, value, mark), renamed[value], dtype, dims, strides)
    builder.parameters = tuple(dict.fromkeys((*program.parameters, *products)))
    return _only_used(builder)


def separate(
    program: Program,
    rows: tuple[str, ...],
    *,
    saving: bool = False,
    storing: bool = False,
    groups: Sequence[Sequence[str]] | None = None,
    products: dict[str, tuple[Size, ...]] | None = None,
) -> tuple[Program, ...]:
    """A one-pass program without fusion across rows and columns: what does not follow an outer reduction, then the
    outer reductions, which read inputs again and take row results from memory. The program itself if it has but one.
    saving: also where all that the first part would write are row results. storing: outer reductions take all of what
    they add up from memory, and compute nothing again. groups: of outputs that follow outer reductions, a part for
    each; what is in none is left in the first part, which then is of rows and columns itself. By default all of them
    are one. products: run-time strides of intermediates, to which those of what is saved are added."""
    known = {} if products is None else products
    every = late_outputs(program, rows)
    taken = [every] if groups is None else [[o for o in every if o.buffer.name in group] for group in groups]
    late = [o for own in taken for o in own]
    early = [o for o in program.outputs if o not in late]
    if not late or not (early or saving):
        return (program,)
    results = {v.name for v in program.values if lookup(v.op).kind == "reduction" and not is_outer(v, rows)}
    if storing:
        results |= {v.args[0] for v in program.values if is_outer(v, rows)} & set(program.by_name())
    columns = [_part(program, own, results, "_columns" + _numbers(own, every), (), known) for own in taken]
    wanted = {b.name for each in columns for b in each.inputs}
    saved = [name for name in sorted(results) if saved_name(program, name) in wanted]
    if not early and not saved:
        return (program,)
    return _part(program, early, set(), "_rows", saved, known), *columns


def _numbers(some: Sequence[Output], every: Sequence[Output]) -> str:
    """What a part with some of all outputs is called: the same in each way to group the others."""
    return "" if len(some) == len(every) else "".join(f"_{every.index(each)}" for each in some)


def late_outputs(program: Program, rows: tuple[str, ...]) -> list[Output]:
    """Those that follow outer reductions."""
    found = analyse(program, rows)
    return [o for o in program.outputs if found.is_epilogue(o.value)]


def _part(
    program: Program,
    outputs: list[Output],
    given: set[str],
    suffix: str,
    saved: Sequence[str],
    products: dict[str, tuple[Size, ...]],
) -> Program:
    """The program of some outputs, with some values given in memory, and some more put there."""
    by_name = program.by_name()
    reached = reachable(
        [*(o.value for o in outputs), *saved],
        lambda name: by_name[name].args if name in by_name and name not in given else (),
    )
    needed = {name for name in reached if name in by_name and name not in given}
    return _assemble(program, program.name + suffix, needed, outputs, sorted(given), saved, products)


def _only_used(builder: Builder) -> Program:
    """Drop dimensions and parameters that no value or buffer of this pass has."""
    buffers = [*builder.inputs, *(o.buffer for o in builder.outputs)]
    dims = {d for b in buffers for d in b.dims} | {d for v in builder.values for d in v.dims}
    dims |= {str(a) for v in builder.values if lookup(v.op).names_dims for a in v.attributes}
    builder.dims = tuple(d for d in builder.dims if d.name in dims)
    sizes = [d.size for d in builder.dims] + [s for b in buffers for s in b.strides]
    sizes += [str(a) for v in builder.values if v.op == "parameter" for a in v.attributes]
    builder.parameters = tuple(p for p in builder.parameters if p in sizes)
    return builder.finish()


def saved_name(program: Program, value: str, mark: str = "") -> str:
    """Name of the buffer that carries a value of a program from one part to a later one: of the program's own, if its
    values are marked or a buffer has the value's."""
    name = f"{value}_saved"
    return f"{program.name}_{name}" if mark or any(b.name == name for b in program.buffers) else name


def _contiguous(program: Program, dims: tuple[str, ...], products: dict[str, tuple[Size, ...]]) -> list[Size]:
    strides: list[Size] = []
    for i in range(len(dims)):
        factors = [program.size_of(d) for d in dims[i + 1 :]]
        number = prod(f for f in factors if isinstance(f, int))
        symbols = tuple(f for f in factors if isinstance(f, str))
        if not symbols:
            strides.append(number)
            continue
        if number == 1 and len(symbols) == 1:
            strides.append(symbols[0])
            continue
        known = next((n for n, f in products.items() if f == (number, *symbols)), None)
        taken = {*program.parameters, *products}
        name = known or next(n for i in range(len(taken) + 1) if (n := f"p{i}") not in taken)
        products[name] = (number, *symbols)
        strides.append(name)
    return strides
