"""Sums in one pass: those over rows, or columns, of something that needs another reduction over the same.

``sum(exp(x - max(x)))`` and ``sum((x - mean(x))^2)`` read the data twice where the reductions are over rows. So do they
over columns that are looped over. Both can be had in one pass from a centre that moves (Milakov and Gimelshein, "Online
normalizer calculation for softmax", 2018; Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for
computing sample variances", 1979).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from weft.ir.builder import Builder
from weft.ir.ops import ONLINE
from weft.ir.program import Program, Value
from weft.ir.simplify import drop_unused, rebuilt
from weft.ir.structure import KEPT

Match = tuple[str, str, tuple[str, str] | None]
"""The op, its operand, and for a sum of exponentials that takes zero for an infinite largest element: whether that is
infinite, and the largest."""


def online(program: Program, rows: tuple[str, ...], columns: tuple[str, ...]) -> Program:
    """Replace such sums over rows by ``sumexp`` and ``m2``, where the operand varies over all rows and columns."""
    return _online(program, rows, {*rows, *columns}) if columns else program


@lru_cache(maxsize=KEPT)
def online_along_rows(program: Program, columns: tuple[str, ...], ops: tuple[str, ...] = (*ONLINE,)) -> Program:
    """The same with sums over columns, where the operand varies over all of them: for loops over the columns. And one
    element of a row is taken by its address, not by a look at all of them. ops: the reductions that there are."""
    return _picked(_online(program, columns, set(columns), ops), columns)


def _online(program: Program, over: tuple[str, ...], least: set[str], ops: tuple[str, ...] = (*ONLINE,)) -> Program:
    """least: dimensions that the operand varies over, and others if there are more."""
    by_name, types = program.by_name(), program.types()
    found: dict[str, Match] = {}
    for value in program.values:
        if value.op == "sum" and set(value.attributes) <= set(over):
            match = _sum_of_exponentials(value, by_name) or _sum_of_squares(value, by_name, program)
            if match is not None and match[0] in ops and set(types[match[1]][1]) >= least:
                found[value.name] = match
    if not found:
        return program

    def made(builder: Builder, value: Value, renamed: Mapping[str, str]) -> str | None:
        if value.name not in found:
            return None
        op, operand, guarded = found[value.name]
        result = builder.op(op, renamed[operand], attributes=value.attributes)
        if guarded is None:
            return result
        infinite, largest = (renamed[name] for name in guarded)
        return builder.op("where", infinite, builder.op("exp", largest), result)

    return drop_unused(rebuilt(program, made))


def _picked(program: Program, columns: tuple[str, ...]) -> Program:
    """``sum(where(iota == index, x, 0))`` over a column is ``pick(x, index)`` where x is an input, or casts of one."""
    by_name, types, inputs = program.by_name(), program.types(), {b.name: b for b in program.inputs}

    def element_of(total: Value) -> tuple[list[str], str] | None:
        """The input, then the dtypes it is cast to, and the index."""
        chosen = by_name.get(total.args[0]) if total.op == "sum" and total.attributes == columns else None
        if chosen is None or chosen.op != "where":
            return None
        condition, element, nothing = (by_name.get(arg) for arg in chosen.args)
        if condition is None or condition.op != "eq" or nothing is None or nothing.attributes != (0.0,):
            return None
        places = [arg for arg in condition.args if arg in by_name and by_name[arg].op == "iota"]
        index = [arg for arg in condition.args if arg not in places]
        if any(by_name[arg].attributes != columns or by_name[arg].dtype not in ("i32", "i64") for arg in places):
            return None
        casts, name = list[str](), chosen.args[1]
        while element is not None and element.op == "cast":
            casts, name = [element.dtype, *casts], element.args[0]
            element = by_name.get(name)
        if len(index) != 1 or name not in inputs or columns[0] not in inputs[name].dims:
            return None
        varies = set(types[index[0]][1])
        return ([name, *casts], index[0]) if varies and columns[0] not in varies else None

    found = {value.name: match for value in program.values if (match := element_of(value)) is not None}
    if len(columns) != 1 or not found:
        return program

    def made(builder: Builder, value: Value, renamed: Mapping[str, str]) -> str | None:
        if value.name not in found:
            return None
        (source, *casts), index = found[value.name]
        element = builder.op("pick", renamed[source], renamed[index], attributes=columns)
        for dtype in casts:
            element = builder.cast(element, dtype)
        return element

    return drop_unused(rebuilt(program, made))


def _sum_of_exponentials(total: Value, by_name: dict[str, Value]) -> Match | None:
    """``sumexp`` for the sum of ``exp(x - max(x))``, or of ``exp(x - (0 if max(x) is infinite else max(x)))``."""
    exponential = by_name.get(total.args[0])
    difference = by_name.get(exponential.args[0]) if exponential is not None and exponential.op == "exp" else None
    if difference is None or difference.op != "sub":
        return None
    largest, guarded = by_name.get(difference.args[1]), None
    if largest is not None and largest.op == "where":
        infinite, zero, name = largest.args
        if not _is_infinite(infinite, name, by_name) or by_name[zero].attributes != (0.0,):
            return None
        largest, guarded = by_name.get(name), (infinite, name)
    if largest is None or largest.op != "max" or set(largest.attributes) != set(total.attributes):
        return None
    return ("sumexp", difference.args[0], guarded) if largest.args[0] == difference.args[0] else None


def _is_infinite(name: str, operand: str, by_name: dict[str, Value]) -> bool:
    """Whether a value is ``abs(operand) == inf``."""
    equal = by_name.get(name)
    if equal is None or equal.op != "eq":
        return False
    magnitude, infinity = (by_name.get(arg) for arg in equal.args)
    if magnitude is None or infinity is None or magnitude.op != "abs" or magnitude.args[0] != operand:
        return False
    return infinity.op == "const" and infinity.attributes == (float("inf"),)


def _sum_of_squares(total: Value, by_name: dict[str, Value], program: Program) -> Match | None:
    """``m2`` for the sum of ``(x - mean(x))^2``."""
    square = by_name.get(total.args[0])
    if square is None or square.op != "mul" or square.args[0] != square.args[1]:
        return None
    difference = by_name.get(square.args[0])
    if difference is None or difference.op != "sub":
        return None
    mean = by_name.get(difference.args[1])
    if mean is None or mean.op not in ("mul", "div"):
        return None
    whole, number = by_name.get(mean.args[0]), by_name.get(mean.args[1])
    if whole is None or number is None or whole.op != "sum" or set(whole.attributes) != set(total.attributes):
        return None
    is_mean = whole.args[0] == difference.args[0] and _is_count(number, mean.op, total, program)
    return ("m2", difference.args[0], None) if is_mean else None


def _is_count(number: Value, op: str, total: Value, program: Program) -> bool:
    """Whether a sum divided (or multiplied) by this number is the mean over what ``total`` drops."""
    if number.op == "size":
        return op == "div" and set(number.attributes) == set(total.attributes)
    sizes = [program.size_of(str(dim)) for dim in total.attributes]
    count = 1
    for size in sizes:
        if isinstance(size, str):
            return False
        count *= size
    return number.op == "const" and count > 0 and number.attributes[0] == (count if op == "div" else 1 / count)
