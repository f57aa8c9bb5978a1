# schedule ONE_SHOT rows=(m0, m1) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=1x8192 warps=16 stages=1 chunks=0
# program modulated_layer_norm_backward_rows()
#   dim m0 = 5
#   dim m1 = 20
#   dim n = 5120
#   input dy: bf16 [m0:102400, m1:5120, n:1]
#   input x: bf16 [m0:102400, m1:5120, n:1]
#   input scale: bf16 [m0:5120, n:1]
#   input mean: f32 [m0:20, m1:1]
#   input rstd: f32 [m0:20, m1:1]
#   cast: f32{m0, m1, n} = cast(x)
#   sub: f32{m0, m1, n} = sub(cast, mean)
#   mul: f32{m0, m1, n} = mul(sub, rstd)
#   cast_1: f32{m0, m1, n} = cast(dy)
#   cast_2: f32{m0, n} = cast(scale)
#   const: f32{} = const[1.0]()
#   add: f32{m0, n} = add(cast_2, const)
#   mul_1: f32{m0, m1, n} = mul(cast_1, add)
#   sum: f32{m0, m1} = sum[n](mul_1)
#   const_1: f32{} = const[5120.0]()
#   div: f32{m0, m1} = div(sum, const_1)
#   sub_1: f32{m0, m1, n} = sub(mul_1, div)
#   mul_2: f32{m0, m1, n} = mul(mul, mul_1)
#   sum_1: f32{m0, m1} = sum[n](mul_2)
#   div_1: f32{m0, m1} = div(sum_1, const_1)
#   mul_3: f32{m0, m1, n} = mul(mul, div_1)
#   sub_2: f32{m0, m1, n} = sub(sub_1, mul_3)
#   mul_4: f32{m0, m1, n} = mul(rstd, sub_2)
#   cast_3: bf16{m0, m1, n} = cast(mul_4)
#   output out0: bf16 [m0:102400, m1:5120, n:1] = cast_3
# end
import triton
import triton.language as tl

from weft.render import weft_triton as w


@triton.jit
def weft_modulated_layer_norm_backward_rows(dy, x, scale, mean, rstd, out0):
    n = tl.arange(0, 8192)[None, :]
    column_exists = n < 5120
    tile = tl.program_id(0)
    row = tile + tl.arange(0, 1)[:, None]
    dy_at = dy + row * 5120
    x_at = x + row * 5120
    scale_at = scale + (row // 20) * 5120
    out0_at = out0 + row * 5120
    dy_tile = tl.load(dy_at + n, mask=column_exists, other=0)
    x_tile = tl.load(x_at + n, mask=column_exists, other=0)
    scale_tile = tl.load(scale_at + n, mask=column_exists, other=0)
    mean_row = tl.load(mean + row)
    rstd_row = tl.load(rstd + row)
    cast = w.to_f32(x_tile)
    sub = cast - mean_row
    mul = sub * rstd_row
    cast_1 = w.to_f32(dy_tile)
    cast_2 = w.to_f32(scale_tile)
    add = cast_2 + 1.0
    mul_1 = cast_1 * add
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

# schedule COLUMN rows=(m0, m1) columns=(n) segments=(m0) rows_per_tile=32 finish=none backend=triton pieces=1x16 warps=4 stages=1 chunks=1
# program modulated_layer_norm_backward_columns()
#   dim m0 = 5
#   dim m1 = 20
#   dim n = 5120
#   input dy: bf16 [m0:102400, m1:5120, n:1]
#   input x: bf16 [m0:102400, m1:5120, n:1]
#   input mean: f32 [m0:20, m1:1]
#   input rstd: f32 [m0:20, m1:1]
#   cast: f32{m0, m1, n} = cast(x)
#   sub: f32{m0, m1, n} = sub(cast, mean)
#   mul: f32{m0, m1, n} = mul(sub, rstd)
#   cast_1: f32{m0, m1, n} = cast(dy)
#   mul_1: f32{m0, m1, n} = mul(cast_1, mul)
#   sum: f32{m0, n} = sum[m1](mul_1)
#   sum_1: f32{m0, n} = sum[m1](cast_1)
#   cast_2: bf16{m0, n} = cast(sum)
#   cast_3: bf16{m0, n} = cast(sum_1)
#   output out1: bf16 [m0:5120, n:1] = cast_2
#   output out2: bf16 [m0:5120, n:1] = cast_3
# end
import triton
import triton.language as tl

from weft.render import weft_triton as w


@triton.jit
def weft_modulated_layer_norm_backward_columns(dy, x, mean, rstd, out1, out2):
    n = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    m0 = tl.program_id(0)
    sum_sum = tl.full([32, 16], 0.0, tl.float32)
    sum_1_sum = tl.full([32, 16], 0.0, tl.float32)
    m1 = tl.arange(0, 32)[:, None]
    row_exists = m1 < 20
    dy_at = dy + m0 * 102400 + m1 * 5120
    x_at = x + m0 * 102400 + m1 * 5120
    dy_tile = tl.load(dy_at + n, mask=row_exists, other=0)
    x_tile = tl.load(x_at + n, mask=row_exists, other=0)
    mean_row = tl.load(mean + m0 * 20 + m1, mask=row_exists, other=0)
    rstd_row = tl.load(rstd + m0 * 20 + m1, mask=row_exists, other=0)
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
    tl.store(out1 + m0 * 5120 + n, cast_2)
    tl.store(out2 + m0 * 5120 + n, cast_3)
