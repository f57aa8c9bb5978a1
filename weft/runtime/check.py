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

import torch
from torch import Tensor

from weft.ir import dtypes
from weft.ir.interpret import Evaluation, reduce, sizes_of
from weft.ir.ops import ONLINE, lookup
from weft.ir.program import Output, Program, Value
from weft.runtime.verdict import Finding, Verdict

CHUNK_BYTES = 64 * 2**20
"""Bytes of the values of one evaluation of a chunk, counted as float64."""
TERM_EPSILONS = 4.0
"""By how much each term of a sum is moved in a yardstick: it is rounded several times on its way into the total."""
SEEDS = (0, 1)
"""One pair of moved evaluations each: two, because one of them leaves a tie as it is every now and then."""

_EXACT = {"neg", "abs", "maximum", "minimum", "where", "max", "min", "const", "iota", "size", "parameter"}


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
    verdicts = [Verdict(output.buffer) for output in program.outputs]
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
