# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=5x1024 warps=4 stages=1 chunks=0 inputs=evict_last remat=tiles
# program layer_norm_forward()
#   dim m = 32768
#   dim n = 5120
#   input x: bf16 [m:5120, n:1]
#   input weight: bf16 [n:1]
#   input bias: bf16 [n:1]
#   cast: f32{m, n} = cast(x)
#   sum: f32{m} = sum[n](cast)
#   const: f32{} = const[5120.0]()
#   div: f32{m} = div(sum, const)
#   sub: f32{m, n} = sub(cast, div)
#   mul: f32{m, n} = mul(sub, sub)
#   sum_1: f32{m} = sum[n](mul)
#   div_1: f32{m} = div(sum_1, const)
#   const_1: f32{} = const[1e-06]()
#   add: f32{m} = add(div_1, const_1)
#   rsqrt: f32{m} = rsqrt(add)
#   mul_1: f32{m, n} = mul(sub, rsqrt)
#   cast_1: f32{n} = cast(weight)
#   mul_2: f32{m, n} = mul(mul_1, cast_1)
#   cast_2: f32{n} = cast(bias)
#   add_1: f32{m, n} = add(mul_2, cast_2)
#   cast_3: bf16{m, n} = cast(add_1)
#   output out0: bf16 [m:5120, n:1] = cast_3
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_layer_norm_forward(x, weight, bias, out0):
    n_a = tl.arange(0, 1024)[None, :]
    n_b = 1024 + tl.arange(0, 1024)[None, :]
    n_c = 2048 + tl.arange(0, 1024)[None, :]
    n_d = 3072 + tl.arange(0, 1024)[None, :]
    n_e = 4096 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    x_at = x + m * 5120
    out0_at = out0 + m * 5120
    x_tile_a = tl.load(x_at + n_a, eviction_policy="evict_last")
    x_tile_b = tl.load(x_at + n_b, eviction_policy="evict_last")
    x_tile_c = tl.load(x_at + n_c, eviction_policy="evict_last")
    x_tile_d = tl.load(x_at + n_d, eviction_policy="evict_last")
    x_tile_e = tl.load(x_at + n_e, eviction_policy="evict_last")
    cast_a = w.to_f32(x_tile_a)
    cast_b = w.to_f32(x_tile_b)
    cast_c = w.to_f32(x_tile_c)
    cast_d = w.to_f32(x_tile_d)
    cast_e = w.to_f32(x_tile_e)
    sum = tl.sum(cast_a + cast_b + cast_c + cast_d + cast_e, 1, keep_dims=True)
    div = tl.div_rn(sum, 5120.0)
    cast_a = w.to_f32_again(x_tile_a)
    sub_a = cast_a - div
    mul_a = sub_a * sub_a
    cast_b = w.to_f32_again(x_tile_b)
    sub_b = cast_b - div
    mul_b = sub_b * sub_b
    cast_c = w.to_f32_again(x_tile_c)
    sub_c = cast_c - div
    mul_c = sub_c * sub_c
    cast_d = w.to_f32_again(x_tile_d)
    sub_d = cast_d - div
    mul_d = sub_d * sub_d
    cast_e = w.to_f32_again(x_tile_e)
    sub_e = cast_e - div
    mul_e = sub_e * sub_e
    sum_1 = tl.sum(mul_a + mul_b + mul_c + mul_d + mul_e, 1, keep_dims=True)
    div_1 = tl.div_rn(sum_1, 5120.0)
    add = div_1 + 1e-06
    rsqrt = tl.rsqrt(add)
    weight_tile_a = tl.load(weight + n_a)
    weight_tile_b = tl.load(weight + n_b)
    weight_tile_c = tl.load(weight + n_c)
    weight_tile_d = tl.load(weight + n_d)
    weight_tile_e = tl.load(weight + n_e)
    bias_tile_a = tl.load(bias + n_a)
    bias_tile_b = tl.load(bias + n_b)
    bias_tile_c = tl.load(bias + n_c)
    bias_tile_d = tl.load(bias + n_d)
    bias_tile_e = tl.load(bias + n_e)
    cast_a = w.to_f32_again(x_tile_a)
    sub_a = cast_a - div
    mul_1_a = sub_a * rsqrt
    cast_1_a = w.to_f32_again(weight_tile_a)
    mul_2_a = mul_1_a * cast_1_a
    cast_2_a = w.to_f32_again(bias_tile_a)
    add_1_a = mul_2_a + cast_2_a
    cast_3_a = add_1_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_3_a)
    cast_b = w.to_f32_again(x_tile_b)
    sub_b = cast_b - div
    mul_1_b = sub_b * rsqrt
    cast_1_b = w.to_f32_again(weight_tile_b)
    mul_2_b = mul_1_b * cast_1_b
    cast_2_b = w.to_f32_again(bias_tile_b)
    add_1_b = mul_2_b + cast_2_b
    cast_3_b = add_1_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_3_b)
    cast_c = w.to_f32_again(x_tile_c)
    sub_c = cast_c - div
    mul_1_c = sub_c * rsqrt
    cast_1_c = w.to_f32_again(weight_tile_c)
    mul_2_c = mul_1_c * cast_1_c
    cast_2_c = w.to_f32_again(bias_tile_c)
    add_1_c = mul_2_c + cast_2_c
    cast_3_c = add_1_c.to(tl.bfloat16)
    tl.store(out0_at + n_c, cast_3_c)
    cast_d = w.to_f32_again(x_tile_d)
    sub_d = cast_d - div
    mul_1_d = sub_d * rsqrt
    cast_1_d = w.to_f32_again(weight_tile_d)
    mul_2_d = mul_1_d * cast_1_d
    cast_2_d = w.to_f32_again(bias_tile_d)
    add_1_d = mul_2_d + cast_2_d
    cast_3_d = add_1_d.to(tl.bfloat16)
    tl.store(out0_at + n_d, cast_3_d)
    cast_e = w.to_f32_again(x_tile_e)
    sub_e = cast_e - div
    mul_1_e = sub_e * rsqrt
    cast_1_e = w.to_f32_again(weight_tile_e)
    mul_2_e = mul_1_e * cast_1_e
    cast_2_e = w.to_f32_again(bias_tile_e)
    add_1_e = mul_2_e + cast_2_e
    cast_3_e = add_1_e.to(tl.bfloat16)
    tl.store(out0_at + n_e, cast_3_e)
