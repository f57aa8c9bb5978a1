"""Counts instructions of pointwise operations: ``python -m tools.instructions`` prints, of each, how many an
element takes in float32 on a GPU of compute capability 9.0, and how many where the result is rounded to 16 bits.

A kernel with one of them and a kernel with two in a row are compiled; what the second has more, by elements of a
thread, is the cost of one. No GPU is needed. ``backends/instructions.py`` has the figures.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from weft.backends.binary import Job, Variant
from weft.backends.instructions import INSTRUCTIONS
from weft.backends.triton import text as triton
from weft.backends.triton.schedule import TritonSchedule
from weft.ir.builder import Builder
from weft.ir.ops import OPS
from weft.ir.program import Dim, Program
from weft.options import Options
from weft.plan.kernel import Kernel
from weft.runtime.gpu.builds import binaries

SPECIAL = 8.0
"""Instructions that the others' units compute while the one for special functions computes one."""
ROWS, COLUMNS = 4096, 1024
SCHEDULE = TritonSchedule("ONE_SHOT", ("m",), ("n",), rows_per_tile=2, piece_columns=COLUMNS, warps=4, stages=1)
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)", re.MULTILINE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.instructions", description=__doc__)
    parser.add_argument("--op", nargs="+", choices=list(INSTRUCTIONS), default=list(INSTRUCTIONS), metavar="OP")
    given = parser.parse_args(arguments)
    for op in given.op:
        exact, rounded = (instructions(op, dtype) for dtype in ("f32", "bf16"))
        print(f"{op:14} {exact:6.1f} {rounded:6.1f}", flush=True)
    return 0


def instructions(op: str, dtype: str) -> float:
    """Of an operation on an element, whose result is stored in a dtype."""
    once, twice = (_counts(_repeated(op, times, dtype)) for times in (1, 2))
    every, special = ((more - less) / SCHEDULE.elements for less, more in zip(once, twice, strict=True))
    return max(every, SPECIAL * special)


def _repeated(op: str, times: int, dtype: str) -> Program:
    builder = Builder(op, (Dim("m", ROWS), Dim("n", COLUMNS)))
    x, y = (builder.input(name, "f32", ("m", "n"), (COLUMNS, 1)) for name in "xy")
    for _ in range(times):
        x = builder.op(op, *(x, y)[: OPS[op].arity])
    builder.output("out", builder.cast(x, dtype), dtype, ("m", "n"), (COLUMNS, 1))
    return builder.finish()


def _counts(program: Program) -> tuple[int, int]:
    """Instructions of a kernel, and those of them that are special functions."""
    from triton import knobs

    kernel = Kernel(program, SCHEDULE)
    job = Job(kernel, triton.render(kernel), Variant.expected(kernel, {}), 90)
    (binary,) = binaries(job, Options.read()).values()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary.content)
        disassembler = Path(knobs.nvidia.cuobjdump.path).with_name("nvdisasm")
        text = subprocess.run([disassembler, "-c", path], capture_output=True, text=True, check=True).stdout
    found = _INSTRUCTION.findall(text)
    return len(found), sum(name == "MUFU" for name in found)


if __name__ == "__main__":
    raise SystemExit(main())
