"""Dimensions by transactional refinement.

Every axis of every tensor is a product of *atoms*, major to minor. An axis of size one has none. Unifying two axes
splits atoms until both sides are the same products, or fails; a transaction then leaves everything as it was.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager

import sympy

from weft.ir.program import Size

Axis = tuple[int, ...]
Extent = int | sympy.Expr


class MisalignedError(Exception):
    """Two shapes are not products of the same dimensions. have, limit: the sizes that met, where there are two."""

    def __init__(self, message: str, have: Extent | None = None, limit: Extent | str | None = None) -> None:
        super().__init__(message)
        self.have, self.limit = (size if size is None or isinstance(size, int) else str(size) for size in (have, limit))


class Refinement:
    """A union-find over atoms in which an atom may also be split into a product of two."""

    def __init__(self) -> None:
        self._parent: list[int] = []
        self._size: list[Extent] = []
        self._parts: dict[int, tuple[int, int]] = {}
        self._trail: list[tuple[str, int]] = []

    def fresh_axis(self, size: Extent) -> Axis:
        """An axis of that size: one new atom, or none for size one."""
        return () if size == 1 else (self._fresh(size),)

    def size(self, atom: int) -> Extent:
        return self._size[atom]

    def leaves(self, axis: Sequence[int]) -> Axis:
        """The atoms an axis consists of now, none of them split or merged into another."""
        found: list[int] = []
        for atom in axis:
            root = self._find(atom)
            found.extend(self.leaves(self._parts[root]) if root in self._parts else (root,))
        return tuple(found)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """Undo every change made inside if it raises."""
        mark = len(self._trail)
        try:
            yield
        except BaseException:
            while len(self._trail) > mark:
                kind, atom = self._trail.pop()
                if kind == "parent":
                    self._parent[atom] = atom
                else:
                    del self._parts[atom]
            raise

    def unify(self, left: Sequence[int], right: Sequence[int]) -> None:
        """Make two axes the same product of atoms. Raises MisalignedError; only a transaction undoes what it did."""
        a, b = self.leaves(left), self.leaves(right)
        while a and b:
            x, y = a[-1], b[-1]
            if x == y:
                a, b = a[:-1], b[:-1]
            elif same_extent(self._size[x], self._size[y]):
                self._parent[x] = y
                self._trail.append(("parent", x))
                a, b = self.leaves(a[:-1]), self.leaves(b[:-1])
            else:
                self._split_larger(x, y)
                a, b = self.leaves(a), self.leaves(b)
        if a or b:
            factor = " x ".join(str(self._size[atom]) for atom in a or b)
            raise MisalignedError(f"sizes differ by a factor of {factor}", self._extent(left), self._extent(right))

    def atoms(self, axes: Iterable[Axis]) -> Axis:
        """The leaves of all axes of a tensor."""
        return self.leaves([atom for axis in axes for atom in axis])

    def unify_all(self, left: Iterable[Axis], right: Iterable[Axis]) -> None:
        """``unify`` for each axis of two tensors of one rank."""
        for a, b in zip(left, right, strict=True):
            self.unify(a, b)

    def can_unify(self, left: Iterable[Axis], right: Iterable[Axis], spaces: Iterable[Sequence[Axis]]) -> bool:
        """Make the axes of two reads of a tensor the same, if that makes no diagonal of one of the spaces."""
        try:
            with self.transaction():
                self.unify_all(left, right)
                for axes in spaces:
                    self.check_distinct(axes)
        except MisalignedError:
            return False
        return True

    def regroup(self, axes: Sequence[Axis], sizes: Sequence[Extent]) -> list[Axis]:
        """The axes of a tensor of shape ``sizes`` with the same elements in the same order: a reshape."""
        target = [self.fresh_axis(size) for size in sizes]
        self.unify(self.atoms(axes), self.atoms(target))
        return target

    def check_distinct(self, axes: Sequence[Axis]) -> None:
        """Raises MisalignedError if a tensor has the same dimension twice (a diagonal)."""
        leaves = self.atoms(axes)
        if len(set(leaves)) != len(leaves):
            raise MisalignedError("two dimensions of one tensor would become the same (a diagonal)")

    def _extent(self, axis: Sequence[int]) -> Extent:
        """Number of elements along an axis."""
        product: Extent = 1
        for atom in self.leaves(axis):
            product = product * self._size[atom]
        return product

    def _fresh(self, size: Extent) -> int:
        self._parent.append(len(self._parent))
        self._size.append(size)
        return len(self._parent) - 1

    def _find(self, atom: int) -> int:
        while self._parent[atom] != atom:
            atom = self._parent[atom]
        return atom

    def _split_larger(self, x: int, y: int) -> None:
        for large, small in ((x, y), (y, x)):
            quotient = exact_quotient(self._size[large], self._size[small])
            if quotient is not None:
                parts = (self._fresh(quotient), self._fresh(self._size[small]))
                self._parts[large] = parts
                self._trail.append(("parts", large))
                return
        have, limit = self._size[x], self._size[y]
        raise MisalignedError(f"neither of {have} and {limit} divides the other", have, limit)


def same_extent(a: Extent, b: Extent) -> bool:
    """Whether two sizes are proved to be equal."""
    return a == b or (not (isinstance(a, int) and isinstance(b, int)) and sympy.expand(sympy.sympify(a) - b) == 0)


def exact_quotient(large: Extent, small: Extent) -> Extent | None:
    """``large / small`` if it is proved to be a whole number greater than one, else None."""
    if isinstance(large, int) and isinstance(small, int):
        return large // small if small > 0 and large > small and large % small == 0 else None
    try:
        quotient = sympy.expand(sympy.cancel(sympy.sympify(large) / sympy.sympify(small)))
    except sympy.PolynomialError:  # a size with floor divisions or maxima in it
        return None
    _, denominator = quotient.as_numer_denom()
    if denominator != 1 or quotient == 1 or not quotient.is_polynomial(*quotient.free_symbols):
        return None
    coefficients = sympy.Poly(quotient, *quotient.free_symbols).coeffs() if quotient.free_symbols else [quotient]
    if not all(c.is_Integer and c > 0 for c in coefficients):
        return None
    return int(quotient) if quotient.is_Integer else quotient


def extent(size: object) -> Extent:
    """An int, or the expression behind a torch.SymInt."""
    if isinstance(size, int):
        return size
    expr = sympy.sympify(size.node.expr)  # type: ignore[attr-defined]
    return int(expr) if expr.is_Integer else expr


def guess(size: Extent) -> int:
    """A size, taken as large where it is known at run time only."""
    return size if isinstance(size, int) else int(sympy.sympify(size).subs(dict.fromkeys(size.free_symbols, 4096)))


def parameter(value: Extent, names: dict[str, Extent]) -> Size:
    """A size or stride as a program has it: under a name, one for each distinct expression, if it is known at run time
    only. names: with their expressions; a new one is added."""
    if isinstance(value, int):
        return value
    name = next((name for name, known in names.items() if known == value), f"s{len(names)}")
    names[name] = value
    return name
