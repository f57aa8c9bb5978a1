"""Random programs through every legal split and several schedules, against the interpreter."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tests.fuzz.evaluate import Disturbed, Mode, is_fit
from tests.fuzz.memory import check_untouched, input_tensor, output_tensor, written
from tests.fuzz.native import compile_sources
from tests.fuzz.outcome import Mismatch, Outcome, check_close
from tests.fuzz.program_generator import Generator, Layouts, parameter_values
from weft.errors import Refusal, VerificationError
from weft.ir.interpret import interpret, sizes_of
from weft.ir.parser import parse
from weft.ir.program import Buffer, Output, Program, Size, Value
from weft.ir.simplify import simplify
from weft.ir.structure import loops_of
from weft.ir.verify import verify
from weft.plan.kernel import Kernel, Plan, parse_kernel
from weft.plan.planner import plan, plan_split, splits
from weft.plan.verify import verify_plan
from weft.render import cpp
from weft.runtime.launch import check_tensors
from weft.target import Target

CPU = Target.named("cpu")
TILINGS = ((8, 64), (8, 8), (3, 7), (1, 1000), (5, 5), (2, 16))
THREADS = (1, 3)
MOST_PLANS = 4
NATIVE_ONLY = ("pow",)
"""Simplification may change the last bit of these in the program's own dtypes, as it says."""


@dataclass(frozen=True)
class Case:
    """A program with all that decides how it is run. sizes: of run-time parameters. products: run-time strides."""

    seed: int
    program: Program
    sizes: dict[str, int]
    products: dict[str, tuple[Size, ...]]
    mode: Mode

    @property
    def parameters(self) -> list[int]:
        return parameter_values(self.program, self.sizes, self.products)


def make(seed: int) -> Case:
    mode: Mode = "exact" if seed % 3 == 0 else "random"
    made: Layouts = Generator(seed, mode).run()
    return Case(seed, made.program, made.sizes, made.products, mode)


def describe(case: Case) -> str:
    sizes = "".join(f", {name} = {value}" for name, value in case.sizes.items())
    return f"# seed {case.seed}, {case.mode} inputs{sizes}\n{case.program}"


def check(case: Case) -> Outcome:
    """Raise Mismatch, or whatever weft raises, if anything about the program goes wrong."""
    program = verify(simplify(case.program))
    _check_text(case.program)
    _check_text(program)
    plans = legal_plans(program, case.seed)
    if not plans:
        return Outcome(0, 0)
    functions = compile_sources([cpp.render(kernel) for p in plans for kernel in p.kernels])
    compared = 0
    other = random.Random(case.seed).choice((1, 2, 3, 9, 70))
    for sizes in (case.sizes, dict.fromkeys(case.sizes, other)):
        moved = replace(case, sizes=sizes)
        inputs = bind_inputs(moved)
        if sizes is not case.sizes and not (case.sizes and is_fit(case.program, _sizes(moved), inputs, case.mode)):
            continue
        expected = Expected(moved, program, inputs)
        given = {b.name: t for b, t in zip(case.program.inputs, inputs, strict=True)}
        for plan_ in plans:
            made = [run(plan_, functions, program, given, _sizes(moved), threads) for threads in THREADS]
            for first, second, output in zip(*made, program.outputs, strict=True):
                if not torch.equal(_bits(first), _bits(second)):
                    raise Mismatch("threads", f"{output.buffer.name} has other bits with {THREADS[1]} threads")
            try:
                expected.compare(made[0])
            except Mismatch as error:
                raise Mismatch(error.kind, f"{error}\n" + "\n".join(map(str, plan_.kernels))) from None
            compared += len(made[0])
    return Outcome(sum(len(p.kernels) for p in plans), compared)


def bind_inputs(case: Case) -> list[Tensor]:
    """Tensors for the inputs of the program."""
    return [input_tensor(b, _sizes(case), case.mode, case.seed) for b in case.program.inputs]


def _sizes(case: Case) -> dict[str, int]:
    return sizes_of(case.program, case.parameters)


class Expected:
    """What the interpreter says: once for the program as it is, compared with what simplification made of it."""

    def __init__(self, case: Case, simplified: Program, inputs: Sequence[Tensor]) -> None:
        program, parameters = case.program, case.parameters
        self.case, self.program = case, program
        self.exact = interpret(program, inputs, parameters)
        self.native = interpret(program, inputs, parameters, exact=False)
        self.disturbed = [_disturbed(case, inputs, seed) for seed in range(3)] if case.mode == "random" else []
        names = [b.name for b in program.inputs]
        fewer = [inputs[names.index(b.name)] for b in simplified.inputs]
        after = interpret(simplified, fewer, [_sizes(case)[p] for p in simplified.parameters], exact=False)
        rounds = any(v.op in NATIVE_ONLY for v in program.values)
        for output, a, b in zip(program.outputs, self.native, after, strict=True):
            if not (rounds or torch.equal(a, b)):
                raise Mismatch("simplify", f"{output.buffer.name} has other bits after simplification:\n{simplified}")

    def compare(self, made: Sequence[Tensor]) -> None:
        for i, (output, mine) in enumerate(zip(self.program.outputs, made, strict=True)):
            exact, native = self.exact[i], self.native[i]
            if self.case.mode == "exact" and not torch.equal(mine, exact.to(mine.dtype)):
                wrong = int((mine != exact.to(mine.dtype)).sum())
                raise Mismatch("value", f"{output.buffer.name}: {wrong} of {mine.numel()} exact elements differ")
            check_close(output.buffer.name, mine, exact, native, [d[i] for d in self.disturbed])


def _disturbed(case: Case, inputs: Sequence[Tensor], seed: int) -> list[Tensor]:
    found = Disturbed(case.program, _sizes(case), seed)
    for buffer, tensor in zip(case.program.inputs, inputs, strict=True):
        found.env[buffer.name] = found.load(buffer, tensor)
    for value in case.program.values:
        found.env[value.name] = found.evaluate(value)
    results: list[Tensor] = []
    for output in case.program.outputs:
        aligned = found.align(found.env[output.value], output.buffer.dims)
        results.append(aligned.expand([_sizes(case)[d] for d in output.buffer.dims]))
    return results


def _bits(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype).copy_(x).reshape(-1).view(torch.uint8)


def _check_text(program: Program) -> None:
    if parse(str(program)) != program:
        raise Mismatch("text", f"the printed program parses to another one:\n{program}")


# plans


def legal_plans(program: Program, seed: int) -> list[Plan]:
    """Some of the legal splits, each under a schedule drawn from the seed, and the planner's own choice."""
    draw = random.Random(seed)
    found: list[Plan] = []
    for rows, columns in splits(program):
        candidate = plan_split(program, rows, columns, CPU, {})
        if isinstance(candidate, Plan):
            found.append(candidate)
    best = plan(program, CPU)
    if not found and not isinstance(best, Refusal):
        raise Mismatch("plan", "a plan was chosen though no split is legal")
    chosen = [varied(p, draw) for p in draw.sample(found, min(MOST_PLANS, len(found)))]
    named = [_renamed(p, f"k{i}") for i, p in enumerate(chosen)]
    for candidate in named:
        verify_plan(candidate, program)
        for kernel in candidate.kernels:
            if parse_kernel(str(kernel)) != kernel:
                raise Mismatch("text", f"the printed kernel parses to another one:\n{kernel}")
    return named


def varied(plan_: Plan, draw: random.Random) -> Plan:
    """The plan with other tiles, other chunks and other values held."""
    kernels: list[Kernel] = []
    for kernel in plan_.kernels:
        schedule = kernel.schedule
        tile, chunk = draw.choice(TILINGS)
        loops = loops_of(kernel.program, schedule.rows, schedule.columns)
        names = [name for stage in loops.values for name in stage]
        several = tuple(dict.fromkeys(n for n in names if names.count(n) > 1))
        held = draw.choice((schedule.held, (), several, several[:1]))
        kernels.append(replace(kernel, schedule=replace(schedule, rows_per_tile=tile, rows_per_chunk=chunk, held=held)))
    return replace(plan_, kernels=tuple(kernels))


def _renamed(plan_: Plan, name: str) -> Plan:
    """Kernels of all plans have names of their own: they are compiled as one text."""
    kernels = tuple(replace(k, program=replace(k.program, name=f"{name}_{i}")) for i, k in enumerate(plan_.kernels))
    return replace(plan_, kernels=kernels)


def run(
    plan_: Plan,
    functions: dict[str, Callable[..., None]],
    program: Program,
    given: dict[str, Tensor],
    sizes: dict[str, int],
    threads: int,
) -> list[Tensor]:
    """Outputs of a plan in poisoned memory, as the runtime would launch it, with that many threads."""
    sizes = dict(sizes)
    for name, factors in plan_.products.items():
        sizes[name] = 1
        for factor in factors:
            sizes[name] *= sizes[factor] if isinstance(factor, str) else factor
    tensors = dict(given)
    for kernel in plan_.kernels:
        outputs = [o.buffer for o in kernel.program.outputs]
        tensors |= {b.name: output_tensor(b, sizes) for b in outputs}
        ins, outs = [tensors[b.name] for b in kernel.program.inputs], [tensors[b.name] for b in outputs]
        parameters = [sizes[p] for p in kernel.program.parameters]
        check_tensors(kernel, ins, outs, parameters)
        pointers = (ctypes.c_void_p * (len(ins) + len(outs)))(*[t.data_ptr() for t in (*ins, *outs)])
        numbers = (ctypes.c_int64 * max(1, len(parameters)))(*parameters)
        functions[kernel.name](pointers, numbers, threads)
        for buffer, tensor in zip(outputs, outs, strict=True):
            check_untouched(buffer, tensor)
    return [written(o.buffer, tensors[o.buffer.name]) for o in program.outputs]


# smaller cases


def is_valid(case: Case) -> bool:
    """Whether every value of a case is fit to be compared."""
    return is_fit(case.program, _sizes(case), bind_inputs(case), case.mode)


def smaller(case: Case) -> Iterator[Case]:
    """Cases with less in them: outputs, values and dimensions go, sizes shrink, layouts become plain."""
    for program in _smaller_programs(case.program):
        parameters = {*program.parameters}
        sizes = {name: size for name, size in case.sizes.items() if name in parameters or _is_used(name, case, program)}
        yield replace(case, program=program, sizes=sizes)
    for name, size in case.sizes.items():
        for fewer in (2, 3, size // 2):
            if 1 < fewer < size:
                yield replace(case, sizes=case.sizes | {name: fewer})


def _is_used(name: str, case: Case, program: Program) -> bool:
    return any(name in case.products.get(p, ()) for p in program.parameters)


def _smaller_programs(program: Program) -> Iterator[Program]:
    for output in program.outputs:
        if len(program.outputs) > 1:
            yield _without_unused(replace(program, outputs=(output,)))
            yield _without_unused(replace(program, outputs=tuple(o for o in program.outputs if o != output)))
    by_name = program.by_name()
    for output in program.outputs:
        for arg in by_name[output.value].args if output.value in by_name else ():
            yield from _if_verified(_written_instead(program, output, arg))
    for value in reversed(program.values):
        for arg in value.args:
            yield from _if_verified(_renamed_value(program, value.name, arg))
        yield from _if_verified(_as_input(program, value.name))
    for dim in program.dims:
        yield from _if_verified(_without_dim(program, dim.name))
        if isinstance(dim.size, int):
            for size in (2, 3, dim.size // 2, dim.size - 1):
                if 1 < size < dim.size:
                    dims = tuple(replace(d, size=size) if d is dim else d for d in program.dims)
                    yield from _if_verified(replace(program, dims=dims))
    for buffer in (*program.inputs, *(o.buffer for o in program.outputs)):
        yield from _if_verified(_plain(program, buffer))


def _if_verified(program: Program | None) -> Iterator[Program]:
    if program is None:
        return
    try:
        yield _without_unused(verify(program))
    except VerificationError:
        return


def _without_unused(program: Program) -> Program:
    needed = {o.value for o in program.outputs}
    for value in reversed(program.values):
        if value.name in needed:
            needed.update(value.args)
    inputs = tuple(b for b in program.inputs if b.name in needed)
    values = tuple(v for v in program.values if v.name in needed)
    buffers = [*inputs, *(o.buffer for o in program.outputs)]
    dims = {d for b in buffers for d in b.dims} | {d for v in values for d in (*v.dims, *map(str, v.attributes))}
    kept = tuple(d for d in program.dims if d.name in dims)
    sizes = {d.size for d in kept} | {s for b in buffers for s in b.strides}
    parameters = tuple(p for p in program.parameters if p in sizes)
    return replace(program, inputs=inputs, values=values, dims=kept, parameters=parameters)


def _renamed_value(program: Program, old: str, new: str) -> Program | None:
    """``new`` stands for the value ``old``, of the same type."""
    types = program.types()
    if types[old] != types[new]:
        return None
    values = tuple(
        replace(v, args=tuple(new if a == old else a for a in v.args)) for v in program.values if v.name != old
    )
    outputs = tuple(replace(o, value=new) if o.value == old else o for o in program.outputs)
    return replace(program, values=values, outputs=outputs)


def _as_input(program: Program, name: str) -> Program | None:
    """A value is read from memory instead of computed."""
    dtype, dims = program.types()[name]
    strides = _dense(program, dims)
    if strides is None:
        return None
    values = tuple(v for v in program.values if v.name != name)
    return replace(program, inputs=(*program.inputs, Buffer(name, dtype, dims, strides)), values=values)


def _written_instead(program: Program, output: Output, name: str) -> Program | None:
    """An output is written with an operand of its value."""
    dtype, dims = program.types()[name]
    strides = _dense(program, dims)
    if strides is None:
        return None
    fresh = Output(Buffer(output.buffer.name, dtype, dims, strides), name)
    return replace(program, outputs=tuple(fresh if o is output else o for o in program.outputs))


def _dense(program: Program, dims: Sequence[str]) -> tuple[Size, ...] | None:
    """Strides without padding, unless they depend on run-time sizes."""
    strides: list[Size] = []
    count = 1
    for dim in reversed(dims):
        strides.insert(0, count)
        size = program.size_of(dim)
        if isinstance(size, str) and dim != dims[0]:
            return None
        count *= 1 if isinstance(size, str) else size
    return tuple(strides)


def _without_dim(program: Program, dim: str) -> Program | None:
    """Nothing varies over a dimension any more; what was only reduced over it is gone."""
    if len(program.dims) == 1:
        return None

    def buffer(b: Buffer) -> Buffer:
        kept = [(d, s) for d, s in zip(b.dims, b.strides, strict=True) if d != dim]
        return replace(b, dims=tuple(d for d, _ in kept), strides=tuple(s for _, s in kept))

    values: list[Value] = []
    renamed: dict[str, str] = {}
    for v in program.values:
        attributes = tuple(a for a in v.attributes if a != dim)
        args = tuple(renamed.get(a, a) for a in v.args)
        if v.attributes and not attributes:
            if not args:
                return None
            renamed[v.name] = args[0]
            continue
        values.append(replace(v, args=args, attributes=attributes, dims=tuple(d for d in v.dims if d != dim)))
    outputs = tuple(replace(o, buffer=buffer(o.buffer), value=renamed.get(o.value, o.value)) for o in program.outputs)
    dims = tuple(d for d in program.dims if d.name != dim)
    inputs = tuple(buffer(b) for b in program.inputs)
    return replace(program, dims=dims, inputs=inputs, values=tuple(values), outputs=outputs)


def _plain(program: Program, buffer: Buffer) -> Program | None:
    """A buffer without padding or offset, its dimensions in order."""
    strides = _dense(program, buffer.dims)
    if strides is None:
        return None
    plain = replace(buffer, strides=strides, offset=0)
    if plain == buffer:
        return None
    inputs = tuple(plain if b == buffer else b for b in program.inputs)
    outputs = tuple(replace(o, buffer=plain) if o.buffer == buffer else o for o in program.outputs)
    return replace(program, inputs=inputs, outputs=outputs)


def script(case: Case, error: str) -> str:
    """A Python file that compares all legal plans of the program with the interpreter, without this package."""
    comment = "\n".join(f"# {line}" for line in error.splitlines())
    return f'''{comment}
import torch

from weft.ir.interpret import interpret, sizes_of
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.parser import parse
from weft.ir.simplify import simplify
from weft.options import Options
from weft.plan.kernel import Plan
from weft.plan.planner import plan_split, splits
from weft.runtime.launch import run_plan
from weft.target import Target

program = parse("""{case.program}""")
parameters = {case.parameters}
sizes = sizes_of(program, parameters)
torch.manual_seed({case.seed})


def make(buffer):
    shape = [sizes[d] for d in buffer.dims]
    strides = [sizes[s] if isinstance(s, str) else s for s in buffer.strides]
    count = 1 + sum((n - 1) * s for n, s in zip(shape, strides)) + buffer.offset
    dtype = TORCH_DTYPES[buffer.dtype]
    whole = {case.mode == "exact"} or not dtype.is_floating_point
    numbers = torch.randint(-3, 4, (count,)) if whole else 4 * torch.rand(count) - 2
    return numbers.to(dtype).as_strided(shape, strides)


inputs = {{b.name: make(b) for b in program.inputs}}
expected = interpret(program, list(inputs.values()), parameters)
simplified = simplify(program)
for rows, columns in splits(simplified):
    plan = plan_split(simplified, rows, columns, Target.named("cpu"), {{}})
    if isinstance(plan, Plan):
        values = [sizes[p] for p in simplified.parameters]
        made = run_plan(plan, simplified, [inputs[b.name] for b in simplified.inputs], values, Options.read())
        for output, mine, exact in zip(program.outputs, made, expected):
            print(rows, columns, output.buffer.name, (mine.double() - exact.double()).abs().max().item())
'''
