"""Rows at offsets beyond 2^31 elements, in files with holes: several GiB of addresses, a few pages of memory."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from tests.fuzz.outcome import Mismatch
from weft.ir.dtypes import TORCH_DTYPES
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.program import Buffer
from weft.options import Options
from weft.plan.kernel import Plan
from weft.plan.planner import plan_split
from weft.runtime.launch import run_plan
from weft.target import Target

STRIDE = 2**30 + 24
"""Elements between rows: the third row begins beyond 2^31 elements, the fifth beyond 2^32."""
ROWS, COLUMNS = 5, 37
PAGES_BYTES = 4 * 2**20
"""More than the pages that the rows of a file lie in, and its file system's own."""
PROGRAM = """program far({parameters})
  dim m = {rows}
  dim n = 37
  input x: {dtype} [m:{stride}, n:1]
  input w: f32 [n:1]
  data: f32{{m, n}} = cast(x)
  row: f32{{m}} = sum[n](data)
  scaled: f32{{m, n}} = mul(data, w)
  moved: f32{{m, n}} = add(scaled, row)
  result: {dtype}{{m, n}} = cast(moved)
  column: f32{{n}} = sum[m](moved)
  output out0: {dtype} [m:{stride}, n:1] = result
  output out1: f32 [n:1] = column
  output out2: f32 [m:1] = row
end
"""


def check(folder: Path, dtype: str, run_time: bool) -> None:
    """Read and write rows that far apart, with sizes compiled in or given at run time. Raises Mismatch."""
    names = {"parameters": "count, step", "rows": "count", "stride": "step"} if run_time else {}
    text = PROGRAM.format(**{"parameters": "", "rows": ROWS, "stride": STRIDE, "dtype": dtype} | names)
    program = parse(text)
    parameters = (ROWS, STRIDE) if run_time else ()
    chosen = plan_split(
        program, ("m",), ("n",), Target.named("cpu"), dict(zip(program.parameters, parameters, strict=True))
    )
    if not isinstance(chosen, Plan):
        raise Mismatch("plan", str(chosen))
    files = [folder / "input", folder / "output"]
    x = _sparse(files[0], TORCH_DTYPES[dtype])
    w = torch.randint(-3, 4, (COLUMNS,)).float()
    x.copy_(torch.randint(-7, 8, x.shape))

    def allocate(buffer: Buffer, sizes: dict[str, int], device: torch.device) -> Tensor:
        if buffer.name == "out0":
            return _sparse(files[1], TORCH_DTYPES[buffer.dtype])
        return torch.full([sizes[d] for d in buffer.dims], float("nan"))

    try:
        made = run_plan(chosen, program, [x, w], parameters, Options.read(), allocate)
        exact = interpret(program, [x, w], parameters)
        for output, mine, reference in zip(program.outputs, made, exact, strict=True):
            if not torch.equal(mine.double(), reference):
                raise Mismatch("value", f"{output.buffer.name} is {mine}, not {reference}")
        for file in files:
            if file.stat().st_blocks * 512 > PAGES_BYTES:
                raise Mismatch("outside", f"{file.name} has {file.stat().st_blocks * 512} bytes of memory")
    finally:
        for file in files:
            file.unlink(missing_ok=True)


def _sparse(path: Path, dtype: torch.dtype) -> Tensor:
    """``[ROWS, COLUMNS]``, the rows STRIDE elements apart in a file of holes."""
    count = (ROWS - 1) * STRIDE + COLUMNS
    with path.open("wb") as file:
        file.truncate(count * dtype.itemsize)
    storage = torch.from_file(str(path), shared=True, size=count, dtype=dtype)
    return storage.as_strided((ROWS, COLUMNS), (STRIDE, 1))
