"""What ``weft.cuh`` computes: cases that a kernel each type runs for all of its elements, with what is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from torch import Tensor

from tests.triton_cases import COMPUTED, ROUNDED, _different, operands, ops_of
from weft.backends.c_expressions import C_TYPES
from weft.backends.cuda.legality import LEAST_ARCHITECTURE
from weft.ir.dtypes import HALVES, TORCH_DTYPES, is_float
from weft.ir.ops import OPS, Op, identity

SLOT_BYTES = 8
"""Of an element of any result."""
PATTERNS = 2**18
"""Random ones that are cast from types which have more than 16 bits."""
THREADS = 128
INF, NAN = float("inf"), float("nan")


@dataclass(frozen=True)
class Case:
    """text: of an expression of operands ``x0``, ``x1``, ...; right: its value in a type of at least its precision.
    tolerance: how far the result may be off; every bit is defined if there is none, or with zeros_alike all but those
    of the sign of a zero."""

    name: str
    text: str
    out: str
    right: Tensor
    tolerance: Tensor | None = None
    zeros_alike: bool = False

    def finding(self, mine: Tensor) -> str | None:
        """What is wrong with a result, if anything is."""
        right = self.right.to(mine.dtype)
        if self.tolerance is None:
            return _different(mine + 0.0, right + 0.0) if self.zeros_alike else _different(mine, right)
        close = (mine.double() - self.right.double()).abs() <= self.tolerance + torch.finfo(mine.dtype).smallest_normal
        special = ~right.isfinite() | (self.right == 0)
        return _different(torch.where(close & ~special, right, mine), right)


def kernel(dtype: str, cases: Sequence[Case], count: int) -> str:
    """The text of ``cases``, which takes ``count`` operands, a place for the results, and the number of elements."""
    kind, every = C_TYPES[dtype], range(count)
    slots = enumerate(cases)
    lines = [f"reinterpret_cast<{C_TYPES[c.out]}*>(out + {SLOT_BYTES * k} * n)[i] = {c.text};" for k, c in slots]
    return "\n".join(
        [
            f'extern "C" __global__ void __launch_bounds__({THREADS}) cases(',
            *(f"    const {kind}* p{k}," for k in every),
            "    uint8_t* out, int64_t n) {",
            f"  const int64_t i = int64_t(blockIdx.x) * {THREADS} + threadIdx.x;",
            "  if (i >= n) return;",
            *(f"  const {kind} x{k} = p{k}[i];" for k in every),
            *(f"  {line}" for line in lines),
            "}\n",
        ]
    )


def results(out: Tensor, cases: Sequence[Case], elements: int) -> list[Tensor]:
    """Those of each case. out: bytes, a row a case."""
    types = [TORCH_DTYPES[case.out] for case in cases]
    return [out[k, : elements * dtype.itemsize].contiguous().view(dtype) for k, dtype in enumerate(types)]


# operations


def values(dtype: str) -> tuple[list[Tensor], list[Case]]:
    """Every operation on a type, over special and random numbers."""
    given = operands(dtype, 2 if dtype in HALVES else 3)
    cases = [_operation(op, dtype, given) for op in ops_of(dtype)] + _numbers(dtype, len(given[0]))
    if dtype in ("f32", "f64"):
        cases += [_rounded(name, dtype, given) for name in ("exp", "tanh", "div", "reciprocal")]
    if dtype in HALVES:
        cases += _pairs(dtype, given)
    return given, cases


def _operation(op: Op, dtype: str, given: Sequence[Tensor]) -> Case:
    names, arguments = [f"x{k}" for k in range(op.arity)], list(given[: op.arity])
    if op.name == "where":
        names[0], arguments[0] = "x0 > 0", arguments[0] > 0
    text, result = f"w::{op.name}({', '.join(names)})", op.evaluate(*arguments)
    out = "bool" if op.dtype == "bool" else dtype
    if op.name == "sqrt":  # torch's own is not rounded to nearest on a CPU
        with np.errstate(invalid="ignore"):
            result = torch.from_numpy(np.sqrt(arguments[0].numpy()))
    if op.name == "fma" and dtype == "f64":  # the product is rounded in the interpreter
        tolerance = 4 * torch.finfo(torch.float64).eps * ((arguments[0] * arguments[1]).abs() + result.abs())
        return Case(op.name, text, out, result, tolerance)
    if not is_float(out) or dtype in HALVES or op.name in (*ROUNDED, "fma"):
        return Case(op.name, text, out, result, zeros_alike=op.name in ("maximum", "minimum"))
    right = op.evaluate(*(argument.double() for argument in arguments))
    units = 8 if dtype == "f64" else 4
    return Case(op.name, text, out, right, units * torch.finfo(TORCH_DTYPES[dtype]).eps * right.abs())


def _rounded(name: str, dtype: str, given: Sequence[Tensor]) -> Case:
    """A function for what is rounded to 16 bits, off by a few units in the last place of float32."""
    op = OPS[name]
    arguments = [x.double() for x in given[: op.arity]]
    right = op.evaluate(*arguments)
    units = torch.tensor({"tanh": 6.0}.get(name, 3.0)) if name != "exp" else 4 + arguments[0].abs().nan_to_num(0, 0, 0)
    text = f"w::{name}_rounded({', '.join(f'x{k}' for k in range(op.arity))})"
    return Case(f"{name}_rounded", text, dtype, right, units * 2.0**-23 * right.abs())


def _pairs(dtype: str, given: Sequence[Tensor]) -> list[Case]:
    """Of two numbers in a register."""
    kind, (x, y) = C_TYPES[dtype], given
    one, other = (f"w::pack<{kind}>(w::cast<float>({a}), w::cast<float>({b}))" for a, b in (("x0", "x1"), ("x1", "x0")))
    found: list[Case] = []
    for name, (half, a, b) in product(("add", "sub", "mul"), (("first", x, y), ("second", y, x))):
        text = f"w::cast<{kind}>(w::{half}_of<{kind}>(w::{name}_pairs<{kind}>({one}, {other})))"
        found.append(Case(f"{name}_pairs, {half}", text, dtype, OPS[name].evaluate(a, b)))
    return found


def _numbers(dtype: str, elements: int) -> list[Case]:
    """Literals, and what leaves reductions unchanged."""
    if dtype not in COMPUTED:
        return []
    found = {"infinity": INF, "nan": NAN} if is_float(dtype) else dict[str, float]()
    if dtype == "bool":
        found |= {"lowest": False, "highest": True}
    else:
        found |= {"lowest": identity("max", dtype), "highest": identity("min", dtype)}
    kind, torchs = C_TYPES[dtype], TORCH_DTYPES[dtype]
    return [Case(n, f"w::{n}<{kind}>()", dtype, torch.full((elements,), x, dtype=torchs)) for n, x in found.items()]


# casts


def casts(source: str) -> tuple[list[Tensor], list[Case]]:
    """From a type to every other: over all of its bit patterns if it has 16 or fewer, else over some. To integers what
    they have room for, which is all that is defined."""
    x = bit_patterns(source)
    bounds = {"i64": (-1e9, 1e9), "i32": (-1e9, 1e9), "i8": (-100, 100), "u8": (0, 100)} if is_float(source) else {}
    given, cases = [x], list[Case]()
    for target in TORCH_DTYPES:
        own = x
        if target in bounds:
            least, most = bounds[target]
            largest = torch.finfo(x.dtype).max
            own = x.double().nan_to_num(3.0).clamp(max(least, -largest), min(most, largest)).to(x.dtype)
            given.append(own)
        at = len(given) - 1 if target in bounds else 0
        cases.append(Case(target, f"w::cast<{C_TYPES[target]}>(x{at})", target, own.to(TORCH_DTYPES[target])))
    if source == "f32":
        cases += [_packed(half, x) for half in HALVES]
    return given, cases


def _packed(half: str, x: Tensor) -> Case:
    kind = C_TYPES[half]
    return Case(f"pack {half}", f"{kind}{{uint16_t(w::pack<{kind}>(0.0f, x0) >> 16)}}", half, x.to(TORCH_DTYPES[half]))


def bit_patterns(dtype: str) -> Tensor:
    """All numbers of a type of 16 bits or fewer; else random patterns and edges of narrow types."""
    torchs = TORCH_DTYPES[dtype]
    if dtype == "bool":
        return torch.tensor([False, True])
    if torchs.itemsize == 1:
        return torch.arange(256, dtype=torch.int32).to(torch.uint8).view(torchs)
    if torchs.itemsize == 2:
        return torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torchs)
    generator = torch.Generator().manual_seed(7)
    words = PATTERNS * torchs.itemsize // 8
    random = torch.randint(-(2**63), 2**63 - 1, (words,), generator=generator).view(torchs)
    if not is_float(dtype):
        return torch.cat([random, torch.arange(-300, 300, dtype=torchs), (random % 100_000).to(torchs)])
    # what has a tie of 16 bits and of 8 in its last bits, and what is next to it
    ties = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16).double()
    ties = torch.cat([ties * (1 + 2.0**-8), bit_patterns("f16").double() * (1 + 2.0**-11)])
    for eight in ("f8e4m3", "f8e5m2"):
        own = bit_patterns(eight).double()
        ties = torch.cat([ties, own, own[:-1] + (own[1:] - own[:-1]) / 2])
    edges = torch.tensor([448.0, 464.0, 465.0, 480.0, 57344.0, 61440.0, 65504.0, 65520.0, 1e-7, 3e-8, INF, -INF, NAN])
    ties = torch.cat([ties, edges.double(), -edges.double()]).to(torchs)
    beside = [torch.nextafter(ties, torch.full_like(ties, to)) for to in (INF, -INF)]
    near = (torch.randn(PATTERNS, generator=generator, dtype=torch.float64) * 300).to(torchs)
    return torch.cat([random, ties, *beside, near])


# reductions in one pass

ONLINE = {
    "sumexp": "w::Sumexp<T> own; each(i) own.add(x[i]); finish(own);",
    "sumexp of blocks": """w::Sumexp<T> own; T block[3]; int held = 0;
  each(i) { block[held++] = x[i]; if (held == 3) own.add(block), held = 0; }
  for (int i = 0; i < held; ++i) own.add(block[i]);
  finish(own);""",
    "sumexp of an exchange": """w::Sumexp<T> own; each(i) own.add(x[i]);
  exchange_of(1, 2)
  exchange.template reduce<w::Merge>(own);
  if (threadIdx.x == threads - 1) out[blockIdx.x] = own.total();""",
    "sumexp of exchanges that overlap": """w::Sumexp<T> own[2], all;
  exchange_of(2, 4)
  int sent = -1;
  for (int64_t first = 0; ; first += 2 * threads) {
    int next = -1;
    if (first < n) {
      for (int r = 0; r < 2; ++r) {
        const int64_t i = first + 2 * threadIdx.x + r;
        own[r] = {};
        if (i < n) own[r].add(x[i]);
      }
      next = exchange.template send<w::Merge>(own);
    }
    if (first > 0) {
      exchange.template receive<w::Merge>(sent, own);
      all.merge(own[0]), all.merge(own[1]);
    }
    if (first >= n) break;
    sent = next;
  }
  if (threadIdx.x == threads - 1) out[blockIdx.x] = all.total();""",
    "sumexp of terms": """w::Sumexp<T> own;
  for (int64_t first = threadIdx.x; first < n; first += 4 * threads) {
    T block[4], largest = -w::infinity<T>();
    for (int k = 0; k < 4; ++k) {
      block[k] = first + k * threads < n ? x[first + k * threads] : -w::infinity<T>();
      largest = w::maximum(largest, block[k]);
    }
    w::Exponentials<T> terms(largest);
    terms.add(block);
    own.merge(terms.state());
  }
  finish(own);""",
}
"""How the threads of a program reduce a row, whose elements each of them has some of."""
EXCHANGED = ("sumexp of an exchange", "sumexp of exchanges that overlap")
"""Those whose threads wait at barriers in shared memory, as GPUs from compute capability 9.0 on have them."""
_ONLINE = """
constexpr int threads = {threads};
using T = {kind};
#define each(i) for (int64_t i = threadIdx.x; i < n; i += threads)
#define exchange_of(states, places) \\
  constexpr int words = 2 * states * places * threads / 32; \\
  __shared__ uint64_t memory[words + places]; \\
  uint8_t* const sent_words = reinterpret_cast<uint8_t*>(memory); \\
  w::Exchange<1, threads / 32, 2 * states, places> exchange(sent_words, memory + words, 0); \\
  if (threadIdx.x == 0) exchange.start(), w::started_barriers(); \\
  __syncthreads();
#define finish(own) {{ auto all = merged(own); if (threadIdx.x == 0) out[blockIdx.x] = all.total(); }}

template <class State> State merged(State own) {{
  __shared__ T memory[sizeof(State) / sizeof(T) * threads];
  State* all = reinterpret_cast<State*>(memory);
  all[threadIdx.x] = own;
  __syncthreads();
  for (int width = threads / 2; width > 0; width /= 2) {{
    if (threadIdx.x < width) all[threadIdx.x].merge(all[threadIdx.x + width]);
    __syncthreads();
  }}
  return all[0];
}}
struct Sum {{
  T value;
  void merge(Sum more) {{ value += more.value; }}
}};
T sum_of(T own) {{
  const T all = merged(Sum{{own}}).value;
  __syncthreads();
  return all;
}}
"""


def online_ways(architecture: int) -> list[str]:
    """Those of ``ONLINE`` that a GPU can run. architecture: its compute capability, as 90 of 9.0."""
    return [way for way in ONLINE if architecture >= LEAST_ARCHITECTURE or way not in EXCHANGED]


def online_kernel(dtype: str, ways: Sequence[str]) -> str:
    """The text of functions ``online_0``, ... for some ways of ``ONLINE``, which take rows of n elements, a place for a
    number a row, and n."""
    head = 'extern "C" __global__ void online_{}(const T* x, T* out, int64_t n) {{\n  x += blockIdx.x * n;\n  '
    functions = (f"{head.format(k)}{ONLINE[way]}\n}}\n" for k, way in enumerate(ways))
    return _ONLINE.format(threads=THREADS, kind=C_TYPES[dtype]) + "".join(functions)


def rows(dtype: str, columns: int) -> Tensor:
    """Rows of numbers of several magnitudes, far from zero, all alike, infinite ones and ones that are no numbers."""
    generator = torch.Generator().manual_seed(7)
    plain = torch.randn(9, columns, generator=generator, dtype=torch.float64)
    plain[1] = plain[1] * 30
    plain[2] += 1e4
    plain[3] = 5.0
    plain[4, : columns // 2] = -INF
    plain[5] = -INF
    plain[6, -1], plain[7, 0], plain[8, columns // 2] = INF, NAN, -INF
    return plain.to(TORCH_DTYPES[dtype])


def online_finding(way: str, x: Tensor, mine: Tensor) -> str | None:
    """What is wrong with the numbers of rows, if anything is."""
    op = way.split(" ")[0]
    right = OPS[op].evaluate(x.double(), [1])[:, 0]
    tolerance = (1e-5 if x.dtype == torch.float32 else 1e-12) * right.abs()
    return Case(way, "", "", right, tolerance).finding(mine)
