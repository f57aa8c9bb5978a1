"""Reads the printed form back."""

from __future__ import annotations

import re

from weft.errors import ParseError
from weft.ir.program import Attribute, Buffer, Dim, Output, Program, Size, Value
from weft.ir.verify import verify

_NAME = r"[A-Za-z_]\w*"
_HEADER = re.compile(rf"program ({_NAME})\((.*)\)")
_DIM = re.compile(rf"dim ({_NAME}) = ([0-9]+|{_NAME})", re.ASCII)
_BUFFER = rf"({_NAME}): (\w+) \[(.*?)\](?: \+ ([0-9]+))?(?: within ({_NAME}) at ([0-9]+))?"
_INPUT = re.compile(rf"input {_BUFFER}")
_OUTPUT = re.compile(rf"output {_BUFFER} = ({_NAME})")
_VALUE = re.compile(rf"({_NAME}): (\w+)\{{(.*?)\}} = ({_NAME})(?:\[(.*?)\])?\((.*?)\)")


def parse(text: str, first_line: int = 1) -> Program:
    """The program that prints as ``text``. Raises ParseError naming the line, or VerificationError.

    first_line: number of the first line of ``text``, for messages.
    """
    name, parameters = "", ()
    dims: list[Dim] = []
    inputs: list[Buffer] = []
    values: list[Value] = []
    outputs: list[Output] = []
    ended = False
    for number, raw in enumerate(text.splitlines(), first_line):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        if ended:
            raise ParseError(f"line {number}: text after the end of the program: {line!r}")
        try:
            if m := _HEADER.fullmatch(line):
                if name:
                    raise ParseError("a second program")
                name, parameters = m[1], _names(m[2])
            elif line == "end":
                ended = True
            elif m := _DIM.fullmatch(line):
                dims.append(Dim(m[1], _size(m[2])))
            elif m := _INPUT.fullmatch(line):
                inputs.append(_buffer(*m.groups()))
            elif m := _OUTPUT.fullmatch(line):
                outputs.append(Output(_buffer(*m.groups()[:-1]), m[7]))
            elif m := _VALUE.fullmatch(line):
                attributes = tuple(_number(a) if m[4] == "const" else a for a in _names(m[5] or ""))
                values.append(Value(m[1], m[4], _names(m[6]), attributes, m[2], _names(m[3])))
            else:
                raise ParseError("not a line of a program")
        except ParseError as error:
            raise ParseError(f"line {number}: {error}: {line!r}") from None
    if not name or not ended:
        raise ParseError("a program starts with 'program NAME(...)' and ends with 'end'")
    return verify(Program(name, parameters, tuple(dims), tuple(inputs), tuple(values), tuple(outputs)))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _size(text: str) -> Size:
    return int(text) if re.fullmatch(r"[0-9]+", text) else text


def _buffer(name: str, dtype: str, axes: str, offset: str | None, within: str | None, place: str | None) -> Buffer:
    pairs = [axis.split(":") for axis in _names(axes)]
    if any(len(pair) != 2 for pair in pairs):
        raise ParseError(f"an axis of buffer {name} reads dim:stride")
    dims, strides = tuple(pair[0] for pair in pairs), tuple(_size(pair[1]) for pair in pairs)
    return Buffer(name, dtype, dims, strides, int(offset or 0), within or "", int(place or 0))


def _number(text: str) -> Attribute:
    if text in ("True", "False"):
        return text == "True"
    try:
        return int(text) if re.fullmatch(r"-?[0-9]+", text) else float(text)
    except ValueError:
        raise ParseError(f"{text!r} is no number") from None
