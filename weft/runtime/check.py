"""Compares what a kernel wrote with the float64 reference, on the inputs of the call.

The program is evaluated in float64 and, as yardsticks of how far rounding alone may lead, in its own dtypes and a few
times in float64 with every result that is rounded moved at random by about an epsilon of its dtype (terms of sums by
some), each time once one way and once the other. An element may be off by four times the largest deviation of a
yardstick there, plus some epsilons; the root mean square of all errors by that of the deviations. A comparison that
rounding may turn round (``x > mean``) is turned round in a yardstick too, and its element is allowed both results.

Everything is done in chunks of one dimension, the largest that no value varies over which depends on a reduction over
it: the rows of a kernel always allow that. Such reductions are combined over the chunks and what follows them is
evaluated last. Memory is bounded by ``CHUNK_BYTES`` as long as one position along that dimension fits; a program
without such a dimension is evaluated whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from weft.ir import dtypes
from weft.ir.interpret import Evaluation, reduce, sizes_of
from weft.ir.ops import ONLINE, lookup
from weft.ir.program import Buffer, Output, Program, Value

CHUNK_BYTES = 64 * 2**20
"""Bytes of the values of one evaluation of a chunk, counted as float64."""
# An error is allowed FACTOR times the largest deviation of a yardstick at its element, MEAN_FACTOR times the mean
# deviation and some epsilons of the output's dtype. The root mean square of all errors is held more tightly: it finds
# what changes every element a little, such as a lost row of a column sum. Chosen with a margin over what right kernels
# show; not fitted.
FACTOR, MEAN_FACTOR = 4.0, 8.0
EPSILONS, MEAN_EPSILONS = 8.0, 2.0
RMS_FACTOR, RMS_EPSILONS = 1.0, 0.25
TERM_EPSILONS = 4.0
"""By how much each term of a sum is moved in a yardstick: it is rounded several times on its way into the total."""
SEEDS = (0, 1)
"""One pair of moved evaluations each: two, because one of them leaves a tie as it is every now and then."""

_EXACT = {"neg", "abs", "maximum", "minimum", "where", "max", "min", "const", "iota", "size", "parameter"}


@dataclass(frozen=True)
class Finding:
    """One output of a kernel that is wrong, with its worst element. index: position by dimension."""

    buffer: str
    index: Mapping[str, int]
    got: float
    expected: float
    rule: str

    def __str__(self) -> str:
        where = ", ".join(f"{dim}={i}" for dim, i in self.index.items())
        return f"{self.buffer}[{where}] is {self.got:.9g}, the reference says {self.expected:.9g} ({self.rule})"


def compare(
    program: Program, inputs: Sequence[Tensor], outputs: Sequence[Tensor], parameters: Sequence[int] = ()
) -> Finding | None:
    """The first output that rounding does not explain, or None.

    inputs, outputs: one tensor a buffer of ``program``, in order; the inputs as they were before the call.
    """
    sizes = sizes_of(program, parameters)
    dim = chunked_dimension(program, sizes)
    late = set[str]() if dim is None else late_values(program, dim)
    samples = [
        _Sample(program, sizes, dim, late, exact=True),
        _Sample(program, sizes, dim, late, exact=False),
        *(_Sample(program, sizes, dim, late, exact=True, sign=sign, seed=n) for n in SEEDS for sign in (1.0, -1.0)),
    ]
    verdicts = [_Verdict(output.buffer) for output in program.outputs]
    chunks = list(_chunks(program, sizes, dim, late))
    with torch.no_grad():
        for number, part in enumerate(chunks):
            now = [
                (i, o)
                for i, o in enumerate(program.outputs)
                if o.value not in late and (number == 0 or dim in o.buffer.dims)
            ]
            expected = [sample.chunk(inputs, part, [o for _, o in now]) for sample in samples]
            for (i, output), values in zip(now, zip(*expected, strict=True), strict=True):
                verdicts[i].add(Evaluation(program, sizes, True, part).bind(output.buffer, outputs[i]), values, part)
        for sample in samples:
            sample.finish()
        for i, output in enumerate(program.outputs):
            for part in chunks if dim in output.buffer.dims else [{}]:
                if output.value in late:
                    values = tuple(sample.aligned(output, part) for sample in samples)
                    got = Evaluation(program, sizes, True, part).bind(output.buffer, outputs[i])
                    verdicts[i].add(got, values, part)
    return next((finding for verdict in verdicts if (finding := verdict.finding()) is not None), None)


def chunked_dimension(program: Program, sizes: Mapping[str, int]) -> str | None:
    """The largest dimension that a program can be evaluated along in chunks. Online reductions are taken whole."""
    dims = {v.name: v.dims for v in program.values}
    whole = {dim for v in program.values if v.op in ONLINE for dim in v.attributes}
    free = [d.name for d in program.dims if not any(d.name in dims[name] for name in late_values(program, d.name))]
    free = [name for name in free if name not in whole]
    return max(free, key=lambda name: sizes[name], default=None)


def late_values(program: Program, dim: str) -> set[str]:
    """Reductions over a dimension and everything that depends on one."""
    late: set[str] = set()
    for value in program.values:
        if _crosses(value, dim) or any(arg in late for arg in value.args):
            late.add(value.name)
    return late


def _crosses(value: Value, dim: str | None) -> bool:
    return lookup(value.op).kind == "reduction" and dim in value.attributes


def _chunks(program: Program, sizes: Mapping[str, int], dim: str | None, late: set[str]) -> Iterator[dict[str, range]]:
    """Parts that make up the program, at least one."""
    if dim is None:
        yield {}
        return
    bytes_each = 0
    for name, (_, dims) in program.types().items():
        if dim in dims and name not in late:
            bytes_each += 8 * _product(sizes[d] for d in dims if d != dim)
    step = max(1, CHUNK_BYTES // max(1, bytes_each))
    for start in range(0, max(1, sizes[dim]), step):
        yield {dim: range(start, min(start + step, sizes[dim]))}


def _product(numbers: Iterator[int]) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


class _Sample:
    """One evaluation of a program, chunk by chunk. sign: which way roundings are moved, 0 for not at all; seed: of the
    random amounts, which are the same for both signs."""

    def __init__(
        self,
        program: Program,
        sizes: Mapping[str, int],
        dim: str | None,
        late: set[str],
        *,
        exact: bool,
        sign: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.program, self.sizes, self.dim, self.late = program, sizes, dim, late
        self.exact, self.sign, self.seed = exact, sign, seed
        self.sums: dict[str, Tensor] = {}
        self.run = Evaluation(program, sizes, exact)
        self.generator: torch.Generator | None = None

    def chunk(self, inputs: Sequence[Tensor], part: Mapping[str, range], outputs: Sequence[Output]) -> list[Tensor]:
        """Evaluate a part; returns the values of outputs there, with the axes of their buffers."""
        self.run = Evaluation(self.program, self.sizes, self.exact, part)
        for buffer, tensor in zip(self.program.inputs, inputs, strict=True):
            self.run.env[buffer.name] = self.run.load(buffer, tensor)
        for value in self.program.values:
            if _crosses(value, self.dim):
                if value.args[0] not in self.late:
                    self._accumulate(value)
            elif value.name not in self.late:
                self._evaluate(value)
        return [self.aligned(output, part) for output in outputs]

    def finish(self) -> None:
        """Evaluate what follows the reductions over the chunked dimension."""
        for value in self.program.values:
            if value.name in self.sums:
                total = self.sums[value.name].to(self.run.dtype(value.dtype))
                self.run.env[value.name] = self._moved(value, total)
            elif value.name in self.late:
                self._evaluate(value)

    def aligned(self, output: Output, part: Mapping[str, range]) -> Tensor:
        buffer = output.buffer
        shape = [len(part.get(d, range(self.sizes[d]))) for d in buffer.dims]
        return self.run.align(self.run.env[output.value], buffer.dims).expand(shape)

    def _evaluate(self, value: Value) -> None:
        if lookup(value.op).kind == "reduction":
            total = self._reduced(value).to(self.run.dtype(value.dtype))
            self.run.env[value.name] = self._moved(value, total)
        else:
            self.run.env[value.name] = self._moved(value, self.run.evaluate(value))

    def _accumulate(self, value: Value) -> None:
        partial = self._reduced(value)
        if value.name not in self.sums:
            self.sums[value.name] = partial
        else:
            combine = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}[value.op]
            self.sums[value.name] = combine(self.sums[value.name], partial)

    def _reduced(self, value: Value) -> Tensor:
        """The reduction in the dtype that sums are accumulated in; each term of a sum is moved as a rounding is."""
        operand = self.run.env[value.args[0]]
        if value.op == "sum" and dtypes.is_float(value.dtype):
            wide = dtypes.compute_dtype(value.dtype)
            operand = self._noisy(operand.to(self.run.dtype(wide)), wide, TERM_EPSILONS)
        return reduce(value, operand, [self.run.axes[str(dim)] for dim in value.attributes])

    def _moved(self, value: Value, result: Tensor) -> Tensor:
        if not dtypes.is_float(value.dtype) or value.op in _EXACT:
            return result
        if value.op == "cast" and dtypes.preserves_value(self.program.types()[value.args[0]][0], value.dtype):
            return result
        return self._noisy(result, value.dtype)

    def _noisy(self, result: Tensor, dtype: str, epsilons: float = 1.0) -> Tensor:
        if self.sign == 0.0:
            return result
        if self.generator is None or self.generator.device != result.device:
            self.generator = torch.Generator(result.device).manual_seed(self.seed)
        amounts = torch.randn(result.shape, dtype=result.dtype, device=result.device, generator=self.generator)
        step = self.sign * epsilons * torch.finfo(dtypes.TORCH_DTYPES[dtype]).eps
        return result * amounts.mul_(step).add_(1)


@dataclass
class _Verdict:
    """Gathers the errors of one output, part by part. excess: by how much the worst element is off beyond its own
    allowance; the rest are sums over the finite elements."""

    buffer: Buffer
    excess: float = -1.0
    worst: tuple[dict[str, int], float, float] = field(default_factory=lambda: ({}, 0.0, 0.0))
    count: int = 0
    squared_error: float = 0.0
    squared_expected: float = 0.0
    squared_deviation: float = 0.0
    deviation: float = 0.0

    def add(self, got: Tensor, samples: Sequence[Tensor], part: Mapping[str, range]) -> None:
        """Elements of a part. samples: what float64 says, then the yardsticks; all of one shape."""
        if got.numel() == 0:
            return
        mine = got.double()
        exact, *others = (sample.double() for sample in samples)
        rounded = [sample.to(got.dtype).double() for sample in samples]
        agrees, none_finite = torch.zeros_like(mine, dtype=torch.bool), torch.ones_like(mine, dtype=torch.bool)
        finite = mine.isfinite() & exact.isfinite()
        deviation = torch.zeros_like(mine)
        for sample in rounded:
            agrees |= (sample == mine) | (sample.isnan() & mine.isnan())
            none_finite &= ~sample.isfinite()
        for sample in others:
            finite &= sample.isfinite()
            deviation = torch.maximum(deviation, (sample - exact).abs())
        wrong = ~finite & ~agrees & (~mine.isfinite() | none_finite)
        error = torch.where(finite, (mine - exact).abs(), 0.0)
        deviation, expected = torch.where(finite, deviation, 0.0), torch.where(finite, exact, 0.0)
        eps, tiny = self._precision()
        excess = torch.where(wrong, torch.inf, error - FACTOR * deviation - EPSILONS * eps * expected.abs() - tiny)
        self.count += mine.numel()
        self.squared_error += error.square().sum().item()
        self.squared_expected += expected.square().sum().item()
        self.squared_deviation += deviation.square().sum().item()
        self.deviation += deviation.sum().item()
        position = int(excess.argmax())
        if (largest := excess.reshape(-1)[position].item()) > self.excess:
            self.excess = largest
            index = dict(zip(self.buffer.dims, _unravel(position, list(mine.shape)), strict=True))
            index = {d: i + (part[d].start if d in part else 0) for d, i in index.items()}
            self.worst = (index, mine.reshape(-1)[position].item(), exact.reshape(-1)[position].item())

    def finding(self) -> Finding | None:
        if self.count == 0:
            return None
        eps, tiny = self._precision()

        def rms(total: float) -> float:
            return (total / self.count) ** 0.5

        scale = rms(self.squared_expected)
        is_float = dtypes.is_float(self.buffer.dtype)
        mean = (
            MEAN_FACTOR * self.deviation / self.count if is_float else 0.0
        )  # integers: only where a yardstick differs
        if self.excess > mean + MEAN_EPSILONS * eps * scale:
            return Finding(self.buffer.name, *self.worst, "this element is wrong")
        few = 1 + 2 / self.count**0.5  # a mean over few elements is a matter of luck
        limit = few * (RMS_FACTOR * rms(self.squared_deviation) + RMS_EPSILONS * eps * scale) + tiny
        if is_float and rms(self.squared_error) > limit:
            rule = f"root mean square of all errors {rms(self.squared_error):.3g}, rounding explains {limit:.3g}"
            return Finding(self.buffer.name, *self.worst, rule)
        return None

    def _precision(self) -> tuple[float, float]:
        """Epsilon and smallest normal number of the output's dtype; 0 for integers."""
        if not dtypes.is_float(self.buffer.dtype):
            return 0.0, 0.0
        info = torch.finfo(dtypes.TORCH_DTYPES[self.buffer.dtype])
        return info.eps, info.tiny


def _unravel(position: int, shape: list[int]) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        index.append(position % size)
        position //= size
    return index[::-1]
