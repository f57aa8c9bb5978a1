# schedule STREAM rows=(m0, m1) columns=(n) segments=(m0) rows_per_tile=1 finish=same backend=triton pieces=5x1024 warps=4 stages=3 chunks=33
# program modulated_layer_norm_backward()
#   dim m0 = 8
#   dim m1 = 4096
#   dim n = 5120
#   input dy: bf16 [m0:20971520, m1:5120, n:1]
#   input x: bf16 [m0:20971520, m1:5120, n:1]
#   input scale: bf16 [m0:5120, n:1]
#   input mean: f32 [m0:4096, m1:1]
#   input rstd: f32 [m0:4096, m1:1]
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
#   mul_5: f32{m0, m1, n} = mul(cast_1, mul)
#   sum_2: f32{m0, n} = sum[m1](mul_5)
#   sum_3: f32{m0, n} = sum[m1](cast_1)
#   cast_3: bf16{m0, m1, n} = cast(mul_4)
#   cast_4: bf16{m0, n} = cast(sum_2)
#   cast_5: bf16{m0, n} = cast(sum_3)
#   output out0: bf16 [m0:20971520, m1:5120, n:1] = cast_3
#   output out1: bf16 [m0:5120, n:1] = cast_4
#   output out2: bf16 [m0:5120, n:1] = cast_5
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_modulated_layer_norm_backward(dy, x, scale, mean, rstd, out0, out1, out2, sum_2_partial, sum_3_partial, barrier):
    n_a = tl.arange(0, 1024)[None, :]
    n_b = 1024 + tl.arange(0, 1024)[None, :]
    n_c = 2048 + tl.arange(0, 1024)[None, :]
    n_d = 3072 + tl.arange(0, 1024)[None, :]
    n_e = 4096 + tl.arange(0, 1024)[None, :]
    for part in range(tl.program_id(0), 264, tl.num_programs(0)):
        m0 = part // 33
        chunk = part % 33
        scale_tile_a = tl.load(scale + m0 * 5120 + n_a)
        scale_tile_b = tl.load(scale + m0 * 5120 + n_b)
        scale_tile_c = tl.load(scale + m0 * 5120 + n_c)
        scale_tile_d = tl.load(scale + m0 * 5120 + n_d)
        scale_tile_e = tl.load(scale + m0 * 5120 + n_e)
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
        for tile in tl.range(chunk, 4096, 33, num_stages=3):
            m1 = tile + tl.arange(0, 1)[:, None]
            dy_at = dy + m0 * 20971520 + m1 * 5120
            x_at = x + m0 * 20971520 + m1 * 5120
            out0_at = out0 + m0 * 20971520 + m1 * 5120
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
            mean_row = tl.load(mean + m0 * 4096 + m1)
            rstd_row = tl.load(rstd + m0 * 4096 + m1)
            cast_a = w.to_f32(x_tile_a)
            sub_a = cast_a - mean_row
            mul_a = sub_a * rstd_row
            cast_1_a = w.to_f32(dy_tile_a)
            cast_2_a = w.to_f32(scale_tile_a)
            add_a = cast_2_a + 1.0
            mul_1_a = cast_1_a * add_a
            mul_2_a = mul_a * mul_1_a
            mul_5_a = cast_1_a * mul_a
            sum_2_sum_a = sum_2_sum_a + mul_5_a
            sum_3_sum_a = sum_3_sum_a + cast_1_a
            cast_b = w.to_f32(x_tile_b)
            sub_b = cast_b - mean_row
            mul_b = sub_b * rstd_row
            cast_1_b = w.to_f32(dy_tile_b)
            cast_2_b = w.to_f32(scale_tile_b)
            add_b = cast_2_b + 1.0
            mul_1_b = cast_1_b * add_b
            mul_2_b = mul_b * mul_1_b
            mul_5_b = cast_1_b * mul_b
            sum_2_sum_b = sum_2_sum_b + mul_5_b
            sum_3_sum_b = sum_3_sum_b + cast_1_b
            cast_c = w.to_f32(x_tile_c)
            sub_c = cast_c - mean_row
            mul_c = sub_c * rstd_row
            cast_1_c = w.to_f32(dy_tile_c)
            cast_2_c = w.to_f32(scale_tile_c)
            add_c = cast_2_c + 1.0
            mul_1_c = cast_1_c * add_c
            mul_2_c = mul_c * mul_1_c
            mul_5_c = cast_1_c * mul_c
            sum_2_sum_c = sum_2_sum_c + mul_5_c
            sum_3_sum_c = sum_3_sum_c + cast_1_c
            cast_d = w.to_f32(x_tile_d)
            sub_d = cast_d - mean_row
            mul_d = sub_d * rstd_row
            cast_1_d = w.to_f32(dy_tile_d)
            cast_2_d = w.to_f32(scale_tile_d)
            add_d = cast_2_d + 1.0
            mul_1_d = cast_1_d * add_d
            mul_2_d = mul_d * mul_1_d
            mul_5_d = cast_1_d * mul_d
            sum_2_sum_d = sum_2_sum_d + mul_5_d
            sum_3_sum_d = sum_3_sum_d + cast_1_d
            cast_e = w.to_f32(x_tile_e)
            sub_e = cast_e - mean_row
            mul_e = sub_e * rstd_row
            cast_1_e = w.to_f32(dy_tile_e)
            cast_2_e = w.to_f32(scale_tile_e)
            add_e = cast_2_e + 1.0
            mul_1_e = cast_1_e * add_e
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
        tl.store(sum_2_partial + part * 5120 + n_a, tl.sum(sum_2_sum_a, 0, keep_dims=True))
        tl.store(sum_2_partial + part * 5120 + n_b, tl.sum(sum_2_sum_b, 0, keep_dims=True))
        tl.store(sum_2_partial + part * 5120 + n_c, tl.sum(sum_2_sum_c, 0, keep_dims=True))
        tl.store(sum_2_partial + part * 5120 + n_d, tl.sum(sum_2_sum_d, 0, keep_dims=True))
        tl.store(sum_2_partial + part * 5120 + n_e, tl.sum(sum_2_sum_e, 0, keep_dims=True))
        tl.store(sum_3_partial + part * 5120 + n_a, tl.sum(sum_3_sum_a, 0, keep_dims=True))
        tl.store(sum_3_partial + part * 5120 + n_b, tl.sum(sum_3_sum_b, 0, keep_dims=True))
        tl.store(sum_3_partial + part * 5120 + n_c, tl.sum(sum_3_sum_c, 0, keep_dims=True))
        tl.store(sum_3_partial + part * 5120 + n_d, tl.sum(sum_3_sum_d, 0, keep_dims=True))
        tl.store(sum_3_partial + part * 5120 + n_e, tl.sum(sum_3_sum_e, 0, keep_dims=True))
    w.wait_for_all(barrier)
    weft_modulated_layer_norm_backward_finish(dy, x, scale, mean, rstd, out0, out1, out2, sum_2_partial, sum_3_partial, barrier)


@triton.jit
def weft_modulated_layer_norm_backward_finish(dy, x, scale, mean, rstd, out0, out1, out2, sum_2_partial, sum_3_partial, barrier):
    for task in range(tl.program_id(0), 160, tl.num_programs(0)):
        m0 = task // 20
        n = (task % 20) * 256 + tl.arange(0, 256)[None, :]
        sum_2_sum = tl.full([16, 256], 0.0, tl.float32)
        sum_3_sum = tl.full([16, 256], 0.0, tl.float32)
        for start in tl.static_range(0, 33, 16):
            part = start + tl.arange(0, 16)[:, None]
            sum_2_sum = sum_2_sum + tl.load(sum_2_partial + (m0 * 33 + part) * 5120 + n, mask=(part < 33), other=0.0, cache_modifier=".cg")
            sum_3_sum = sum_3_sum + tl.load(sum_3_partial + (m0 * 33 + part) * 5120 + n, mask=(part < 33), other=0.0, cache_modifier=".cg")
        sum_2 = tl.sum(sum_2_sum, 0, keep_dims=True)
        sum_3 = tl.sum(sum_3_sum, 0, keep_dims=True)
        cast_4 = sum_2.to(tl.bfloat16)
        cast_5 = sum_3.to(tl.bfloat16)
        tl.store(out1 + m0 * 5120 + n, cast_4)
        tl.store(out2 + m0 * 5120 + n, cast_5)
