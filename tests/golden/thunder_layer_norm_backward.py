# schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=1 finish=same backend=triton pieces=5x1024 warps=4 stages=3 chunks=264 remat=inputs
# program thunder_layer_norm_backward()
#   dim m = 32768
#   dim n = 5120
#   input weight: bf16 [n:1]
#   input mean: f32 [m:1]
#   input dy: bf16 [m:5120, n:1]
#   input x: bf16 [m:5120, n:1]
#   input rstd: f32 [m:1]
#   cast: f32{m, n} = cast(x)
#   sub: f32{m, n} = sub(cast, mean)
#   cast_1: f32{n} = cast(weight)
#   cast_2: f32{m, n} = cast(dy)
#   mul: f32{m, n} = mul(cast_1, cast_2)
#   mul_1: f32{m, n} = mul(sub, rstd)
#   sum: f32{n} = sum[m](cast_2)
#   mul_2: f32{m, n} = mul(cast_2, mul_1)
#   sum_1: f32{n} = sum[m](mul_2)
#   mul_3: f32{m, n} = mul(rstd, mul)
#   mul_4: f32{m, n} = mul(sub, mul)
#   sum_2: f32{m} = sum[n](mul_4)
#   neg: f32{m, n} = neg(mul_3)
#   sum_3: f32{m} = sum[n](neg)
#   const: f32{} = const[-0.5]()
#   mul_5: f32{m} = mul(sum_2, const)
#   mul_6: f32{m} = mul(rstd, rstd)
#   mul_7: f32{m} = mul(mul_6, rstd)
#   mul_8: f32{m} = mul(mul_5, mul_7)
#   const_1: f32{} = const[0.000195313]()
#   mul_9: f32{m} = mul(sum_3, const_1)
#   const_2: f32{} = const[0.000390625]()
#   mul_10: f32{m} = mul(mul_8, const_2)
#   mul_11: f32{m, n} = mul(mul_10, sub)
#   add: f32{m, n} = add(mul_3, mul_11)
#   add_1: f32{m, n} = add(add, mul_9)
#   cast_3: bf16{m, n} = cast(add_1)
#   cast_4: bf16{n} = cast(sum_1)
#   cast_5: bf16{n} = cast(sum)
#   output out0: bf16 [m:5120, n:1] = cast_3
#   output out1: bf16 [n:1] = cast_4
#   output out2: bf16 [n:1] = cast_5
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_thunder_layer_norm_backward(weight, mean, dy, x, rstd, out0, out1, out2, sum_partial, sum_1_partial, barrier):
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
        sum_sum_a = tl.full([1, 1024], 0.0, tl.float32)
        sum_sum_b = tl.full([1, 1024], 0.0, tl.float32)
        sum_sum_c = tl.full([1, 1024], 0.0, tl.float32)
        sum_sum_d = tl.full([1, 1024], 0.0, tl.float32)
        sum_sum_e = tl.full([1, 1024], 0.0, tl.float32)
        sum_1_sum_a = tl.full([1, 1024], 0.0, tl.float32)
        sum_1_sum_b = tl.full([1, 1024], 0.0, tl.float32)
        sum_1_sum_c = tl.full([1, 1024], 0.0, tl.float32)
        sum_1_sum_d = tl.full([1, 1024], 0.0, tl.float32)
        sum_1_sum_e = tl.full([1, 1024], 0.0, tl.float32)
        for tile in tl.range(chunk, 32768, 264, num_stages=3):
            m = tile + tl.arange(0, 1)[:, None]
            dy_at = dy + m * 5120
            x_at = x + m * 5120
            out0_at = out0 + m * 5120
            mean_row = tl.load(mean + m)
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
            rstd_row = tl.load(rstd + m)
            mul_6 = rstd_row * rstd_row
            mul_7 = mul_6 * rstd_row
            cast_a = w.to_f32(x_tile_a)
            sub_a = cast_a - mean_row
            cast_1_a = w.to_f32_again(weight_tile_a)
            cast_2_a = w.to_f32(dy_tile_a)
            mul_a = cast_1_a * cast_2_a
            mul_1_a = sub_a * rstd_row
            mul_2_a = cast_2_a * mul_1_a
            mul_3_a = rstd_row * mul_a
            mul_4_a = sub_a * mul_a
            neg_a = -1.0 * mul_3_a
            sum_sum_a = sum_sum_a + cast_2_a
            sum_1_sum_a = sum_1_sum_a + mul_2_a
            cast_b = w.to_f32(x_tile_b)
            sub_b = cast_b - mean_row
            cast_1_b = w.to_f32_again(weight_tile_b)
            cast_2_b = w.to_f32(dy_tile_b)
            mul_b = cast_1_b * cast_2_b
            mul_1_b = sub_b * rstd_row
            mul_2_b = cast_2_b * mul_1_b
            mul_3_b = rstd_row * mul_b
            mul_4_b = sub_b * mul_b
            neg_b = -1.0 * mul_3_b
            sum_sum_b = sum_sum_b + cast_2_b
            sum_1_sum_b = sum_1_sum_b + mul_2_b
            cast_c = w.to_f32(x_tile_c)
            sub_c = cast_c - mean_row
            cast_1_c = w.to_f32_again(weight_tile_c)
            cast_2_c = w.to_f32(dy_tile_c)
            mul_c = cast_1_c * cast_2_c
            mul_1_c = sub_c * rstd_row
            mul_2_c = cast_2_c * mul_1_c
            mul_3_c = rstd_row * mul_c
            mul_4_c = sub_c * mul_c
            neg_c = -1.0 * mul_3_c
            sum_sum_c = sum_sum_c + cast_2_c
            sum_1_sum_c = sum_1_sum_c + mul_2_c
            cast_d = w.to_f32(x_tile_d)
            sub_d = cast_d - mean_row
            cast_1_d = w.to_f32_again(weight_tile_d)
            cast_2_d = w.to_f32(dy_tile_d)
            mul_d = cast_1_d * cast_2_d
            mul_1_d = sub_d * rstd_row
            mul_2_d = cast_2_d * mul_1_d
            mul_3_d = rstd_row * mul_d
            mul_4_d = sub_d * mul_d
            neg_d = -1.0 * mul_3_d
            sum_sum_d = sum_sum_d + cast_2_d
            sum_1_sum_d = sum_1_sum_d + mul_2_d
            cast_e = w.to_f32(x_tile_e)
            sub_e = cast_e - mean_row
            cast_1_e = w.to_f32_again(weight_tile_e)
            cast_2_e = w.to_f32(dy_tile_e)
            mul_e = cast_1_e * cast_2_e
            mul_1_e = sub_e * rstd_row
            mul_2_e = cast_2_e * mul_1_e
            mul_3_e = rstd_row * mul_e
            mul_4_e = sub_e * mul_e
            neg_e = -1.0 * mul_3_e
            sum_sum_e = sum_sum_e + cast_2_e
            sum_1_sum_e = sum_1_sum_e + mul_2_e
            sum_2, sum_3 = w.sums((mul_4_a + mul_4_b + mul_4_c + mul_4_d + mul_4_e, neg_a + neg_b + neg_c + neg_d + neg_e), 1)
            mul_5 = sum_2 * -0.5
            mul_8 = mul_5 * mul_7
            mul_9 = sum_3 * 0.000195313
            mul_10 = mul_8 * 0.000390625
            cast_a = w.to_f32_again(x_tile_a)
            sub_a = cast_a - mean_row
            cast_1_a = w.to_f32_again(weight_tile_a)
            cast_2_a = w.to_f32_again(dy_tile_a)
            mul_a = cast_1_a * cast_2_a
            mul_3_a = rstd_row * mul_a
            mul_11_a = mul_10 * sub_a
            add_a = mul_3_a + mul_11_a
            add_1_a = add_a + mul_9
            cast_3_a = add_1_a.to(tl.bfloat16)
            tl.store(out0_at + n_a, cast_3_a)
            cast_b = w.to_f32_again(x_tile_b)
            sub_b = cast_b - mean_row
            cast_1_b = w.to_f32_again(weight_tile_b)
            cast_2_b = w.to_f32_again(dy_tile_b)
            mul_b = cast_1_b * cast_2_b
            mul_3_b = rstd_row * mul_b
            mul_11_b = mul_10 * sub_b
            add_b = mul_3_b + mul_11_b
            add_1_b = add_b + mul_9
            cast_3_b = add_1_b.to(tl.bfloat16)
            tl.store(out0_at + n_b, cast_3_b)
            cast_c = w.to_f32_again(x_tile_c)
            sub_c = cast_c - mean_row
            cast_1_c = w.to_f32_again(weight_tile_c)
            cast_2_c = w.to_f32_again(dy_tile_c)
            mul_c = cast_1_c * cast_2_c
            mul_3_c = rstd_row * mul_c
            mul_11_c = mul_10 * sub_c
            add_c = mul_3_c + mul_11_c
            add_1_c = add_c + mul_9
            cast_3_c = add_1_c.to(tl.bfloat16)
            tl.store(out0_at + n_c, cast_3_c)
            cast_d = w.to_f32_again(x_tile_d)
            sub_d = cast_d - mean_row
            cast_1_d = w.to_f32_again(weight_tile_d)
            cast_2_d = w.to_f32_again(dy_tile_d)
            mul_d = cast_1_d * cast_2_d
            mul_3_d = rstd_row * mul_d
            mul_11_d = mul_10 * sub_d
            add_d = mul_3_d + mul_11_d
            add_1_d = add_d + mul_9
            cast_3_d = add_1_d.to(tl.bfloat16)
            tl.store(out0_at + n_d, cast_3_d)
            cast_e = w.to_f32_again(x_tile_e)
            sub_e = cast_e - mean_row
            cast_1_e = w.to_f32_again(weight_tile_e)
            cast_2_e = w.to_f32_again(dy_tile_e)
            mul_e = cast_1_e * cast_2_e
            mul_3_e = rstd_row * mul_e
            mul_11_e = mul_10 * sub_e
            add_e = mul_3_e + mul_11_e
            add_1_e = add_e + mul_9
            cast_3_e = add_1_e.to(tl.bfloat16)
            tl.store(out0_at + n_e, cast_3_e)
        tl.store(sum_partial + chunk * 5120 + n_a, tl.sum(sum_sum_a, 0, keep_dims=True))
        tl.store(sum_partial + chunk * 5120 + n_b, tl.sum(sum_sum_b, 0, keep_dims=True))
        tl.store(sum_partial + chunk * 5120 + n_c, tl.sum(sum_sum_c, 0, keep_dims=True))
        tl.store(sum_partial + chunk * 5120 + n_d, tl.sum(sum_sum_d, 0, keep_dims=True))
        tl.store(sum_partial + chunk * 5120 + n_e, tl.sum(sum_sum_e, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n_a, tl.sum(sum_1_sum_a, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n_b, tl.sum(sum_1_sum_b, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n_c, tl.sum(sum_1_sum_c, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n_d, tl.sum(sum_1_sum_d, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n_e, tl.sum(sum_1_sum_e, 0, keep_dims=True))
    w.wait_for_all(barrier)
    weft_thunder_layer_norm_backward_finish(weight, mean, dy, x, rstd, out0, out1, out2, sum_partial, sum_1_partial, barrier)


@triton.jit
def weft_thunder_layer_norm_backward_finish(weight, mean, dy, x, rstd, out0, out1, out2, sum_partial, sum_1_partial, barrier):
    for task in range(tl.program_id(0), 160, tl.num_programs(0)):
        n = task * 32 + tl.arange(0, 32)[None, :]
        sum_sum = tl.full([128, 32], 0.0, tl.float32)
        sum_1_sum = tl.full([128, 32], 0.0, tl.float32)
        for start in tl.static_range(0, 264, 128):
            part = start + tl.arange(0, 128)[:, None]
            sum_sum = sum_sum + tl.load(sum_partial + part * 5120 + n, mask=(part < 264), other=0.0, cache_modifier=".cg")
            sum_1_sum = sum_1_sum + tl.load(sum_1_partial + part * 5120 + n, mask=(part < 264), other=0.0, cache_modifier=".cg")
        sum = tl.sum(sum_sum, 0, keep_dims=True)
        sum_1 = tl.sum(sum_1_sum, 0, keep_dims=True)
        cast_4 = sum_1.to(tl.bfloat16)
        cast_5 = sum.to(tl.bfloat16)
        tl.store(out1 + n, cast_4)
        tl.store(out2 + n, cast_5)
