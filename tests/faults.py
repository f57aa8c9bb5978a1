"""Faults of the code generator, as data, and the test of the ordinary suite that finds each of them.

A fault is one small change of text: of a function of weft's, or of the header of all kernels. ``tests/test_faults.py``
plants them one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests import (
    test_capture_operations,
    test_capture_refine,
    test_capture_regions,
    test_functions,
    test_ir_program,
    test_ir_simplify,
    test_ir_simplify_constants,
    test_layouts,
    test_online,
    test_ops,
    test_plan_partition,
    test_structure,
    test_workload_kernels,
)
from tests.simplify_cases import binary

HEADER = "weft_cpu.h"
LEFTOVERS = ((130, 1000), ((3, 7, 3),))
"""A shape and a tiling that leave something over: 4 of 7 rows of a chunk, 1 of 3 of a tile, 8 columns of a vector."""


@dataclass(frozen=True)
class Fault:
    """place: the header, or ``module:function``, of which the text ``was``, found there once, is to become another.
    caught_by: a name in ``CHECKS``."""

    place: str
    was: str
    becomes: str
    caught_by: str


CHECKS: dict[str, Callable[[], None]] = {
    "exact row_column_sum": partial(test_workload_kernels.check_exact, "row_column_sum", "f32", *LEFTOVERS),
    "exact layer_norm_backward": partial(test_workload_kernels.check_exact, "layer_norm_backward", "f32", *LEFTOVERS),
    "exact layer_norm_forward": partial(test_workload_kernels.check_exact, "layer_norm_forward", "f32", *LEFTOVERS),
    "exact rms_norm_backward, even": partial(
        test_workload_kernels.check_exact, "rms_norm_backward", "bf16", (64, 128), ((8, 64, 1),)
    ),
    "exact qk_norm_forward": partial(test_workload_kernels.check_exact, "qk_norm_forward", "f32", *LEFTOVERS),
    "exact softmax_forward": partial(test_workload_kernels.check_exact, "softmax_forward", "f32", *LEFTOVERS),
    "error of rms_norm_forward in bf16": partial(
        test_workload_kernels.check_error, "rms_norm_forward", "bf16", test_workload_kernels.SHAPE
    ),
    "error of row_column_sum": partial(test_workload_kernels.check_error, "row_column_sum", "f32", (1000, 96)),
    "outputs are written whole": partial(test_workload_kernels.test_outputs_are_written_whole, "layer_norm_backward"),
    "every split of one_sign": partial(test_functions.test_every_legal_split_computes_the_same, "one_sign"),
    "every split of long_rows": partial(test_functions.test_every_legal_split_computes_the_same, "long_rows"),
    "few rows": partial(test_functions.test_few_rows_or_none, 1),
    "NaN and infinity": test_functions.test_nan_and_infinity_travel_as_in_eager_mode,
    "NaN and infinity in elements": partial(test_functions.check_special, test_functions.special_of_elements),
    "column softmax": partial(test_online.test_one_pass_is_as_accurate_as_eager, 0, 0.0),
    "column variance": partial(test_online.test_one_pass_is_as_accurate_as_eager, 2, 0.0),
    "column variance around 1000": partial(test_online.test_one_pass_is_as_accurate_as_eager, 2, 1000.0),
    "infinities of a column softmax": test_online.test_infinities_of_the_sum_of_exponentials,
    "no variance": test_online.test_a_sum_of_squares_around_something_else_is_no_variance,
    "no softmax": test_online.test_a_sum_of_exponentials_around_something_else_is_no_softmax,
    "bits of sums": partial(test_ops.check_bits, "f32", ("sub", "rsub", "where")),
    "numbers of all digits": partial(test_ops.check_bits, "f32", ("constants", "where")),
    "bits of signs": partial(test_ops.check_bits, "f32", ("sign", "where")),
    "bits of quotients": partial(test_ops.check_bits, "f32", ("div", "where")),
    "values are shared": test_ir_program.test_values_that_differ_in_anything_are_not_shared,
    "layouts": partial(test_layouts.check, "offsets, padded rows and transposed results", "exact"),
    "two run-time sizes": partial(test_layouts.check, "two run-time sizes", "exact"),
    "columns of two dimensions": partial(test_layouts.check, "columns of two dimensions", "exact"),
    "segments": partial(test_layouts.check, "sums of every segment and of all", "exact"),
    "positions": partial(test_layouts.check, "positions of columns", "exact"),
    "shared rows": partial(test_layouts.check, "a sum over rows of what some rows share", "exact"),
    "run-time strides of intermediates": test_plan_partition.test_intermediates_of_run_time_sizes_have_run_time_strides,
    "rows wait for column sums": test_structure.test_a_value_over_rows_waits_for_the_column_sum_it_depends_on,
    "straddling reductions": partial(
        test_structure.test_a_straddling_reduction_is_an_inner_one_and_then_an_outer_one, "sum"
    ),
    "bits of a quotient by 8": partial(
        test_ir_simplify.test_division_by_a_power_of_two_is_bit_for_bit_that_of_torch, 0.125, "f32"
    ),
    "a divisor beyond normal numbers": partial(test_ir_simplify.test_other_divisions_stay, 2.0**127),
    "products with zero": partial(test_ir_simplify.test_what_may_change_a_bit_stays, binary("mul", 0.0)),
    "casts to bf16 and back": partial(
        test_ir_simplify_constants.test_a_cast_to_a_narrower_dtype_and_back_stays, "f32", "bf16"
    ),
    "regions with a gap between rows": test_capture_regions.test_rows_with_gaps_between_them_stay_two_dimensions,
    "parts of dimensions": test_capture_refine.test_rows_and_columns_are_split_into_batches_and_heads,
    "variances": partial(test_capture_operations.test_variance_and_mean_are_both_results, (1,), 1),
    "positions along split dimensions": test_capture_operations.test_positions_are_counted_along_split_dimensions,
}

FAULTS: dict[str, Fault] = {
    # the header
    "lanes beyond the last column are reduced": Fault(
        HEADER,
        "return Vec<T>::set(old, fresh, lanes.count); }",
        "return fresh; }",
        "exact layer_norm_forward",
    ),
    "columns beyond the last whole vector are left out": Fault(
        HEADER, "if (column < end) body(", "if (column > end) body(", "exact row_column_sum"
    ),
    "the last whole vector of a row is left out": Fault(
        HEADER, "column + W <= end;", "column + W < end;", "exact rms_norm_backward, even"
    ),
    "rows beyond the last whole tile are left out": Fault(
        HEADER, "for (; row < border; ++row) body(row, Tile<1>{});", "row = border;", "exact row_column_sum"
    ),
    "a tile crosses the border of a batch element": Fault(
        HEADER, "std::min(end, (row / size + 1) * size)", "end", "exact qk_norm_forward"
    ),
    "a strided load is contiguous": Fault(HEADER, "elements[i] = p[i * stride];", "elements[i] = p[i];", "layouts"),
    "a strided store is contiguous": Fault(HEADER, "p[i * stride] = elements[i];", "p[i] = elements[i];", "layouts"),
    "half of the lanes are left out of a row's result": Fault(
        HEADER,
        "const double middle = add_lanes(middle_[0]) + add_lanes(middle_[1]);",
        "const double middle = add_lanes(middle_[0]);",
        "exact row_column_sum",
    ),
    "half of the lanes are left out of a row's largest": Fault(
        HEADER,
        "across_register(combine(v[0], v[1]), combine)",
        "across_register(v[0], combine)",
        "NaN and infinity",
    ),
    "the middle level of a sum is overwritten": Fault(
        HEADER, "middle_ = middle_ + low_;", "middle_ = low_;", "exact row_column_sum"
    ),
    "the upper level of a sum is overwritten": Fault(
        HEADER, "high_ = high_ + middle_;", "high_ = middle_;", "every split of long_rows"
    ),
    "the largest of a row begins with zero": Fault(
        HEADER, "-Limits::infinity() : Limits::min()", "T(0) : Limits::min()", "every split of one_sign"
    ),
    "the larger of two loses NaN": Fault(
        HEADER,
        "maximum(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) { return at::vec::maximum(x, y); }",
        "maximum(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) {\n"
        "  return VectorizedN<T, N>::blendv(y, x, x > y);\n}",
        "NaN and infinity in elements",
    ),
    "the smaller of two numbers loses NaN": Fault(
        HEADER, "{ return x != x || x < y ? x : y; }", "{ return x < y ? x : y; }", "NaN and infinity"
    ),
    "no less is taken for greater or equal, NaN included": Fault(
        HEADER,
        "WEFT_COMPARE(ge, >=)",
        "template <class T, int N>\n"
        "inline Mask ge(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) { return ~lt(x, y); }",
        "NaN and infinity in elements",
    ),
    "a cast to bfloat16 cuts digits off": Fault(
        HEADER,
        "    return Vec<To>(at::vec::convert<To, registers<To>, From, N>(v));",
        "    if constexpr (std::is_same_v<To, bf16> && std::is_same_v<From, float>) {\n"
        "      From wide[W];\n"
        "      To cut[W];\n"
        "      v.store(wide);\n"
        "      for (int i = 0; i < W; ++i)\n"
        "        cut[i] = To(static_cast<uint16_t>(__builtin_bit_cast(uint32_t, wide[i]) >> 16), To::from_bits());\n"
        "      return Vec<To>::loadu(cut);\n"
        "    } else return Vec<To>(at::vec::convert<To, registers<To>, From, N>(v));",
        "error of rms_norm_forward in bf16",
    ),
    "positions begin with one": Fault(
        HEADER,
        "arange(static_cast<T>(first), static_cast<T>(1))",
        "arange(static_cast<T>(first + 1), static_cast<T>(1))",
        "positions",
    ),
    "a sum of exponentials is not rescaled when the largest changes": Fault(
        HEADER, "sum * weight<T>(largest, top) + weight", "sum + weight", "column softmax"
    ),
    "sums of exponentials of chunks are not rescaled": Fault(
        HEADER, "all.sum * weight<double>(all.centre, top) +", "all.sum +", "column softmax"
    ),
    "nothing is special about minus infinity in a sum of exponentials": Fault(
        HEADER,
        "return where(eq(x, Vec<U>(static_cast<U>(start))), Vec<U>(U(0)), w::exp(x - top));",
        "return w::exp(x - top);",
        "infinities of a column softmax",
    ),
    "the distance between the means of chunks is left out": Fault(
        HEADER, " + difference * difference * Vec<double>(share * before)", "", "column variance"
    ),
    "a chunk takes differences from zero": Fault(
        HEADER, "if (first) pivot = x;", "if (first) pivot = x - x;", "column variance around 1000"
    ),
    # the pass over the rows
    "the last chunk is left out": Fault(
        "weft.backends.cpp.rows:Rows._chunk_sizes",
        "w::chunks_of(rows, rows_per_chunk)",
        "rows / rows_per_chunk",
        "exact row_column_sum",
    ),
    "the rows of a chunk begin one too early": Fault(
        "weft.backends.cpp.rows:Rows._chunks",
        "first = {number} * rows_per_chunk;",
        "first = std::max<int64_t>({number} * rows_per_chunk - 1, 0);",
        "exact row_column_sum",
    ),
    "chunks are not counted from the beginning of their segment": Fault(
        "weft.backends.cpp.rows:Rows._chunks",
        '"chunk % chunks" if self.segments else "chunk"',
        '"chunk"',
        "segments",
    ),
    "segments are not kept apart": Fault(
        "weft.plan.split:segments_of",
        "return tuple(r for r in rows if r in kept)",
        "return ()",
        "segments",
    ),
    "the first row of a tile is taken twice": Fault(
        "weft.backends.cpp.rows:Rows._each_row",
        'f"{first} + r"',
        'f"{first} + (r > 0 ? r - 1 : 0)"',
        "exact row_column_sum",
    ),
    "column sums of a chunk do not begin with zero": Fault(
        "weft.backends.cpp.rows:Rows._start_chunk",
        'self.out.line(f"w::fill({value.name}_chunk, {count}, {zero});")',
        "pass",
        "outputs are written whole",
    ),
    "two column sums lie in the same memory": Fault(
        "weft.backends.cpp.rows:Rows._partials",
        "{value.name}_partial = {value.name}_kept",
        "{value.name}_partial = {self.outer[0].name}_kept",
        "exact layer_norm_backward",
    ),
    "the sum of a tile replaces that of the tiles before": Fault(
        "weft.backends.cpp.rows:Rows._keep",
        'combined = COMBINE[value.op].format(f"w::load({at}, lanes)", f"{value.name}_tile")',
        'combined = f"{value.name}_tile"',
        "exact row_column_sum",
    ),
    "a value is held for one row of a tile only": Fault(
        "weft.backends.cpp.rows:Rows._held_at",
        "if self.is_per_row(name) and self.schedule.rows_per_tile > 1:",
        "if False:",
        "exact softmax_forward",
    ),
    "what rows share is added up in every row": Fault(
        "weft.backends.cpp.statements:Statements._guarded",
        "if d not in dims]",
        "if False]",
        "shared rows",
    ),
    # addresses and sizes
    "the offset of a buffer is left out": Fault(
        "weft.backends.cpp.names:Names._offsets",
        "[str(buffer.offset)] if buffer.offset else []",
        "[]",
        "layouts",
    ),
    "the stride of a row is a multiple of eight": Fault(
        "weft.backends.cpp.names:Names.stride",
        "return str(stride)",
        "return str(stride // 8 * 8 if isinstance(stride, int) else stride)",
        "layouts",
    ),
    "an input is read from another buffer": Fault(
        "weft.backends.cpp.text:_declare",
        "static_cast<const {kind}*>(buffers[{i}]);",
        "static_cast<const {kind}*>(buffers[{1 if i == 0 else i}]);",
        "exact rms_norm_backward, even",
    ),
    "a run-time size is another one": Fault(
        "weft.backends.cpp.text:_declare", "= parameters[{i}];", "= parameters[0];", "two run-time sizes"
    ),
    "the sum of a column is that of its neighbour": Fault(
        "weft.backends.cpp.statements:Statements._linear",
        "self.names.linear(tuple(d for d in self.columns if d in value.dims))",
        "self.names.linear(tuple(d for d in self.columns if d in value.dims)[-1:])",
        "columns of two dimensions",
    ),
    # expressions
    "a difference is taken the other way round": Fault(
        "weft.backends.c_expressions:expression",
        ".format(*operands,",
        '.format(*(operands[::-1] if op == "sub" else operands),',
        "bits of sums",
    ),
    "a quotient is taken the other way round": Fault(
        "weft.backends.c_expressions:expression",
        ".format(*operands,",
        '.format(*(operands[::-1] if op == "div" else operands),',
        "bits of quotients",
    ),
    "numbers are written with four digits": Fault(
        "weft.backends.c_expressions:literal",
        '{np.float32(number)!s}f"',
        '{float(number):.4e}f"',
        "numbers of all digits",
    ),
    # the finish
    "the first chunk is left out of the finish": Fault(
        "weft.backends.cpp.finish:Finish._chunks_in_order",
        "int64_t chunk = 0;",
        "int64_t chunk = 1;",
        "exact row_column_sum",
    ),
    "the finish takes the chunks of another segment": Fault(
        "weft.backends.cpp.finish:Finish._chunks_in_order",
        'f"(({self.names.linear(self.segments)}) * chunks + chunk)"',
        'f"((segments - 1 - ({self.names.linear(self.segments)})) * chunks + chunk)"',
        "segments",
    ),
    "the last chunk counts as many rows as the others": Fault(
        "weft.backends.cpp.finish:Finish._merge_statistics",
        "const int64_t more = std::min(rows_per_chunk, rows - chunk * rows_per_chunk);",
        "const int64_t more = rows_per_chunk;",
        "column variance",
    ),
    "the second block of columns of the finish begins with the first": Fault(
        "weft.backends.cpp.finish:Finish._total",
        'here = f"{value.name}_total + {self.columns[-1]} - block"',
        'here = f"{value.name}_total"',
        "exact row_column_sum",
    ),
    "chunks are added up in single precision": Fault(
        "weft.backends.cpp.finish:Finish._wide",
        'return "f64" if value.op == "sum" and value.dtype == "f32" else value.dtype',
        "return value.dtype",
        "error of row_column_sum",
    ),
    # the plan
    "the largest of nothing is zero": Fault(
        "weft.ir.ops:identity",
        'return float("-inf") if reduction == "max" else float("inf")',
        "return 0.0",
        "few rows",
    ),
    "an intermediate has the strides of fewer dimensions": Fault(
        "weft.plan.partition:_contiguous", "dims[i + 1 :]", "dims[i + 2 :]", "run-time strides of intermediates"
    ),
    "rows do not wait for the column sums they need": Fault(
        "weft.ir.structure:_find_cut",
        "over = found.dropped[arg] & set(value.dims)",
        "over = frozenset()",
        "rows wait for column sums",
    ),
    "a total is reduced along its rows only": Fault(
        "weft.ir.structure:split_straddling",
        "builder.reduce(value.op, inner, dims & set(rows))",
        "inner",
        "straddling reductions",
    ),
    "any quotient is a mean": Fault(
        "weft.ir.online:_is_count",
        'and number.attributes[0] == (count if op == "div" else 1 / count)',
        "",
        "no variance",
    ),
    "any largest element will do": Fault(
        "weft.ir.online:_sum_of_exponentials",
        "if largest.args[0] == difference.args[0] else None",
        "",
        "no softmax",
    ),
    # simplification
    "division by a power of two has the wrong exponent": Fault(
        "weft.ir.simplify:multiply_by_power_of_two", "1.0 / divisor", "2.0 / divisor", "bits of a quotient by 8"
    ),
    "the inverse of a power of two need not be normal": Fault(
        "weft.ir.simplify:multiply_by_power_of_two",
        "abs(exponent) > 100",
        "abs(exponent) > 1000",
        "a divisor beyond normal numbers",
    ),
    "a product with zero is zero": Fault(
        "weft.ir.simplify:drop_neutral",
        'if value.op == "mul" and _const(builder, args[0]) == 1:',
        'if value.op == "mul" and _const(builder, args[1]) == 0:\n'
        "        return args[1]\n"
        '    if value.op == "mul" and _const(builder, args[0]) == 1:',
        "products with zero",
    ),
    "a cast to a narrower dtype and back is nothing": Fault(
        "weft.ir.simplify:merge_casts",
        "if dtypes.preserves_value(source, inner.dtype):",
        "if True:",
        "casts to bf16 and back",
    ),
    "values of different dtypes are shared": Fault(
        "weft.ir.builder:Builder.op", "for a in attributes), dtype)", "for a in attributes))", "values are shared"
    ),
    # capture
    "the parts of a dimension are in the wrong order": Fault(
        "weft.capture.refine:Refinement._split_larger",
        "(self._fresh(quotient), self._fresh(self._size[small]))",
        "(self._fresh(self._size[small]), self._fresh(quotient))",
        "parts of dimensions",
    ),
    "rows with gaps between them are one dimension": Fault(
        "weft.capture.merge:_can_merge",
        "if contiguous != _value(strides[major], expressions):",
        "if False:",
        "regions with a gap between rows",
    ),
    "a mean is divided by the padded number of columns": Fault(
        "weft.ir.builder:Builder.count", "number *= size", "number *= -(-size // 16) * 16", "variances"
    ),
    "the step from row to row is left out of positions": Fault(
        "weft.capture.lowering:GroupLowering.positions",
        "stride = stride * self.refine.size(atom)",
        "stride = 1",
        "positions along split dimensions",
    ),
    "the sign of zero is one": Fault(
        "weft.capture.lower:_sign", 'node.op("gt", x, zero)', 'node.op("ge", x, zero)', "bits of signs"
    ),
}
