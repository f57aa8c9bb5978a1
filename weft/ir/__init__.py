"""The intermediate representation: programs over values whose type is a dtype and a set of dimensions."""

from weft.ir.builder import Builder
from weft.ir.interpret import interpret
from weft.ir.parser import parse
from weft.ir.printer import print_program
from weft.ir.program import Buffer, Dim, Output, Program, Value
from weft.ir.simplify import simplify
from weft.ir.verify import verify

__all__ = [
    "Buffer",
    "Builder",
    "Dim",
    "Output",
    "Program",
    "Value",
    "interpret",
    "parse",
    "print_program",
    "simplify",
    "verify",
]
