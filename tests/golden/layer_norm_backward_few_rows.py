# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=1x8192 warps=16 stages=1 chunks=0
# program layer_norm_backward_rows()
#   dim m = 100
#   dim n = 5120
#   input dy: bf16 [m:5120, n:1]
#   input x: bf16 [m:5120, n:1]
#   input weight: bf16 [n:1]
#   input mean: f32 [m:1]
#   input rstd: f32 [m:1]
#   cast: f32{m, n} = cast(x)
#   sub: f32{m, n} = sub(cast, mean)
#   mul: f32{m, n} = mul(sub, rstd)
#   cast_1: f32{m, n} = cast(dy)
#   cast_2: f32{n} = cast(weight)
#   mul_1: f32{m, n} = mul(cast_1, cast_2)
#   sum: f32{m} = sum[n](mul_1)
#   const: f32{} = const[5120.0]()
#   div: f32{m} = div(sum, const)
#   sub_1: f32{m, n} = sub(mul_1, div)
#   mul_2: f32{m, n} = mul(mul, mul_1)
#   sum_1: f32{m} = sum[n](mul_2)
#   div_1: f32{m} = div(sum_1, const)
#   mul_3: f32{m, n} = mul(mul, div_1)
#   sub_2: f32{m, n} = sub(sub_1, mul_3)
#   mul_4: f32{m, n} = mul(rstd, sub_2)
#   cast_3: bf16{m, n} = cast(mul_4)
#   output out0: bf16 [m:5120, n:1] = cast_3
# end
import triton
import triton.language as tl

from weft.render import weft_triton as w


@triton.jit
def weft_layer_norm_backward_rows(dy, x, weight, mean, rstd, out0):
    n = tl.arange(0, 8192)[None, :]
    column_exists = n < 5120
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    dy_at = dy + m * 5120
    x_at = x + m * 5120
    out0_at = out0 + m * 5120
    dy_tile = tl.load(dy_at + n, mask=column_exists, other=0)
    x_tile = tl.load(x_at + n, mask=column_exists, other=0)
    mean_row = tl.load(mean + m)
    rstd_row = tl.load(rstd + m)
    weight_tile = tl.load(weight + n, mask=column_exists, other=0)
    cast = w.to_f32(x_tile)
    sub = cast - mean_row
    mul = sub * rstd_row
    cast_1 = w.to_f32(dy_tile)
    cast_2 = w.to_f32(weight_tile)
    mul_1 = cast_1 * cast_2
    mul_2 = mul * mul_1
    sum, sum_1 = w.sums((tl.where(column_exists, mul_1, 0.0), tl.where(column_exists, mul_2, 0.0)), 1)
    div = tl.div_rn(sum, 5120.0)
    div_1 = tl.div_rn(sum_1, 5120.0)
    sub_1 = mul_1 - div
    mul_3 = mul * div_1
    sub_2 = sub_1 - mul_3
    mul_4 = rstd_row * sub_2
    cast_3 = mul_4.to(tl.bfloat16)
    tl.store(out0_at + n, cast_3, mask=column_exists)

# schedule COLUMN rows=(m) columns=(n) segments=() rows_per_tile=128 finish=none backend=triton pieces=1x16 warps=8 stages=1 chunks=1
# program layer_norm_backward_columns()
#   dim m = 100
#   dim n = 5120
#   input dy: bf16 [m:5120, n:1]
#   input x: bf16 [m:5120, n:1]
#   input mean: f32 [m:1]
#   input rstd: f32 [m:1]
#   cast: f32{m, n} = cast(x)
#   sub: f32{m, n} = sub(cast, mean)
#   mul: f32{m, n} = mul(sub, rstd)
#   cast_1: f32{m, n} = cast(dy)
#   mul_1: f32{m, n} = mul(cast_1, mul)
#   sum: f32{n} = sum[m](mul_1)
#   sum_1: f32{n} = sum[m](cast_1)
#   cast_2: bf16{n} = cast(sum)
#   cast_3: bf16{n} = cast(sum_1)
#   output out1: bf16 [n:1] = cast_2
#   output out2: bf16 [n:1] = cast_3
# end
import triton
import triton.language as tl

from weft.render import weft_triton as w


@triton.jit
def weft_layer_norm_backward_columns(dy, x, mean, rstd, out1, out2):
    n = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    sum_sum = tl.full([128, 16], 0.0, tl.float32)
    sum_1_sum = tl.full([128, 16], 0.0, tl.float32)
    m = tl.arange(0, 128)[:, None]
    row_exists = m < 100
    dy_at = dy + m * 5120
    x_at = x + m * 5120
    dy_tile = tl.load(dy_at + n, mask=row_exists, other=0)
    x_tile = tl.load(x_at + n, mask=row_exists, other=0)
    mean_row = tl.load(mean + m, mask=row_exists, other=0)
    rstd_row = tl.load(rstd + m, mask=row_exists, other=0)
    cast = w.to_f32(x_tile)
    sub = cast - mean_row
    mul = sub * rstd_row
    cast_1 = w.to_f32(dy_tile)
    mul_1 = cast_1 * mul
    sum_sum = sum_sum + tl.where(row_exists, mul_1, 0.0)
    sum_1_sum = sum_1_sum + tl.where(row_exists, cast_1, 0.0)
    sum = tl.sum(sum_sum, 0, keep_dims=True)
    sum_1 = tl.sum(sum_1_sum, 0, keep_dims=True)
    cast_2 = sum.to(tl.bfloat16)
    cast_3 = sum_1.to(tl.bfloat16)
    tl.store(out1 + n, cast_2)
    tl.store(out2 + n, cast_3)
