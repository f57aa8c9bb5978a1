"""Sums of multiples of values with columns, whose factors are made of values without columns."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from typing import Literal

from weft.ir.builder import Builder


@dataclass(frozen=True)
class Number:
    """What has no columns: one, a value by its name, or a product or a sum of two others."""

    kind: Literal["one", "value", "mul", "add"]
    parts: tuple[Number, ...] = ()
    name: str = ""
    negative: bool = False

    def __neg__(self) -> Number:
        return self._signed(not self.negative)

    def __mul__(self, other: Number) -> Number:
        if self.is_one or other.is_one:
            found = other if self.is_one else self
        else:
            found = Number("mul", (self.without_sign, other.without_sign))
        return found._signed(self.negative != other.negative)

    def __add__(self, other: Number) -> Number:
        if self.negative and other.negative:
            return -(-self + -other)
        return Number("add", (other, self) if self.negative else (self, other))

    @property
    def is_one(self) -> bool:
        """Or minus one."""
        return self.kind == "one"

    @property
    def without_sign(self) -> Number:
        return self._signed(False)

    def _signed(self, negative: bool) -> Number:
        return self if negative == self.negative else replace(self, negative=negative)

    @property
    def size(self) -> int:
        """How many values it is made of."""
        return 1 if self.kind == "value" else sum(part.size for part in self.parts)

    def operations(self) -> Iterator[Number]:
        """The products and the sums that it is made of, without their signs."""
        if self.parts:
            yield self.without_sign
        for part in self.parts:
            yield from part.operations()

    def build(self, builder: Builder, renamed: Mapping[str, str], dtype: str) -> str:
        """The name of a value of a program. renamed: the names of those that it is made of."""
        match self.kind:
            case "one":
                return builder.const(-1.0 if self.negative else 1.0, dtype)
            case "value":
                found = renamed[self.name]
            case "add" if self.parts[1].negative:
                found = builder.op("sub", *(p.without_sign.build(builder, renamed, dtype) for p in self.parts))
            case _:
                found = builder.op(self.kind, *(part.build(builder, renamed, dtype) for part in self.parts))
        return builder.op("neg", found) if self.negative else found


ONE = Number("one")


@dataclass(frozen=True)
class Linear:
    """A sum of multiples of values with columns, by their names, and perhaps of a constant."""

    terms: tuple[tuple[str, Number], ...]
    constant: Number | None = None

    @staticmethod
    def of(op: str, operands: Sequence[Linear]) -> Linear:
        """What an operation makes of sums: all of one factor or more, at the least, are constants."""
        match op, operands:
            case "add", (a, b):
                return a + b
            case "sub", (a, b):
                return a + -b
            case "neg", (a,):
                return -a
            case "mul", (a, b):
                return a * b
            case "fma", (a, b, c):
                return a * b + c
            case _:
                raise AssertionError(f"{op} is not linear")

    def __neg__(self) -> Linear:
        return self * Linear((), -ONE)

    def __mul__(self, other: Linear) -> Linear:
        sums, numbers = (self, other) if self.terms else (other, self)
        factor = numbers.constant
        assert factor is not None
        assert not numbers.terms
        constant = None if sums.constant is None else sums.constant * factor
        return Linear(tuple((term, own * factor) for term, own in sums.terms), constant)

    def __add__(self, other: Linear) -> Linear:
        factors = dict(self.terms)
        for term, factor in other.terms:
            factors[term] = factors[term] + factor if term in factors else factor
        constants = [c for c in (self.constant, other.constant) if c is not None]
        return Linear((*factors.items(),), reduce(Number.__add__, constants) if constants else None)

    def with_last(self, names: Collection[str]) -> Linear:
        """The same with these terms behind others that have no factor: so they are added to something."""
        return replace(self, terms=tuple(sorted(self.terms, key=lambda term: term[0] in names)))

    @property
    def is_product(self) -> bool:
        """Whether it is a multiplication, and nothing more."""
        if self.constant is not None or len(self.terms) != 1:
            return False
        factor = self.terms[0][1]
        return not factor.is_one and not factor.negative

    @cached_property
    def addends(self) -> int:
        """What is added as it is, not multiplied before."""
        return sum(factor.is_one for _, factor in self.terms) + (self.constant is not None)

    @cached_property
    def operations(self) -> int:
        """On elements: a multiplication and an addition at once a term, or an addition where it has no factor. What
        comes first is added to nothing, and a sign is no operation."""
        multiplied = sum(not factor.is_one for _, factor in self.terms)
        return multiplied + max(0, self.addends - 1)

    def numbers(self) -> Iterator[Number]:
        """Operations that its factors and its constant take."""
        for number in (*(factor for _, factor in self.terms), self.constant):
            yield from () if number is None else number.operations()

    def build(self, builder: Builder, renamed: Mapping[str, str], dtype: str) -> str:
        """The name of a value of a program. What has the longest factor comes next to the constant, most of which has
        the same factor: they may nearly cancel out, and others are added to what is left."""
        parts = self._parts(builder, renamed, dtype)
        total, minus = next(parts)
        for name, negative in parts:
            if minus == negative:
                total = builder.op("add", name, total)
            else:
                total, minus = builder.op("sub", *((name, total) if minus else (total, name))), False
        return builder.op("neg", total) if minus else total

    def _parts(self, builder: Builder, renamed: Mapping[str, str], dtype: str) -> Iterator[tuple[str, bool]]:
        """What it is the sum of, each as it is needed, without its sign, and whether that is a minus."""
        plain = [(renamed[name], factor.negative) for name, factor in self.terms if factor.is_one]
        others = sorted((term for term in self.terms if not term[1].is_one), key=lambda term: -term[1].size)
        if self.constant is not None:
            yield self.constant.without_sign.build(builder, renamed, dtype), self.constant.negative
        elif plain:
            yield plain.pop(0)
        for name, factor in others:
            number = factor.without_sign.build(builder, renamed, dtype)
            yield builder.op("mul", renamed[name], number), factor.negative
        yield from plain
