"""Triton: row tiles in registers, loads in flight, column sums in registers from tile to tile.

A row is cut into pieces of a power of two, so that a width like 5120 costs what it is. Programs that add up columns
loop over the row tiles of their chunk; chunks are fixed by the schedule and added up in order, so bits do not depend on
how many programs there are.
"""

from __future__ import annotations

import keyword
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from math import prod

from weft.backends.abi import FUNCTIONS, Abi, count
from weft.backends.free_names import with_free_names
from weft.backends.source import PythonWriter, Source, entry_of
from weft.backends.triton.abi import abi_of, arguments
from weft.backends.triton.division import blocks_in_turn, column_blocks, finish_blocks, is_persistent, outer_values
from weft.backends.triton.expressions import STATES, TRITON_TYPES
from weft.backends.triton.finish import write_finish
from weft.backends.triton.lower import lower
from weft.backends.triton.places import Places
from weft.backends.triton.printer import write_nest
from weft.backends.triton.schedule import TritonKernel
from weft.errors import Refusal
from weft.ir.halves import in_halves
from weft.ir.interpret import sizes_of
from weft.ir.online import online_along_rows
from weft.ir.structure import KEPT
from weft.lowering.nest import Nest

_OURS = (
    "triton tl w tile block blocks chunk chunks part segment row column task kept start row_exists column_exists "
    "barrier range float start_of_row early aligned vector rest reached whole is_last apart"
)
_LETTERS = tuple(f"_{letter}" for letter in "abcdefghijklmnop")
_EACH_PIECE = "column column_exists vector reached whole"
_OF_PIECES = (f"{name}{letter}" for name in _EACH_PIECE.split() for letter in _LETTERS)
TAKEN = frozenset((*_OURS.split(), *_OF_PIECES, *keyword.kwlist, *keyword.softkwlist))
"""Names that no dimension, parameter, buffer or value has in the text."""
_STATES = ("_sum", *dict.fromkeys(f"_{part}" for parts in STATES.values() for part, _ in parts if part != "sum"))
DERIVED = (
    *("_tile", "_row", "_at", "_lanes", "_more", *_STATES, *(f"{end}_more" for end in _STATES)),
    *("_partial", *(f"_partial_{number}" for number in range(max(map(len, STATES.values()))))),
    *(f"{end}{letter}" for end in ("", "_tile", *_STATES) for letter in _LETTERS),
)
"""What the renderer puts behind the name of a value or a buffer to make another."""

LEAST_ARCHITECTURES = {"f8e4m3": 89}
"""Of dtypes that Triton does not have for all GPUs (its ``supported_fp8_dtypes``)."""
MOST_BLOCKS = 65535
"""Programs along the second axis of a grid, which blocks of columns are (CUDA Programming Guide, compute
capabilities)."""
MOST_COUNTED = 2**31 - 2**16
"""Elements along an index of 32 bits, which runs to the end of a tile behind the last one."""


def supports(kernel: TritonKernel) -> Refusal | None:
    """Everything whose types Triton has, whose column sums keep all segments or none, and that fits the schedule."""
    program, schedule = kernel.program, kernel.schedule
    names = [b.dtype for b in program.buffers]
    unknown = sorted({name for name in names if name not in TRITON_TYPES})
    if unknown:
        return Refusal("triton_dtype", kernel.name, f"Triton has no {', '.join(unknown)}", len(unknown), 0)
    wide = [v for v in outer_values(kernel) if schedule.scheme == "LOOP" and set(v.dims) & set(schedule.columns)]
    if wide:
        message = "sums columns of rows that are too wide for registers"
        return Refusal("triton_wide_sums", wide[0].name, message, len(wide), 0)
    kept = [tuple(s for s in schedule.segments if s in v.dims) for v in outer_values(kernel)]
    for some in (*kept, *finish_blocks(kernel)):
        if some not in ((), schedule.segments):
            message = f"keeps {', '.join(some)} of the segments ({', '.join(schedule.segments)}), not all or none"
            return Refusal("triton_segments", kernel.name, message, len(some), len(schedule.segments))
    return check_sizes(kernel, sizes_of(program, [1] * len(program.parameters)))


def check_architecture(kernel: TritonKernel, architecture: int) -> Refusal | None:
    """Triton has the types of all tensors for a GPU of some compute capability, as 90 of 9.0."""
    program = kernel.program
    names = {b.dtype for b in program.buffers}
    missing = sorted(name for name in names if architecture < LEAST_ARCHITECTURES.get(name, 0))
    if not missing:
        return None
    message = f"Triton has no {', '.join(missing)} for compute capability {architecture // 10}.{architecture % 10}"
    return Refusal("triton_dtype", kernel.name, message, len(missing), 0)


def check_sizes(kernel: TritonKernel, sizes: Mapping[str, int]) -> Refusal | None:
    """A launch has the programs that these sizes ask for, and indices of the tiles that they make have the bits."""
    if (blocks := count(column_blocks(kernel), sizes)) > MOST_BLOCKS and not blocks_in_turn(kernel):
        message = "has more programs side by side along its columns than a launch can have"
        return Refusal("triton_grid", kernel.name, message, blocks, MOST_BLOCKS)
    places = Places(kernel)
    for dims, is_wide in ((kernel.schedule.columns, places.has_wide_columns), (places.rows, places.is_wide)):
        if not is_wide and (elements := prod(sizes[d] for d in dims)) > MOST_COUNTED:
            message = f"counts along {', '.join(dims)} in 32 bits"
            return Refusal("triton_index", kernel.name, message, elements, MOST_COUNTED)
    return None


@lru_cache(maxsize=KEPT)
def lowered(kernel: TritonKernel) -> tuple[TritonKernel, tuple[Nest, ...]]:
    """A kernel as it is printed, and the nests of its functions. Its names are free, and some things it computes
    otherwise than its program says: floats of 16 bits in pairs, and statistics of rows that are looped over in one
    loop."""
    is_looped, program = kernel.schedule.scheme == "LOOP", kernel.program
    program = in_halves(online_along_rows(program, kernel.schedule.columns) if is_looped else program)
    plain = with_free_names(replace(kernel, program=program), TAKEN, DERIVED, FUNCTIONS)
    return plain, lower(plain)


def abi(kernel: TritonKernel) -> Abi:
    """How its functions are called."""
    return abi_of(*lowered(kernel), entry_of(kernel.name))


def types(kernel: TritonKernel) -> tuple[tuple[str, str], ...]:
    """Names and types of the arguments of its functions."""
    return arguments(*lowered(kernel))


def render(kernel: TritonKernel) -> Source:
    """A module of ``weft_NAME`` and, where there is a finish, ``weft_NAME_finish``, which is launched behind it or
    called at its end; both take the words of the kernel's ``Abi``."""
    writer = PythonWriter()
    for line in str(kernel).splitlines():
        writer.line(f"# {line}")
    writer.line("import triton")
    writer.line("import triton.language as tl")
    writer.line()
    writer.line("from weft.backends.triton import weft_triton as w")
    entry = entry_of(kernel.name)
    plain, nests = lowered(kernel)
    words = ", ".join(name for name, _ in types(kernel))
    (first, *synced), *launched = (nest.phases() for nest in nests)
    with _function(entry, words, writer):
        _chunks(plain, writer)
        write_nest(plain, first, writer)
        for _ in synced:
            writer.line("w.wait_for_all(barrier)")
            writer.line(f"{entry}_finish({words})")
    for nest in (*synced, *(phase for phases in launched for phase in phases)):
        with _function(f"{entry}_finish", words, writer):
            _chunks(plain, writer)
            write_finish(plain, nest, writer)
    return Source("triton", kernel.name, writer.text())


@contextmanager
def _function(entry: str, words: str, writer: PythonWriter) -> Generator[None]:
    writer.line()
    writer.line()
    writer.line("@triton.jit")
    with writer.block(f"def {entry}({words})"):
        yield


def _chunks(kernel: TritonKernel, writer: PythonWriter) -> None:
    """The number of chunks, where it is known at run time only."""
    places = Places(kernel)
    if is_persistent(kernel) and (outer_values(kernel) or places.early) and places.chunks() == "chunks":
        tiles = places.tiles()
        writer.line(f"chunks = tl.maximum(tl.minimum({tiles}, {kernel.schedule.chunks}), 1)")
