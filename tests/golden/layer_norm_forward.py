# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=(4096, 1024) warps=4 stages=1 chunks=0 inputs=evict_last
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

from weft.render import weft_triton as w


@triton.jit
def weft_layer_norm_forward(x, weight, bias, out0):
    n_a = tl.arange(0, 4096)[None, :]
    n_b = 4096 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    x_at = x + m * 5120
    out0_at = out0 + m * 5120
    x_tile_a = tl.load(x_at + n_a, eviction_policy="evict_last")
    x_tile_b = tl.load(x_at + n_b, eviction_policy="evict_last")
    cast_a = w.to_f32(x_tile_a)
    cast_b = w.to_f32(x_tile_b)
    sum = tl.sum(w.fold_sum(cast_a, 1024) + cast_b, 1, keep_dims=True)
    div = tl.div_rn(sum, 5120.0)
    sub_a = cast_a - div
    mul_a = sub_a * sub_a
    sub_b = cast_b - div
    mul_b = sub_b * sub_b
    sum_1 = tl.sum(w.fold_sum(mul_a, 1024) + mul_b, 1, keep_dims=True)
    div_1 = tl.div_rn(sum_1, 5120.0)
    add = div_1 + 1e-06
    rsqrt = tl.rsqrt(add)
    weight_tile_a = tl.load(weight + n_a)
    weight_tile_b = tl.load(weight + n_b)
    bias_tile_a = tl.load(bias + n_a)
    bias_tile_b = tl.load(bias + n_b)
    mul_1_a = sub_a * rsqrt
    cast_1_a = w.to_f32(weight_tile_a)
    mul_2_a = mul_1_a * cast_1_a
    cast_2_a = w.to_f32(bias_tile_a)
    add_1_a = mul_2_a + cast_2_a
    cast_3_a = add_1_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_3_a)
    mul_1_b = sub_b * rsqrt
    cast_1_b = w.to_f32(weight_tile_b)
    mul_2_b = mul_1_b * cast_1_b
    cast_2_b = w.to_f32(bias_tile_b)
    add_1_b = mul_2_b + cast_2_b
    cast_3_b = add_1_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_3_b)
