# pyright: basic, reportAttributeAccessIssue=none, reportOptionalOperand=none, reportOperatorIssue=none, reportGeneralTypeIssues=none
"""Functions that generated Triton kernels call, as ``w``. They take tensors of float32, float64, int32, int64 or bool.

Floats behave as in torch where they are infinite, not a number or a zero with a sign. What Triton's own functions do
not reach comes from CUDA's library. Float32 smaller than 1.2e-38, which is not normal, may count as zero.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import libdevice

from weft.backends.triton.weft_casts import (
    add_halves,
    is_nvidia,
    mul_halves,
    sub_halves,
    to_bf16,
    to_f8e4m3,
    to_f8e4m3_saturated,
    to_f8e5m2,
    to_f16,
    to_f32,
    to_f32_again,
)

__all__ = [
    "add_halves",
    "mul_halves",
    "sub_halves",
    "to_bf16",
    "to_f8e4m3",
    "to_f8e4m3_saturated",
    "to_f8e5m2",
    "to_f16",
    "to_f32",
    "to_f32_again",
]

# Of float32, tl.exp rounds x * log2(e), which costs 1e-6 at x = -20; this is within two units in the last place.
exp, expm1, log1p, log10 = libdevice.exp, libdevice.expm1, libdevice.log1p, libdevice.log10
tan, asin, acos, atan, atan2 = libdevice.tan, libdevice.asin, libdevice.acos, libdevice.atan, libdevice.atan2
sinh, cosh, tanh = libdevice.sinh, libdevice.cosh, libdevice.tanh
# erfc is exact to the last digits where it is small; fmod has the sign of x; round takes the even one of two.
erfc, fmod, round = libdevice.erfc, libdevice.fmod, libdevice.nearbyint
pow, copysign = libdevice.pow, libdevice.copysign


@triton.jit
def rounded_up(number, vector: tl.constexpr):
    """The next multiple of the elements of a vector."""
    return tl.multiple_of((number + (vector - 1)) // vector * vector, vector)


@triton.jit
def rounded_down(number, vector: tl.constexpr):
    """The multiple of the elements of a vector before a number."""
    return tl.multiple_of(number // vector * vector, vector)


@triton.jit
def apart(index, vector: tl.constexpr):
    """The same numbers, which LLVM does not know to be so: of an index that a branch makes addresses of it would carry
    the upper halves into what others make of it. index: columns of whole vectors, int32."""
    if is_nvidia():
        index = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [index], tl.int32, is_pure=False, pack=1)
        index = tl.max_contiguous(tl.multiple_of(index, [1, vector]), [1, vector])
    return index


# NaN wins, as in torch.maximum


@triton.jit
def maximum(x, y):
    """The larger one; NaN if one is."""
    return tl.maximum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(x, y):
    """The smaller one; NaN if one is."""
    return tl.minimum(x, y, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def max(x, axis: tl.constexpr):
    """Largest along an axis, which stays with size one; NaN if one is."""
    if x.dtype == tl.int1:
        result = tl.reduce(x.to(tl.int32), axis, maximum, keep_dims=True) != 0
    else:
        result = tl.reduce(x, axis, maximum, keep_dims=True)
    return result


@triton.jit
def min(x, axis: tl.constexpr):
    """Smallest along an axis, which stays with size one; NaN if one is."""
    if x.dtype == tl.int1:
        result = tl.reduce(x.to(tl.int32), axis, minimum, keep_dims=True) != 0
    else:
        result = tl.reduce(x, axis, minimum, keep_dims=True)
    return result


# several reductions in one block-wide reduction


@triton.jit
def sums(operands, axis: tl.constexpr):
    """Sums of two to four tensors of one shape along an axis, which stays with size one."""
    if len(operands) == 2:
        result = tl.reduce(operands, axis, _add_2, keep_dims=True)
    elif len(operands) == 3:
        result = tl.reduce(operands, axis, _add_3, keep_dims=True)
    else:
        tl.static_assert(len(operands) == 4, "two to four tensors")
        result = tl.reduce(operands, axis, _add_4, keep_dims=True)
    return result


@triton.jit
def _add_2(a, b, c, d):
    return a + c, b + d


@triton.jit
def _add_3(a, b, c, d, e, f):
    return a + d, b + e, c + f


@triton.jit
def _add_4(a, b, c, d, e, f, g, h):
    return a + e, b + f, c + g, d + h


# statistics of columns in one pass, by a centre that moves (Chan, Golub and LeVeque, 1979; Milakov and Gimelshein,
# 2018). For a variance: count, pivot, mean and squares. The pivot is some element, the mean is relative to it, so that
# it is not rounded as a large number is, and squares are those of differences from the mean, summed up. For a softmax:
# the largest and the sum of exponentials of differences from it.


@triton.jit
def m2_add(count, pivot, total, squares, x, exists=None):
    """One more element for each row of a tile: here total and squares are sums over differences from the pivot. exists:
    where there is one."""
    if exists is None:
        pivot = tl.where(count == 0, x, pivot)
        difference = x - pivot
        count += 1
    else:
        pivot = tl.where(exists & (count == 0), x, pivot)
        difference = tl.where(exists, x - pivot, 0)
        count += tl.where(exists, 1, 0)
    return count, pivot, total + difference, squares + difference * difference


@triton.jit
def m2_rows(count, pivot, total, squares):
    """The states of a tile's rows as one."""
    count = tl.broadcast_to(count, pivot.shape)
    mean = total / tl.maximum(count, 1)
    squares = maximum(squares - total * mean, 0.0 * squares)
    return _m2_as_one(count, pivot, mean, squares)


@triton.jit
def _m2_as_one(count, pivot, mean, squares):
    return tl.reduce((count, pivot, mean, squares), 0, m2_merge, keep_dims=True)


@triton.jit
def m2_merge(count, pivot, mean, squares, more_count, more_pivot, more_mean, more_squares):
    """The state of all elements of two."""
    both = count + more_count
    share = more_count / tl.maximum(both, 1)
    pivot = tl.where(count == 0, more_pivot, pivot)
    difference = tl.where(more_count == 0, 0, more_pivot - pivot) + (more_mean - mean)
    return both, pivot, mean + difference * share, squares + more_squares + difference * difference * (share * count)


@triton.jit
def m2_total(count, pivot, mean, squares):
    """Sum of squared differences from the mean, of all rows."""
    count, pivot, mean, squares = _m2_as_one(count, pivot, mean, squares)
    return squares


@triton.jit
def m2_of_row(count, pivot, total, squares):
    """Sum of squared differences from the mean, of all columns of a row: each column's, which are from its pivot, are
    moved to the mean."""
    mean = _divide(tl.sum(total + count * pivot, 1, keep_dims=True), tl.sum(count, 1, keep_dims=True))
    shift = pivot - mean
    return tl.sum(squares + shift * (2 * total + count * shift), 1, keep_dims=True)


@triton.jit
def sumexp_add(centre, total, x, exists=None):
    """The state with one more element each. exists: where there is one."""
    if exists is not None:
        x = tl.where(exists, x, float("-inf"))
    return sumexp_merge(centre, total, x, 1.0)


@triton.jit
def sumexp_merge(centre, total, more_centre, more_total):
    """The state of all elements of two."""
    difference = more_centre - centre
    # nothing comes from minus infinity; what it is from minus infinity is not a number
    smaller = tl.where(more_centre == float("-inf"), 0.0, tl.exp(-tl.abs(difference)))
    total = tl.where(difference > 0, total * smaller + more_total, total + more_total * smaller)
    return maximum(centre, more_centre), total


@triton.jit
def exp_summed(x, factor: tl.constexpr):
    """exp(factor * x), or zero where that is no normal number: for sums that have a one beside it. Numbers below 2^-126
    would take three more instructions. x: float32 or float64."""
    if is_nvidia() and x.dtype == tl.float32:
        exponent = x * (1.4426950408889634 * factor)  # of two: log2(e)
        result = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [exponent], tl.float32, is_pure=True, pack=1
        )
    else:
        result = tl.exp(factor * x)
    return result


@triton.jit
def tanh_rounded(x):
    """tanh(x) within six units in the last place, for what is rounded to 16 bits: without a branch, where libdevice's
    has one. Near zero it is the beginning of its series. x: float32 or float64."""
    square = x * x
    near = x - x * square * (0.33333334 - square * (0.13333334 - square * 0.053968254))
    sum = exp_summed(x, 2.0) + 1.0
    if is_nvidia() and x.dtype == tl.float32:
        inverse = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f32 $0, $1;", "=f,f", [sum], tl.float32, is_pure=True, pack=1
        )
    else:
        inverse = 1.0 / sum
    return tl.where(tl.abs(x) < 0.25, near, 1.0 - 2.0 * inverse)


@triton.jit
def sumexp_block(centre, total, block):
    """The state with one more element of each tensor of a block: their exponentials have one centre."""
    largest = centre
    for i in tl.static_range(len(block)):
        largest = maximum(largest, block[i])
    base = tl.where(largest == float("-inf"), 0.0, largest)
    total *= exp_summed(centre - base, 1.0)
    for i in tl.static_range(len(block)):
        total += exp_summed(block[i] - base, 1.0)
    return largest, total


@triton.jit
def sumexp_rows(centre, total):
    """The states of a tile's rows as one."""
    return tl.reduce((centre, total), 0, sumexp_merge, keep_dims=True)


@triton.jit
def sumexp_total(centre, total):
    """Sum of exponentials of the differences from the largest, of all rows; NaN if that is infinite."""
    centre, total = sumexp_rows(centre, total)
    return tl.where(tl.abs(centre) == float("inf"), float("nan"), total)


@triton.jit
def sumexp_of_row(centre, total):
    """The same of all columns of a row."""
    centre, total = tl.reduce((centre, total), 1, sumexp_merge, keep_dims=True)
    return tl.where(tl.abs(centre) == float("inf"), float("nan"), total)


# all programs of a launch


@triton.jit
def wait_for_all(barrier):
    """Return once every program of the launch has called this; what they wrote before can be read then. All of them
    have to be resident. barrier: int64, a multiple of their number before the launch and after it."""
    tl.debug_barrier()
    programs = tl.num_programs(0) * tl.num_programs(1)
    before = tl.atomic_add(barrier, 1, sem="acq_rel", scope="gpu")
    target = (before // programs + 1) * programs
    now = tl.atomic_add(barrier, 0, sem="acquire", scope="gpu")
    while now < target:
        now = tl.atomic_add(barrier, 0, sem="acquire", scope="gpu")
    tl.debug_barrier()


# quotients rounded down, and what is left; an integer divided by zero gives zero


@triton.jit
def floor_divide(x, y):
    """Floor of the quotient of floats, as torch finds it: from the remainder."""
    rest = fmod(x, y)
    quotient = _divide(x - rest, y)
    quotient = tl.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    below = tl.floor(quotient)
    whole = tl.where(quotient - below > 0.5, below + 1, below)
    plain = _divide(x, y)
    # a zero has the sign of the quotient
    return tl.where(y == 0, plain, tl.where(quotient == 0, plain * 0.0, whole))


@triton.jit
def _divide(x, y):
    if x.dtype == tl.float64:
        result = x / y
    else:
        result = tl.div_rn(x, y)
    return result


@triton.jit
def remainder(x, y):
    """Remainder of floats, with the sign of the divisor."""
    rest = fmod(x, y)
    return tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)


@triton.jit
def floor_divide_integers(x, y):
    """Floor of the quotient of integers. The smallest one divided by -1 wraps: Triton leaves it undefined."""
    by_number = (y != 0) & (y != -1)
    divisor = tl.where(by_number, y, 1)
    quotient, rest = x // divisor, x % divisor
    quotient = tl.where((rest != 0) & ((rest < 0) != (y < 0)), quotient - 1, quotient)
    return tl.where(by_number, quotient, tl.where(y == 0, 0, 0 - x))


@triton.jit
def remainder_integers(x, y):
    """Remainder of integers, with the sign of the divisor."""
    by_number = (y != 0) & (y != -1)
    rest = x % tl.where(by_number, y, 1)
    rest = tl.where((rest != 0) & ((rest < 0) != (y < 0)), rest + y, rest)
    return tl.where(by_number, rest, 0)


# functions of floats


@triton.jit
def sigmoid(x):
    """1 / (1 + e^-x)."""
    return 1.0 / (1.0 + exp(-1.0 * x))


@triton.jit
def trunc(x):
    """Whole number next to x towards zero."""
    return tl.where(x < 0, tl.ceil(x), tl.floor(x))
