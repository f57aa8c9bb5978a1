# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=3x2048 warps=8 stages=1 chunks=0 hoisted register_cap=255
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

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_layer_norm_backward_rows(dy, x, weight, mean, rstd, out0):
    n_a = tl.arange(0, 2048)[None, :]
    n_b = 2048 + tl.arange(0, 2048)[None, :]
    n_c = 4096 + tl.arange(0, 2048)[None, :]
    column_exists_c = n_c < 5120
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    dy_at = dy + m * 5120
    x_at = x + m * 5120
    out0_at = out0 + m * 5120
    dy_tile_a = tl.load(dy_at + n_a)
    dy_tile_b = tl.load(dy_at + n_b)
    dy_tile_c = tl.load(dy_at + n_c, mask=column_exists_c, other=0)
    x_tile_a = tl.load(x_at + n_a)
    x_tile_b = tl.load(x_at + n_b)
    x_tile_c = tl.load(x_at + n_c, mask=column_exists_c, other=0)
    mean_row = tl.load(mean + m)
    rstd_row = tl.load(rstd + m)
    weight_tile_a = tl.load(weight + n_a)
    weight_tile_b = tl.load(weight + n_b)
    weight_tile_c = tl.load(weight + n_c, mask=column_exists_c, other=0)
    cast_a = w.to_f32(x_tile_a)
    sub_a = cast_a - mean_row
    mul_a = sub_a * rstd_row
    cast_1_a = w.to_f32(dy_tile_a)
    cast_2_a = w.to_f32(weight_tile_a)
    mul_1_a = cast_1_a * cast_2_a
    mul_2_a = mul_a * mul_1_a
    cast_b = w.to_f32(x_tile_b)
    sub_b = cast_b - mean_row
    mul_b = sub_b * rstd_row
    cast_1_b = w.to_f32(dy_tile_b)
    cast_2_b = w.to_f32(weight_tile_b)
    mul_1_b = cast_1_b * cast_2_b
    mul_2_b = mul_b * mul_1_b
    cast_c = w.to_f32(x_tile_c)
    sub_c = cast_c - mean_row
    mul_c = sub_c * rstd_row
    cast_1_c = w.to_f32(dy_tile_c)
    cast_2_c = w.to_f32(weight_tile_c)
    mul_1_c = cast_1_c * cast_2_c
    mul_2_c = mul_c * mul_1_c
    sum, sum_1 = w.sums((mul_1_a + mul_1_b + tl.where(column_exists_c, mul_1_c, 0.0), mul_2_a + mul_2_b + tl.where(column_exists_c, mul_2_c, 0.0)), 1)
    div = tl.div_rn(sum, 5120.0)
    div_1 = tl.div_rn(sum_1, 5120.0)
    sub_1_a = mul_1_a - div
    mul_3_a = mul_a * div_1
    sub_2_a = sub_1_a - mul_3_a
    mul_4_a = rstd_row * sub_2_a
    cast_3_a = mul_4_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_3_a)
    sub_1_b = mul_1_b - div
    mul_3_b = mul_b * div_1
    sub_2_b = sub_1_b - mul_3_b
    mul_4_b = rstd_row * sub_2_b
    cast_3_b = mul_4_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_3_b)
    sub_1_c = mul_1_c - div
    mul_3_c = mul_c * div_1
    sub_2_c = sub_1_c - mul_3_c
    mul_4_c = rstd_row * sub_2_c
    cast_3_c = mul_4_c.to(tl.bfloat16)
    tl.store(out0_at + n_c, cast_3_c, mask=column_exists_c)

# schedule COLUMN rows=(m) columns=(n) segments=() rows_per_tile=128 finish=none backend=triton pieces=1x16 warps=4 stages=1 chunks=1 register_cap=168
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

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_layer_norm_backward_columns(dy, x, mean, rstd, out1, out2):
    n = tl.program_id(1) * 16 + tl.arange(0, 16)[None, :]
    sum_sum = tl.full([128, 16], 0.0, tl.float32)
    sum_1_sum = tl.full([128, 16], 0.0, tl.float32)
    m = tl.arange(0, 128)[:, None]
    row_exists = m < 100
    m = tl.minimum(m, 99)
    dy_at = dy + m * 5120
    x_at = x + m * 5120
    mean_row = tl.load(mean + m)
    rstd_row = tl.load(rstd + m)
    dy_tile = tl.load(dy_at + n)
    x_tile = tl.load(x_at + n)
    cast = w.to_f32(x_tile)
    sub = cast - mean_row
    mul = sub * rstd_row
    cast_1 = w.to_f32(dy_tile)
    mul_1 = cast_1 * mul
    sum_sum = tl.where(row_exists, sum_sum + mul_1, sum_sum)
    sum_1_sum = tl.where(row_exists, sum_1_sum + cast_1, sum_1_sum)
    sum = tl.sum(sum_sum, 0, keep_dims=True)
    sum_1 = tl.sum(sum_1_sum, 0, keep_dims=True)
    cast_2 = sum.to(tl.bfloat16)
    cast_3 = sum_1.to(tl.bfloat16)
    tl.store(out1 + n, cast_2)
    tl.store(out2 + n, cast_3)
