"""What ``tools.fusion`` measures: regions that read much, regions that are drawn, shapes of two workloads; and the
plans of a region that are compared."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from tools.drawn_regions import drawn_widths
from weft.bench.case import Case, workload_case
from weft.bench.inputs import Shape
from weft.bench.workloads import WORKLOADS
from weft.bench.workloads.workload import wide
from weft.capture.regions import capture
from weft.capture.trace import trace
from weft.ir.program import Program
from weft.ir.simplify import simplify
from weft.plan.kernel import Plan
from weft.plan.planner import plan, plans_of_split
from weft.target import Target

SHAPE: Shape = (98304, 512)
"""Of the regions that read much: 48 sequences of 2048 tokens."""
NORM = ("dn", "x", "weight", "rstd", "dresidual")
MIX = ("mix0", "mix1", "before", "embedded")
SCALED = ("mlp_scale", "mlp_branch")
SKIPPED = ("skip_scale", "skip", "d_embedded_more", "embedding", "embedding_rstd")
REGIONS: dict[int, tuple[str, ...]] = {
    6: (*NORM, "dn_gate"),
    7: (*NORM, "scale", "branch"),
    10: (*NORM, *MIX, "d_embedded"),
    11: (*NORM, *MIX, *SCALED),
    14: (*NORM, *MIX, *SCALED, "d_embedded", "dn_key", "dn_value"),
    19: (*NORM, *MIX, *SCALED, "d_embedded", "dn_key", "dn_value", *SKIPPED),
}
"""What backwards of a block with a residual mix read, by its number."""
COUNT, SEED = 40, 185534
"""Of regions that are drawn, and what they are drawn from."""
SIZES = (256, 512, 1000, 1536, 2048, 4096, 5000, 8192, 12288, 16384)
"""Rows and columns of the sweep."""
SWEPT = ("row_column_sum", "rms_norm_backward")
ALL_OF, BEST = 15, 12
"""Plans of a region up to which all are measured, and how many of the best predicted of more."""


def mix_backward(names: Sequence[str], *tensors: Tensor) -> tuple[Tensor, ...]:
    """Gradients of part of a block whose stream is ``mix0 * before + mix1 * embedded``, with a norm behind it: of what
    ``names`` says is read, in the order of ``tensors``. ``rstd`` and ``embedding_rstd`` are float32 ``[M, 1]``;
    ``weight``, the scales and the mixes ``[N]``; all others ``[M, N]``, of which those that begin with ``dn`` are
    gradients of the norm's result that are added up."""
    read = dict(zip(names, tensors, strict=True))
    dtype, of = read["x"].dtype, {name: wide(tensor) for name, tensor in read.items()}
    dn = sum((of[name] for name in names if name.startswith("dn_")), of["dn"])
    x_hat, g = of["x"] * of["rstd"], dn * of["weight"]
    stream = (of["rstd"] * (g - x_hat * (x_hat * g).mean(-1, keepdim=True)) + of["dresidual"]).to(dtype)
    written, sums, grad = [stream], [(dn * x_hat).sum(0)], wide(stream)
    if "scale" in of:
        written.append((grad * of["scale"]).to(dtype))
        sums.append((grad * of["branch"]).sum(0))
    if "mix0" in of:
        sums += [(grad * of["before"]).sum(0), (grad * of["embedded"]).sum(0)]
        embedded = sum((of[name] for name in names if name.startswith("d_embedded")), grad * of["mix1"])
        if "embedding" in of:
            hat = of["embedding"] * of["embedding_rstd"]
            embedded = of["embedding_rstd"] * (embedded - hat * (hat * embedded).mean(-1, keepdim=True))
        before = (grad * of["mix0"]).to(dtype)
        written = [before, embedded.to(dtype)]
        for scale, branch in (SCALED, SKIPPED[:2]):
            if scale in of:
                written.append((wide(before) * of[scale]).to(dtype))
                sums.append((wide(before) * of[branch]).sum(0))
    return *written, *(total.to(dtype) for total in sums)


@dataclass(frozen=True)
class Drawn:
    """A region that is drawn: how many tensors ``[M, N]`` it loads and writes, how many weights ``[N]`` it has and how
    many columns it sums up; which ones, ``seed`` says."""

    rows: int
    columns: int
    loads: int
    weights: int
    written: int
    sums: int
    seed: int

    def __str__(self) -> str:
        return f"{self.loads}+{self.weights} to {self.written}+{self.sums}, seed {self.seed}"


def drawn(seed: int, count: int = COUNT) -> list[Drawn]:
    """Regions with 2^14 to 2^26 elements."""
    draw, found = random.Random(seed), list[Drawn]()
    for _ in range(count):
        (columns,) = drawn_widths(draw, 1, 128, 12288)
        (elements,) = drawn_widths(draw, 1, 2**14, 2**26)
        loads, weights = draw.randint(1, 5), draw.randint(0, 3)
        counts = draw.randint(0, 3), draw.randint(1, 4)
        found.append(Drawn(max(2, elements // columns), columns, loads, weights, *counts, draw.randrange(10**6)))
    return found


def drawn_function(region: Drawn) -> Callable[..., tuple[Tensor, ...]]:
    """What a drawn region computes: a row sum, which is written if nothing else of rows is, tensors that need it, and
    sums of columns, some of which need it and some of which are of what is written. All of them read the first tensor,
    so that it is one region. The function takes what is loaded, then the weights."""
    draw = random.Random(region.seed)

    def picked() -> tuple[int, int]:
        """One of the loaded tensors, and a weight or none."""
        is_scaled = region.weights > 0 and draw.random() < 0.6
        return draw.randrange(region.loads), region.loads + draw.randrange(region.weights) if is_scaled else -1

    of_total, of_written = picked(), [picked() for _ in range(region.written)]
    of_sums = [(draw.randrange(2 + region.written), draw.randrange(region.loads)) for _ in range(region.sums)]

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        dtype, of = tensors[0].dtype, [wide(t) for t in tensors]

        def scaled(value: Tensor, weight: int) -> Tensor:
            return value if weight < 0 else value * of[weight]

        total = scaled(of[0] * of[of_total[0]], of_total[1]).mean(-1, keepdim=True)
        written = [(scaled(of[load], weight) - of[0] * total).to(dtype) for load, weight in of_written]
        sums = [
            (wide(written[kind - 2]) if kind > 1 else of[0] * (total if kind else of[load])).sum(0) * (1 + place)
            for place, (kind, load) in enumerate(of_sums)
        ]
        return *(written or [total]), *sums

    return function


@dataclass(frozen=True)
class Cell:
    """part: ``over``, ``under`` or ``sweep``; reads: of a region that reads much. drawn: a drawn one."""

    part: str
    name: str
    rows: int
    columns: int
    reads: int = 0
    drawn: Drawn | None = None


def cells_of(part: str, seed: int) -> list[Cell]:
    """What a part of the command measures."""
    if part == "over":
        return [Cell(part, f"mix_backward_{reads}", *SHAPE, reads) for reads in REGIONS]
    if part == "under":
        return [Cell(part, str(each), each.rows, each.columns, 0, each) for each in drawn(seed)]
    return [Cell(part, name, rows, columns) for name, rows, columns in product(SWEPT, SIZES, SIZES)]


def case_of(cell: Cell, device: str) -> Case:
    """The function of a cell, with random bfloat16 tensors of its own."""
    generator, (rows, columns) = torch.Generator(device).manual_seed(0), (cell.rows, cell.columns)

    def normal(*size: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.randn(size, generator=generator, device=device).to(dtype)

    def named(name: str) -> Tensor:
        if name.endswith("rstd"):
            return normal(rows, 1, dtype=torch.float32).abs() + 0.5
        return (
            normal(columns) if name.startswith(("weight", "mix")) or name.endswith("scale") else normal(rows, columns)
        )

    shape = (rows, columns)
    if cell.part == "sweep":
        return workload_case(WORKLOADS[cell.name], shape, torch.bfloat16, device)
    function: Callable[..., tuple[Tensor, ...]]
    if cell.drawn is None:
        names = REGIONS[cell.reads]
        function, inputs = partial(mix_backward, names), tuple(map(named, names))
    else:
        function = drawn_function(cell.drawn)
        inputs = tuple(normal(rows, columns) for _ in range(cell.drawn.loads))
        inputs += tuple(normal(columns) for _ in range(cell.drawn.weights))
    return Case(cell.name, f"{rows}x{columns}", columns, "bf16", function, inputs)


def program_of(cell: Cell) -> Program:
    """What a cell computes, as the one region that it is; no tensor of its size is filled."""
    case = case_of(Cell(cell.part, cell.name, 2, 4, cell.reads, cell.drawn), "cpu")
    sizes = {2: cell.rows, 4: cell.columns}
    inputs = [torch.empty([sizes.get(n, n) for n in t.shape], dtype=t.dtype) for t in case.inputs]
    (region,) = capture(trace(case.function, inputs).graph, "region").regions
    return simplify(region.program)


def grouping(found: Plan, program: Program) -> str:
    """Which outputs of a program share a kernel, as text: those of a kernel with a plus between them."""
    own = {o.buffer.name for o in program.outputs}
    kernels = ([o.buffer.name for o in kernel.program.outputs] for kernel in found.kernels)
    return " | ".join("+".join(name for name in names if name in own) or "-" for names in kernels)


def plans_of(program: Program, target: Target) -> dict[str, Plan]:
    """Plans of a program under the split that the planner takes, the best predicted one of each partition of its
    outputs, by name, the chosen one first, the others by predicted time."""
    chosen = plan(program, target)
    first, last = program.dims
    split = ((first.name,), (last.name,))
    if isinstance(chosen, Plan):
        split = chosen.kernels[0].schedule.rows, chosen.kernels[0].schedule.columns
    every = sorted(plans_of_split(program, *split, target, {}), key=lambda each: (each.predicted_us, len(each.kernels)))
    best: dict[str, Plan] = {}
    for each in every:
        best.setdefault(grouping(each, program), each)
    return best


def compared(cell: Cell, found: Mapping[str, Plan]) -> dict[str, Plan]:
    """The plans of ``plans_of`` that a cell measures, by name, the chosen one first. Of a sweep the best predicted one
    with a kernel of rows and columns, and without; of a drawn region all, or the best predicted ones with all outputs
    in one kernel and with rows and columns apart."""
    mixed = [name for name, each in found.items() if "mixed-order" in each.kinds]
    pure = [name for name in found if name not in mixed]
    if cell.part == "sweep":
        ends = [("fused", mixed[:1]), ("apart", pure[:1])]
        best = {name: own[0] for name, own in ends if own}
        order = list(found)
        return {name: found[best[name]] for name in sorted(best, key=lambda name: order.index(best[name]))}
    taken = list(found) if len(found) <= ALL_OF else list(found)[:BEST]
    one = [name for name, each in found.items() if len(each.kernels) == 1]
    return {name: found[name] for name in dict.fromkeys((*taken, *one, *pure[:1]))}
