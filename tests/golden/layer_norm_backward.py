# schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=1 finish=same backend=triton pieces=5x1024 warps=4 stages=3 chunks=264
# program layer_norm_backward()
#   dim m = 32768
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
#   mul_5: f32{m, n} = mul(cast_1, mul)
#   sum_2: f32{n} = sum[m](mul_5)
#   sum_3: f32{n} = sum[m](cast_1)
#   cast_3: bf16{m, n} = cast(mul_4)
#   cast_4: bf16{n} = cast(sum_2)
#   cast_5: bf16{n} = cast(sum_3)
#   output out0: bf16 [m:5120, n:1] = cast_3
#   output out1: bf16 [n:1] = cast_4
#   output out2: bf16 [n:1] = cast_5
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_layer_norm_backward(dy, x, weight, mean, rstd, out0, out1, out2, sum_2_partial, sum_3_partial, barrier):
    n_a = tl.arange(0, 1024)[None, :]
    n_b = 1024 + tl.arange(0, 1024)[None, :]
    n_c = 2048 + tl.arange(0, 1024)[None, :]
    n_d = 3072 + tl.arange(0, 1024)[None, :]
    n_e = 4096 + tl.arange(0, 1024)[None, :]
    for chunk in range(tl.program_id(0), 264, tl.num_programs(0)):
        weight_tile_a = tl.load(weight + n_a)
        weight_tile_b = tl.load(weight + n_b)
        weight_tile_c = tl.load(weight + n_c)
        weight_tile_d = tl.load(weight + n_d)
        weight_tile_e = tl.load(weight + n_e)
        sum_2_sum_a = tl.full([1, 1024], 0.0, tl.float32)
        sum_2_sum_b = tl.full([1, 1024], 0.0, tl.float32)
        sum_2_sum_c = tl.full([1, 1024], 0.0, tl.float32)
        sum_2_sum_d = tl.full([1, 1024], 0.0, tl.float32)
        sum_2_sum_e = tl.full([1, 1024], 0.0, tl.float32)
        sum_3_sum_a = tl.full([1, 1024], 0.0, tl.float32)
        sum_3_sum_b = tl.full([1, 1024], 0.0, tl.float32)
        sum_3_sum_c = tl.full([1, 1024], 0.0, tl.float32)
        sum_3_sum_d = tl.full([1, 1024], 0.0, tl.float32)
        sum_3_sum_e = tl.full([1, 1024], 0.0, tl.float32)
        for tile in tl.range(chunk, 32768, 264, num_stages=3):
            m = tile + tl.arange(0, 1)[:, None]
            dy_at = dy + m * 5120
            x_at = x + m * 5120
            out0_at = out0 + m * 5120
            dy_tile_a = tl.load(dy_at + n_a)
            dy_tile_b = tl.load(dy_at + n_b)
            dy_tile_c = tl.load(dy_at + n_c)
            dy_tile_d = tl.load(dy_at + n_d)
            dy_tile_e = tl.load(dy_at + n_e)
            x_tile_a = tl.load(x_at + n_a)
            x_tile_b = tl.load(x_at + n_b)
            x_tile_c = tl.load(x_at + n_c)
            x_tile_d = tl.load(x_at + n_d)
            x_tile_e = tl.load(x_at + n_e)
            mean_row = tl.load(mean + m)
            rstd_row = tl.load(rstd + m)
            cast_a = w.to_f32(x_tile_a)
            sub_a = cast_a - mean_row
            mul_a = sub_a * rstd_row
            cast_1_a = w.to_f32(dy_tile_a)
            cast_2_a = w.to_f32(weight_tile_a)
            mul_1_a = cast_1_a * cast_2_a
            mul_2_a = mul_a * mul_1_a
            mul_5_a = cast_1_a * mul_a
            sum_2_sum_a = sum_2_sum_a + mul_5_a
            sum_3_sum_a = sum_3_sum_a + cast_1_a
            cast_b = w.to_f32(x_tile_b)
            sub_b = cast_b - mean_row
            mul_b = sub_b * rstd_row
            cast_1_b = w.to_f32(dy_tile_b)
            cast_2_b = w.to_f32(weight_tile_b)
            mul_1_b = cast_1_b * cast_2_b
            mul_2_b = mul_b * mul_1_b
            mul_5_b = cast_1_b * mul_b
            sum_2_sum_b = sum_2_sum_b + mul_5_b
            sum_3_sum_b = sum_3_sum_b + cast_1_b
            cast_c = w.to_f32(x_tile_c)
            sub_c = cast_c - mean_row
            mul_c = sub_c * rstd_row
            cast_1_c = w.to_f32(dy_tile_c)
            cast_2_c = w.to_f32(weight_tile_c)
            mul_1_c = cast_1_c * cast_2_c
            mul_2_c = mul_c * mul_1_c
            mul_5_c = cast_1_c * mul_c
            sum_2_sum_c = sum_2_sum_c + mul_5_c
            sum_3_sum_c = sum_3_sum_c + cast_1_c
            cast_d = w.to_f32(x_tile_d)
            sub_d = cast_d - mean_row
            mul_d = sub_d * rstd_row
            cast_1_d = w.to_f32(dy_tile_d)
            cast_2_d = w.to_f32(weight_tile_d)
            mul_1_d = cast_1_d * cast_2_d
            mul_2_d = mul_d * mul_1_d
            mul_5_d = cast_1_d * mul_d
            sum_2_sum_d = sum_2_sum_d + mul_5_d
            sum_3_sum_d = sum_3_sum_d + cast_1_d
            cast_e = w.to_f32(x_tile_e)
            sub_e = cast_e - mean_row
            mul_e = sub_e * rstd_row
            cast_1_e = w.to_f32(dy_tile_e)
            cast_2_e = w.to_f32(weight_tile_e)
            mul_1_e = cast_1_e * cast_2_e
            mul_2_e = mul_e * mul_1_e
            mul_5_e = cast_1_e * mul_e
            sum_2_sum_e = sum_2_sum_e + mul_5_e
            sum_3_sum_e = sum_3_sum_e + cast_1_e
            sum, sum_1 = w.sums((mul_1_a + mul_1_b + mul_1_c + mul_1_d + mul_1_e, mul_2_a + mul_2_b + mul_2_c + mul_2_d + mul_2_e), 1)
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
            tl.store(out0_at + n_c, cast_3_c)
            sub_1_d = mul_1_d - div
            mul_3_d = mul_d * div_1
            sub_2_d = sub_1_d - mul_3_d
            mul_4_d = rstd_row * sub_2_d
            cast_3_d = mul_4_d.to(tl.bfloat16)
            tl.store(out0_at + n_d, cast_3_d)
            sub_1_e = mul_1_e - div
            mul_3_e = mul_e * div_1
            sub_2_e = sub_1_e - mul_3_e
            mul_4_e = rstd_row * sub_2_e
            cast_3_e = mul_4_e.to(tl.bfloat16)
            tl.store(out0_at + n_e, cast_3_e)
        tl.store(sum_2_partial + chunk * 5120 + n_a, tl.sum(sum_2_sum_a, 0, keep_dims=True))
        tl.store(sum_2_partial + chunk * 5120 + n_b, tl.sum(sum_2_sum_b, 0, keep_dims=True))
        tl.store(sum_2_partial + chunk * 5120 + n_c, tl.sum(sum_2_sum_c, 0, keep_dims=True))
        tl.store(sum_2_partial + chunk * 5120 + n_d, tl.sum(sum_2_sum_d, 0, keep_dims=True))
        tl.store(sum_2_partial + chunk * 5120 + n_e, tl.sum(sum_2_sum_e, 0, keep_dims=True))
        tl.store(sum_3_partial + chunk * 5120 + n_a, tl.sum(sum_3_sum_a, 0, keep_dims=True))
        tl.store(sum_3_partial + chunk * 5120 + n_b, tl.sum(sum_3_sum_b, 0, keep_dims=True))
        tl.store(sum_3_partial + chunk * 5120 + n_c, tl.sum(sum_3_sum_c, 0, keep_dims=True))
        tl.store(sum_3_partial + chunk * 5120 + n_d, tl.sum(sum_3_sum_d, 0, keep_dims=True))
        tl.store(sum_3_partial + chunk * 5120 + n_e, tl.sum(sum_3_sum_e, 0, keep_dims=True))
    w.wait_for_all(barrier)
    weft_layer_norm_backward_finish(dy, x, weight, mean, rstd, out0, out1, out2, sum_2_partial, sum_3_partial, barrier)


@triton.jit
def weft_layer_norm_backward_finish(dy, x, weight, mean, rstd, out0, out1, out2, sum_2_partial, sum_3_partial, barrier):
    for task in range(tl.program_id(0), 160, tl.num_programs(0)):
        n = task * 32 + tl.arange(0, 32)[None, :]
        sum_2_sum = tl.full([128, 32], 0.0, tl.float32)
        sum_3_sum = tl.full([128, 32], 0.0, tl.float32)
        for start in tl.static_range(0, 264, 128):
            part = start + tl.arange(0, 128)[:, None]
            sum_2_sum = sum_2_sum + tl.load(sum_2_partial + part * 5120 + n, mask=(part < 264), other=0.0, cache_modifier=".cg")
            sum_3_sum = sum_3_sum + tl.load(sum_3_partial + part * 5120 + n, mask=(part < 264), other=0.0, cache_modifier=".cg")
        sum_2 = tl.sum(sum_2_sum, 0, keep_dims=True)
        sum_3 = tl.sum(sum_3_sum, 0, keep_dims=True)
        cast_4 = sum_2.to(tl.bfloat16)
        cast_5 = sum_3.to(tl.bfloat16)
        tl.store(out1 + n, cast_4)
        tl.store(out2 + n, cast_5)
