"""Refinement: axes as products of atoms, split until two sides agree, undone where they cannot."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv

from weft.capture.refine import Axis, Extent, MisalignedError, Refinement, exact_quotient, extent

MANY = settings(deadline=None, max_examples=200, derandomize=True)
S, T, U = sympy.symbols("s t u", positive=True, integer=True)
SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 8, 12]), min_size=1, max_size=4)


def sizes(refinement: Refinement, axis: Sequence[int]) -> list[Extent]:
    return [refinement.size(atom) for atom in refinement.leaves(axis)]


def fresh(refinement: Refinement, shape: Sequence[Extent]) -> list[Axis]:
    return [refinement.fresh_axis(size) for size in shape]


def flat(axes: Sequence[Axis]) -> Axis:
    return tuple(atom for axis in axes for atom in axis)


def attempt(refinement: Refinement, change: Callable[[], None]) -> None:
    with refinement.transaction():
        change()


def regrouped(shape: Sequence[Extent], target: Sequence[Extent]) -> tuple[list[list[Extent]], list[list[Extent]]]:
    """Sizes of the atoms of each axis of both shapes after a reshape; both must have the same atoms."""
    refinement = Refinement()
    before = fresh(refinement, shape)
    after = refinement.regroup(before, target)
    assert refinement.leaves(flat(before)) == refinement.leaves(flat(after))
    return [sizes(refinement, axis) for axis in before], [sizes(refinement, axis) for axis in after]


def test_an_axis_of_size_one_has_no_atoms() -> None:
    refinement = Refinement()
    assert refinement.fresh_axis(1) == ()
    assert sizes(refinement, refinement.fresh_axis(7)) == [7]
    assert sizes(refinement, refinement.fresh_axis(S)) == [S]


def test_axes_of_equal_size_become_the_same() -> None:
    refinement = Refinement()
    a, b, c = fresh(refinement, [6, 6, 6])
    assert refinement.leaves(a) != refinement.leaves(b)
    refinement.unify(a, b)
    assert refinement.leaves(a) == refinement.leaves(b)
    assert refinement.leaves(c) != refinement.leaves(a)
    refinement.unify(b, c)
    assert refinement.leaves(c) == refinement.leaves(a)


def test_unifying_again_changes_nothing() -> None:
    refinement = Refinement()
    a, b, c = fresh(refinement, [6, 2, 3])
    refinement.unify(a, b + c)
    before = refinement.leaves(a)
    refinement.unify(b + c, a)
    refinement.unify(a, a)
    assert refinement.leaves(a) == before == refinement.leaves(b + c)


@pytest.mark.parametrize("swapped", [False, True])
def test_the_larger_axis_is_split(swapped: bool) -> None:
    refinement = Refinement()
    whole, major, minor = fresh(refinement, [12, 3, 4])
    refinement.unify(*((major + minor, whole) if swapped else (whole, major + minor)))
    assert sizes(refinement, whole) == [3, 4]
    assert refinement.leaves(whole) == refinement.leaves(major) + refinement.leaves(minor)


def test_a_split_axis_is_split_further() -> None:
    refinement = Refinement()
    whole, a, b, c, d = fresh(refinement, [24, 4, 6, 2, 12])
    refinement.unify(whole, a + b)
    refinement.unify(whole, c + d)
    assert sizes(refinement, whole) == [2, 2, 6]
    assert sizes(refinement, a) == [2, 2]
    assert sizes(refinement, b) == [6]
    assert sizes(refinement, d) == [2, 6]
    assert refinement.leaves(a + b) == refinement.leaves(c + d) == refinement.leaves(whole)


def test_a_split_reaches_every_axis_that_is_the_same() -> None:
    refinement = Refinement()
    a, b, c, d = fresh(refinement, [12, 12, 3, 4])
    refinement.unify(a, b)
    refinement.unify(b, c + d)
    assert refinement.leaves(a) == refinement.leaves(b) == refinement.leaves(c + d)


def test_sizes_that_differ_by_a_factor_are_misaligned() -> None:
    refinement = Refinement()
    a, b = fresh(refinement, [12, 4])
    with pytest.raises(MisalignedError, match=r"^sizes differ by a factor of 3$") as first, refinement.transaction():
        refinement.unify(a, b)
    assert (first.value.have, first.value.limit) == (12, 4)
    c, d = fresh(refinement, [2, 3])
    with pytest.raises(MisalignedError, match=r"^sizes differ by a factor of 2 x 3$") as second:
        refinement.unify((), c + d)
    assert (second.value.have, second.value.limit) == (1, 6)


def test_sizes_that_do_not_divide_are_misaligned() -> None:
    refinement = Refinement()
    with pytest.raises(MisalignedError, match="neither of 4 and 6 divides the other") as raised:
        refinement.unify(*fresh(refinement, [4, 6]))
    assert (raised.value.have, raised.value.limit) == (4, 6)


# reshapes


def test_rows_and_columns_are_split_into_batches_and_heads() -> None:
    assert regrouped([2 * 5, 4 * 8], [2, 5, 4, 8]) == ([[2, 5], [4, 8]], [[2], [5], [4], [8]])
    assert regrouped([2, 5, 4, 8], [2 * 5, 4 * 8]) == ([[2], [5], [4], [8]], [[2, 5], [4, 8]])


def test_shapes_that_overlap_are_refined_on_both_sides() -> None:
    assert regrouped([6, 4], [2, 12]) == ([[2, 3], [4]], [[2], [3, 4]])
    assert regrouped([4, 6], [8, 3]) == ([[4], [2, 3]], [[4, 2], [3]])


def test_axes_of_size_one_come_and_go() -> None:
    assert regrouped([4, 6], [1, 4, 1, 6, 1]) == ([[4], [6]], [[], [4], [], [6], []])
    assert regrouped([1, 24, 1], [4, 6]) == ([[], [4, 6], []], [[4], [6]])
    assert regrouped([1], []) == ([[]], [])


def test_a_reshape_that_cuts_across_is_misaligned() -> None:
    with pytest.raises(MisalignedError, match="neither of 4 and 3 divides the other"):
        regrouped([6, 4], [8, 3])


def test_reshapes_in_a_row_agree_with_the_one_at_once() -> None:
    refinement = Refinement()
    x = fresh(refinement, [10, 32])
    y = refinement.regroup(x, [2, 5, 32])
    z = refinement.regroup(y, [2, 5, 4, 8])
    assert sizes(refinement, flat(x)) == [2, 5, 4, 8]
    assert [refinement.leaves(axis) for axis in z] == [(atom,) for atom in refinement.leaves(flat(x))]


def suffix_products(shape: Sequence[int]) -> set[int]:
    return {math.prod(shape[i:]) for i in range(len(shape) + 1)}


@MANY
@given(SHAPES, SHAPES)
def test_a_reshape_aligns_if_and_only_if_the_borders_of_both_shapes_nest(left: list[int], right: list[int]) -> None:
    """An axis border lies after a number of elements; sorted, each must divide the next, and the atoms lie between."""
    left = [*left, math.prod(right)]
    right = [*right, math.prod(left[:-1])]
    borders = sorted(suffix_products(left) | suffix_products(right))
    atoms = [b // a for a, b in pairwise(borders)][::-1]
    if all(b % a == 0 for a, b in pairwise(borders)):
        before, after = regrouped(left, right)
        assert [size for axis in before for size in axis] == atoms
        assert [math.prod(axis) for axis in before] == left
        assert [math.prod(axis) for axis in after] == right
    else:
        with pytest.raises(MisalignedError):
            regrouped(left, right)


# transactions


def test_a_transaction_that_fails_leaves_everything_as_it_was() -> None:
    refinement = Refinement()
    a, b, c, d = fresh(refinement, [6, 4, 8, 3])
    kept, partner = fresh(refinement, [10, 10])
    refinement.unify(kept, partner)
    before = [refinement.leaves(axis) for axis in (a, b, c, d, kept, partner)]

    def change() -> None:
        refinement.unify(a, flat(fresh(refinement, [3, 2])))
        refinement.unify(kept, flat(fresh(refinement, [2, 5])))
        assert sizes(refinement, partner) == [2, 5]
        refinement.unify(a + b, c + d)

    with pytest.raises(MisalignedError):
        attempt(refinement, change)
    assert [refinement.leaves(axis) for axis in (a, b, c, d, kept, partner)] == before
    assert sizes(refinement, a + b + c + d + kept) == [6, 4, 8, 3, 10]


def test_a_transaction_that_succeeds_is_kept() -> None:
    refinement = Refinement()
    a, b = fresh(refinement, [6, 6])
    with refinement.transaction():
        refinement.unify(a, b)
    assert refinement.leaves(a) == refinement.leaves(b)


def test_an_outer_transaction_undoes_the_inner_one_that_succeeded() -> None:
    refinement = Refinement()
    a, b, c = fresh(refinement, [6, 6, 6])

    def change() -> None:
        attempt(refinement, lambda: refinement.unify(a, b))
        assert refinement.leaves(a) == refinement.leaves(b)
        refinement.unify(c, refinement.fresh_axis(5))

    with pytest.raises(MisalignedError):
        attempt(refinement, change)
    assert len({refinement.leaves(axis) for axis in (a, b, c)}) == 3


def test_an_inner_transaction_that_fails_keeps_the_outer_one() -> None:
    refinement = Refinement()
    a, b, c = fresh(refinement, [6, 6, 12])
    with refinement.transaction():
        refinement.unify(a, b)
        with pytest.raises(MisalignedError), refinement.transaction():
            refinement.unify(c, flat(fresh(refinement, [5, 4])))
        assert sizes(refinement, c) == [12]
    assert refinement.leaves(a) == refinement.leaves(b)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_any_exception_undoes_a_transaction(error: type[BaseException]) -> None:
    refinement = Refinement()
    a, b = fresh(refinement, [6, 6])

    def change() -> None:
        refinement.unify(a, b)
        raise error

    with pytest.raises(error):
        attempt(refinement, change)
    assert refinement.leaves(a) != refinement.leaves(b)


@MANY
@given(st.data())
def test_random_transactions_are_whole_or_nothing(data: st.DataObject) -> None:
    refinement = Refinement()
    axes = fresh(refinement, data.draw(st.lists(st.sampled_from([2, 3, 4, 6, 8, 12, 24]), min_size=2, max_size=6)))
    product = [math.prod(int(n) for n in sizes(refinement, axis)) for axis in axes]
    equal: list[tuple[Axis, Axis]] = []
    for _ in range(data.draw(st.integers(1, 6))):
        left, right = (
            flat([axes[i] for i in data.draw(st.lists(st.integers(0, len(axes) - 1), min_size=1, max_size=3))])
            for _ in range(2)
        )
        before = [refinement.leaves(axis) for axis in axes]
        try:
            with refinement.transaction():
                refinement.unify(left, right)
        except MisalignedError:
            assert [refinement.leaves(axis) for axis in axes] == before
        else:
            equal.append((left, right))
        assert [math.prod(int(n) for n in sizes(refinement, axis)) for axis in axes] == product
        assert all(refinement.leaves(a) == refinement.leaves(b) for a, b in equal)


# diagonals


def test_different_dimensions_are_no_diagonal() -> None:
    refinement = Refinement()
    axes = fresh(refinement, [4, 4, 6])
    refinement.check_distinct(axes)
    refinement.check_distinct([])
    refinement.check_distinct(fresh(refinement, [1, 1]))


def test_a_tensor_plus_its_transpose_is_a_diagonal() -> None:
    refinement = Refinement()
    rows, columns = fresh(refinement, [4, 4])

    def change() -> None:
        refinement.unify(rows, columns)
        refinement.check_distinct([rows, columns])

    with pytest.raises(MisalignedError, match="diagonal"):
        attempt(refinement, change)
    refinement.check_distinct([rows, columns])


def test_a_diagonal_of_parts_is_found() -> None:
    """[8, 2] whose first axis ends in the same two as its second."""
    refinement = Refinement()
    rows, columns, four = fresh(refinement, [8, 2, 4])
    refinement.unify(rows, four + columns)
    with pytest.raises(MisalignedError, match="diagonal"):
        refinement.check_distinct([rows, columns])
    refinement.check_distinct([four, columns])


def test_a_diagonal_inside_one_axis_is_found() -> None:
    refinement = Refinement()
    whole, part = fresh(refinement, [9, 3])
    refinement.unify(whole, part + part)
    with pytest.raises(MisalignedError, match="diagonal"):
        refinement.check_distinct([whole])


# sizes known at run time


def test_run_time_sizes_align() -> None:
    assert regrouped([S * T, 32], [S, T, 4, 8]) == ([[S, T], [4, 8]], [[S], [T], [4], [8]])
    assert regrouped([S, T, 32], [S * T * 4, 8]) == ([[S], [T], [4, 8]], [[S, T, 4], [8]])
    assert regrouped([4 * S, 6], [S, 24]) == ([[S, 4], [6]], [[S], [4, 6]])
    assert regrouped([S * T + S, 2], [T + 1, 2 * S]) == ([[T + 1, S], [2]], [[T + 1], [S, 2]])
    assert regrouped([2 * S], [2, S]) == ([[2, S]], [[2], [S]])


@pytest.mark.parametrize(
    ("shape", "target"),
    [([S, 4], [T, 4]), ([S, 6], [S, 4]), ([S], [S / 2, 2]), ([S, T], [T, S]), ([S, 2], [S + 1, 2]), ([S * T], [S])],
)
def test_what_is_not_proved_is_misaligned(shape: list[Extent], target: list[Extent]) -> None:
    with pytest.raises(MisalignedError):
        regrouped(shape, target)


def test_a_run_time_size_written_in_two_ways_is_one_size() -> None:
    refinement = Refinement()
    left, right = fresh(refinement, [S * (T + 1), S * T + S])
    refinement.unify(left, right)
    assert refinement.leaves(left) == refinement.leaves(right)


@pytest.mark.parametrize(
    ("large", "small"), [(2 * FloorDiv(S, 2), 2), (T * FloorDiv(S, 2), T), (2 * sympy.Max(S, T), 2), (2 * S**2, S)]
)
def test_a_size_that_is_no_polynomial_aligns_or_is_misaligned(large: sympy.Expr, small: Extent) -> None:
    """Halved sizes come from x[: s // 2] and from strided convolutions."""
    assert exact_quotient(large, small) in (None, sympy.cancel(large / small))
    refinement = Refinement()
    whole, part = fresh(refinement, [large, small])
    with pytest.raises(MisalignedError), refinement.transaction():
        refinement.unify(whole, part)
    assert sizes(refinement, whole) == [large]


@pytest.mark.parametrize(
    ("large", "small", "expected"),
    [
        (12, 4, 3),
        (4, 12, None),
        (12, 5, None),
        (12, 12, None),
        (0, 4, None),
        (4, 0, None),
        (S * T, S, T),
        (4 * S, S, 4),
        (4 * S, 2, 2 * S),
        (4 * S * T, 2 * T, 2 * S),
        (S**2 + S, S, S + 1),
        (S**2 + S, S + 1, S),
        (6 * S, 4, None),
        (6 * S, 4 * S, None),
        (S, 2, None),
        (4, S, None),
        (S, S, None),
        (S, T, None),
        (S * (S - 1), S, None),
        (S + T, S, None),
    ],
)
def test_quotients_are_whole_and_greater_than_one_or_nothing(large: Extent, small: Extent, expected: object) -> None:
    found = exact_quotient(large, small)
    assert found == expected
    if isinstance(expected, int):
        assert type(found) is int


def test_extents_are_ints_or_expressions() -> None:
    size = ShapeEnv().create_unbacked_symint()
    assert extent(5) == 5
    found = extent(size * 3)
    assert isinstance(found, sympy.Expr)
    (symbol,) = found.free_symbols
    assert found == 3 * symbol
    assert extent(size) == symbol
