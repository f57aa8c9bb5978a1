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
from tests.fuzz.program_shrink import smaller_programs
from weft.backends.cpp import text as cpp
from weft.errors import Refusal
from weft.ir.interpret import interpret, sizes_of
from weft.ir.parser import parse
from weft.ir.program import Program, Size
from weft.ir.simplify import simplify
from weft.ir.structure import loops_of
from weft.ir.verify import verify
from weft.plan.kernel import Kernel, Plan, parse_kernel
from weft.plan.planner import plan, plan_split, splits
from weft.plan.verify import verify_plan
from weft.runtime.layout import check_tensors
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
                if not torch.equal(bits(first), bits(second)):
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


def bits(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype).copy_(x).reshape(-1).view(torch.uint8)


def _check_text(program: Program) -> None:
    if parse(str(program)) != program:
        raise Mismatch("text", f"the printed program parses to another one:\n{program}")


# plans


def legal_plans(
    program: Program, seed: int, target: Target = CPU, vary: Callable[[Plan, random.Random], Plan] | None = None
) -> list[Plan]:
    """Some of the legal splits, each under a schedule drawn from the seed, and the planner's own choice."""
    draw, vary = random.Random(seed), vary or varied
    found: list[Plan] = []
    for rows, columns in splits(program):
        candidate = plan_split(program, rows, columns, target, {})
        if isinstance(candidate, Plan):
            found.append(candidate)
    best = plan(program, target)
    if not found and not isinstance(best, Refusal):
        raise Mismatch("plan", "a plan was chosen though no split is legal")
    chosen = [vary(p, draw) for p in draw.sample(found, min(MOST_PLANS, len(found)))]
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
    """Cases with less in them."""
    for program in smaller_programs(case.program):
        parameters = {*program.parameters}
        sizes = {name: size for name, size in case.sizes.items() if name in parameters or _is_used(name, case, program)}
        yield replace(case, program=program, sizes=sizes)
    for name, size in case.sizes.items():
        for fewer in (2, 3, size // 2):
            if 1 < fewer < size:
                yield replace(case, sizes=case.sizes | {name: fewer})


def _is_used(name: str, case: Case, program: Program) -> bool:
    return any(name in case.products.get(p, ()) for p in program.parameters)


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
