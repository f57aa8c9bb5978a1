"""Texts of CUDA C++ whose statements of PTX become calls of functions with the same names, dots as underscores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

_ASM = re.compile(r"\basm(?: volatile)?\(")
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[():]|[^"():]+', re.DOTALL)
_PIECE = re.compile(r'"((?:\\.|[^"\\])*)"|#(\w+)')
_NAME = "\x01{}\x02"
"""An argument of a macro in the middle of a text."""


def with_calls(text: str) -> str:
    """Lines stay where they are."""
    numbers, made, at = count(), list[str](), 0
    while (found := _ASM.search(text, at)) is not None:
        made.append(text[at : found.start()])
        parts, at = _parts(text, found.end())
        operands = [operand for part in parts[1:3] for operand in _operands(part)]
        body = " ".join(_statements(_template(parts[0]).replace("%=", str(next(numbers))), operands))
        made.append(f"{{ {body} }}" + "\n" * text.count("\n", found.start(), at))
        assert text[at] == ";", text[found.start() : at]
        at += 1
    return "".join([*made, text[at:]])


def _parts(text: str, at: int) -> tuple[list[str], int]:
    """What colons separate, up to the parenthesis that closes, and where that ends."""
    parts, depth = [""], 0
    for token in _TOKEN.finditer(text, at):
        word = token[0]
        if word == ")" and depth == 0:
            return parts, token.end()
        depth += (word == "(") - (word == ")")
        if word == ":" and depth == 0:
            parts.append("")
        else:
            parts[-1] += word
    raise ValueError(f"a statement of assembly has no end: {text[at : at + 80]}")


def _operands(part: str) -> Iterator[str]:
    """Expressions, of constraints with an expression in parentheses each."""
    depth, found = 0, ""
    for token in _TOKEN.finditer(part):
        depth += (token[0] == "(") - (token[0] == ")")
        if depth > 0 and (found or token[0] != "("):
            found += token[0]
        elif depth > 0:
            found = " "
        elif token[0] == ")":
            yield f"({' '.join(found.split())})"
            found = ""


def _template(part: str) -> str:
    """The text of an instruction or several, of literals next to each other."""
    pieces = _PIECE.finditer(part)
    return "".join(_NAME.format(p[2]) if p[2] else p[1].replace("\\n", "\n").replace("%%", "%") for p in pieces)


def _statements(template: str, operands: list[str]) -> Iterator[str]:
    """Of C++, for each instruction."""
    for line in re.split(r"[;\n]", template):
        if instruction := line.strip():
            yield _statement(instruction, operands)


def _statement(instruction: str, operands: list[str]) -> str:
    if instruction in "{}":
        return instruction
    if instruction.endswith(":"):
        return instruction
    if found := re.fullmatch(r"\.reg \.pred (\w+)", instruction):
        return f"bool {found[1]};"
    if found := re.fullmatch(r"@!(\w+) bra (\w+)", instruction):
        return f"if (!{found[1]}) goto {found[2]};"
    code, _, rest = instruction.partition(" ")
    arguments = [_argument(word.strip(" []{}"), operands) for word in rest.split(",") if word.strip() not in ("", "_")]
    return f"ptx::{_identifier(code)}({', '.join(arguments)});"


def _identifier(code: str) -> str:
    words = re.sub(r"(?!\x01|\x02)\W+", "_", code)
    return words.replace("\x01", "").replace("\x02", "##")


def _argument(word: str, operands: list[str]) -> str:
    """An operand by its number, a register that the machine sets, or what is written there."""
    if re.fullmatch(r"%\d+", word):
        return operands[int(word[1:])]
    return f"ptx::{word[1:]}()" if word.startswith("%") else word
