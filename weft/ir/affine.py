"""Values of rows as sums of multiples, so that each takes as few operations as it has terms.

Elements of a normalisation and of its backward are sums of what is loaded times numbers that a row has one of:
``(x - mean) * rstd`` is ``x * rstd + (-mean * rstd)``, one multiplication with an addition where there were two
operations. What is loaded has 16 bits or fewer, whose last bit is worth more than what the numbers of a row lose in
float32, however far its mean is from zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from weft.ir.builder import Builder
from weft.ir.dtypes import is_float, is_narrow
from weft.ir.program import Program, Value
from weft.ir.simplify import drop_unused, rebuilt
from weft.ir.structure import KEPT

Factor = tuple[object, ...]
"""A number of a row: ``("value", name)``, or an op and its operands. Of nothing it is one."""
ONE: Factor = ()
LINEAR = ("add", "sub", "neg", "mul")


@dataclass(frozen=True)
class Form:
    """A sum of multiples. terms: the factor of each base, by its name; constant: what is added, if anything is."""

    terms: Mapping[str, Factor] = field(default_factory=dict[str, Factor])
    constant: Factor | None = None

    @property
    def operations(self) -> int:
        """Of each element: multiplications, or multiplications with an addition, or additions."""
        free = self.constant is None and ONE in self.terms.values()
        return len(self.terms) - free


@lru_cache(maxsize=KEPT)
def affine_along_rows(program: Program, columns: tuple[str, ...]) -> Program:
    """Replace values in float32 that vary over columns, where the sum of multiples takes fewer operations."""
    forms = _Forms(program, columns)
    found = {v.name: forms.of(v.name) for v in program.values if forms.is_gained(v)}
    if not found:
        return program
    made = dict[Factor, str]()

    def number(builder: Builder, renamed: Mapping[str, str], factor: Factor) -> str:
        if factor == ONE:
            return builder.const(1.0, "f32")
        if factor not in made:
            op, *args = factor
            new = renamed[str(args[0])] if op == "value" else ""
            operands = [number(builder, renamed, arg) for arg in args if isinstance(arg, tuple)]
            made[factor] = new or builder.op(str(op), *operands)
        return made[factor]

    def replaced(builder: Builder, value: Value, renamed: Mapping[str, str]) -> str | None:
        if value.name not in found:
            return None
        form = found[value.name]
        total = None if form.constant is None else number(builder, renamed, form.constant)
        for base, factor in sorted(form.terms.items(), key=lambda term: term[1] != ONE):
            term = renamed[base]
            if factor != ONE:
                term = builder.op("mul", term, number(builder, renamed, factor))
            total = term if total is None else builder.op("add", term, total)
        return total

    return drop_unused(rebuilt(program, replaced))


class _Forms:
    """The sums of multiples that values of a program are."""

    def __init__(self, program: Program, columns: tuple[str, ...]) -> None:
        self.by_name, self.types, self.columns = program.by_name(), program.types(), {*columns}
        self.found = dict[str, Form]()
        self.users: dict[str, list[Value]] = {}
        for value in program.values:
            for arg in dict.fromkeys(value.args):
                self.users.setdefault(arg, []).append(value)
        self.stored = {output.value for output in program.outputs}

    def varies(self, name: str) -> bool:
        """Along the columns."""
        return not self.columns.isdisjoint(self.types[name][1])

    def is_linear(self, value: Value) -> bool:
        """Whether it is a sum of multiples of its operands."""
        if value.op not in LINEAR or value.dtype != "f32" or not self.varies(value.name):
            return False
        return value.op != "mul" or not all(map(self.varies, value.args))

    def of(self, name: str) -> Form:
        if name not in self.found:
            self.found[name] = self._form(name)
        return self.found[name]

    def is_gained(self, value: Value) -> bool:
        """Whether something else than a sum of multiples is made of it, and it takes fewer operations as one. Sums
        without multiples are in the order that whoever wrote them chose: ``x - max(x) - log(sum)``."""
        if not self.is_linear(value):
            return False
        others = [user for user in self.users.get(value.name, ()) if not self.is_linear(user)]
        if not others and value.name not in self.stored:
            return False
        form = self.of(value.name)
        if not all(map(self._is_rough, form.terms)) or all(factor == ONE for factor in form.terms.values()):
            return False
        return form.operations < self._operations(value.name)

    def _form(self, name: str) -> Form:
        if not self.varies(name):
            return Form(constant=("value", name))
        value = self.by_name.get(name)
        if value is None or not self.is_linear(value):
            return Form({name: ONE})
        match value.op:
            case "add":
                return _sum(*map(self.of, value.args))
            case "sub":
                return _sum(self.of(value.args[0]), _negative(self.of(value.args[1])))
            case "neg":
                return _negative(self.of(value.args[0]))
            case _:
                one, other = value.args if self.varies(value.args[0]) else value.args[::-1]
                return _multiple(self.of(one), ("value", other))

    def _operations(self, name: str) -> int:
        """Of each element as the program has it, where a multiplication that is added at once takes none."""
        value = self.by_name.get(name)
        if value is None or not self.is_linear(value):
            return 0
        total = 1 + sum(self._operations(arg) for arg in value.args)
        if value.op in ("add", "sub"):
            products = [arg for arg in value.args if arg in self.by_name and self.by_name[arg].op == "mul"]
            total -= any(self.is_linear(self.by_name[arg]) for arg in products)
        return total

    def _is_rough(self, name: str) -> bool:
        """Whether a base has no more bits than 16, or is a multiple of what has not."""
        value = self.by_name.get(name)
        if value is None:
            return False
        if value.op == "cast":
            kind = self.types[value.args[0]][0]
            return is_float(kind) and is_narrow(kind)
        return value.op == "mul" and any(map(self._is_rough, value.args))


def _sum(one: Form, other: Form) -> Form:
    terms = dict(one.terms)
    for base, factor in other.terms.items():
        terms[base] = _added(terms[base], factor) if base in terms else factor
    constants = [form.constant for form in (one, other) if form.constant is not None]
    return Form(terms, _added(*constants) if len(constants) == 2 else next(iter(constants), None))


def _negative(form: Form) -> Form:
    return Form(
        {base: _opposite(factor) for base, factor in form.terms.items()},
        None if form.constant is None else _opposite(form.constant),
    )


def _multiple(form: Form, by: Factor) -> Form:
    return Form(
        {base: _product(factor, by) for base, factor in form.terms.items()},
        None if form.constant is None else _product(form.constant, by),
    )


def _product(one: Factor, other: Factor) -> Factor:
    if ONE in (one, other):
        return one or other
    if one[0] == "neg":
        return _opposite(_product(one[1], other))  # type: ignore[arg-type]
    return ("mul", one, other)


def _opposite(factor: Factor) -> Factor:
    return factor[1] if factor and factor[0] == "neg" else ("neg", factor)  # type: ignore[return-value]


def _added(one: Factor, other: Factor) -> Factor:
    return ("add", one, other)
