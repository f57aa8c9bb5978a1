# schedule ONE_SHOT rows=(m0, m1) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=5x1024 warps=4 stages=1 chunks=0 inputs=evict_last remat=tiles
# program modulated_layer_norm_forward()
#   dim m0 = 8
#   dim m1 = 4096
#   dim n = 5120
#   input x: bf16 [m0:20971520, m1:5120, n:1]
#   input scale: bf16 [m0:5120, n:1]
#   input shift: bf16 [m0:5120, n:1]
#   cast: f32{m0, m1, n} = cast(x)
#   sum: f32{m0, m1} = sum[n](cast)
#   const: f32{} = const[5120.0]()
#   div: f32{m0, m1} = div(sum, const)
#   sub: f32{m0, m1, n} = sub(cast, div)
#   mul: f32{m0, m1, n} = mul(sub, sub)
#   sum_1: f32{m0, m1} = sum[n](mul)
#   div_1: f32{m0, m1} = div(sum_1, const)
#   const_1: f32{} = const[1e-06]()
#   add: f32{m0, m1} = add(div_1, const_1)
#   rsqrt: f32{m0, m1} = rsqrt(add)
#   mul_1: f32{m0, m1, n} = mul(sub, rsqrt)
#   cast_1: f32{m0, n} = cast(scale)
#   const_2: f32{} = const[1.0]()
#   add_1: f32{m0, n} = add(cast_1, const_2)
#   mul_2: f32{m0, m1, n} = mul(mul_1, add_1)
#   cast_2: f32{m0, n} = cast(shift)
#   add_2: f32{m0, m1, n} = add(mul_2, cast_2)
#   cast_3: bf16{m0, m1, n} = cast(add_2)
#   output out0: bf16 [m0:20971520, m1:5120, n:1] = cast_3
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_modulated_layer_norm_forward(x, scale, shift, out0):
    n_a = tl.arange(0, 1024)[None, :]
    n_b = 1024 + tl.arange(0, 1024)[None, :]
    n_c = 2048 + tl.arange(0, 1024)[None, :]
    n_d = 3072 + tl.arange(0, 1024)[None, :]
    n_e = 4096 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0)
    row = tile + tl.arange(0, 1)[:, None]
    x_at = x + row * 5120
    scale_at = scale + (row // 4096) * 5120
    shift_at = shift + (row // 4096) * 5120
    out0_at = out0 + row * 5120
    x_tile_a = tl.load(x_at + n_a, eviction_policy="evict_last")
    x_tile_b = tl.load(x_at + n_b, eviction_policy="evict_last")
    x_tile_c = tl.load(x_at + n_c, eviction_policy="evict_last")
    x_tile_d = tl.load(x_at + n_d, eviction_policy="evict_last")
    x_tile_e = tl.load(x_at + n_e, eviction_policy="evict_last")
    scale_tile_a = tl.load(scale_at + n_a, eviction_policy="evict_last")
    scale_tile_b = tl.load(scale_at + n_b, eviction_policy="evict_last")
    scale_tile_c = tl.load(scale_at + n_c, eviction_policy="evict_last")
    scale_tile_d = tl.load(scale_at + n_d, eviction_policy="evict_last")
    scale_tile_e = tl.load(scale_at + n_e, eviction_policy="evict_last")
    shift_tile_a = tl.load(shift_at + n_a, eviction_policy="evict_last")
    shift_tile_b = tl.load(shift_at + n_b, eviction_policy="evict_last")
    shift_tile_c = tl.load(shift_at + n_c, eviction_policy="evict_last")
    shift_tile_d = tl.load(shift_at + n_d, eviction_policy="evict_last")
    shift_tile_e = tl.load(shift_at + n_e, eviction_policy="evict_last")
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
    cast_a = w.to_f32_again(x_tile_a)
    sub_a = cast_a - div
    mul_1_a = sub_a * rsqrt
    cast_1_a = w.to_f32_again(scale_tile_a)
    add_1_a = cast_1_a + 1.0
    mul_2_a = mul_1_a * add_1_a
    cast_2_a = w.to_f32_again(shift_tile_a)
    add_2_a = mul_2_a + cast_2_a
    cast_3_a = add_2_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_3_a)
    cast_b = w.to_f32_again(x_tile_b)
    sub_b = cast_b - div
    mul_1_b = sub_b * rsqrt
    cast_1_b = w.to_f32_again(scale_tile_b)
    add_1_b = cast_1_b + 1.0
    mul_2_b = mul_1_b * add_1_b
    cast_2_b = w.to_f32_again(shift_tile_b)
    add_2_b = mul_2_b + cast_2_b
    cast_3_b = add_2_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_3_b)
    cast_c = w.to_f32_again(x_tile_c)
    sub_c = cast_c - div
    mul_1_c = sub_c * rsqrt
    cast_1_c = w.to_f32_again(scale_tile_c)
    add_1_c = cast_1_c + 1.0
    mul_2_c = mul_1_c * add_1_c
    cast_2_c = w.to_f32_again(shift_tile_c)
    add_2_c = mul_2_c + cast_2_c
    cast_3_c = add_2_c.to(tl.bfloat16)
    tl.store(out0_at + n_c, cast_3_c)
    cast_d = w.to_f32_again(x_tile_d)
    sub_d = cast_d - div
    mul_1_d = sub_d * rsqrt
    cast_1_d = w.to_f32_again(scale_tile_d)
    add_1_d = cast_1_d + 1.0
    mul_2_d = mul_1_d * add_1_d
    cast_2_d = w.to_f32_again(shift_tile_d)
    add_2_d = mul_2_d + cast_2_d
    cast_3_d = add_2_d.to(tl.bfloat16)
    tl.store(out0_at + n_d, cast_3_d)
    cast_e = w.to_f32_again(x_tile_e)
    sub_e = cast_e - div
    mul_1_e = sub_e * rsqrt
    cast_1_e = w.to_f32_again(scale_tile_e)
    add_1_e = cast_1_e + 1.0
    mul_2_e = mul_1_e * add_1_e
    cast_2_e = w.to_f32_again(shift_tile_e)
    add_2_e = mul_2_e + cast_2_e
    cast_3_e = add_2_e.to(tl.bfloat16)
    tl.store(out0_at + n_e, cast_3_e)
