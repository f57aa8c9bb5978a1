# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=3x2048 warps=4 stages=1 chunks=0 inputs=evict_last hoisted
# program rms_norm_fp8()
#   dim m = 32768
#   dim n = 5120
#   input x: bf16 [m:5120, n:1]
#   input weight: bf16 [n:1]
#   cast: f32{m, n} = cast(x)
#   mul: f32{m, n} = mul(cast, cast)
#   sum: f32{m} = sum[n](mul)
#   const: f32{} = const[5120.0]()
#   div: f32{m} = div(sum, const)
#   const_1: f32{} = const[1e-06]()
#   add: f32{m} = add(div, const_1)
#   rsqrt: f32{m} = rsqrt(add)
#   mul_1: f32{m, n} = mul(cast, rsqrt)
#   cast_1: f32{n} = cast(weight)
#   mul_2: f32{m, n} = mul(mul_1, cast_1)
#   abs: f32{m, n} = abs(mul_2)
#   max: f32{m} = max[n](abs)
#   const_2: f32{} = const[1e-12]()
#   maximum: f32{m} = maximum(max, const_2)
#   const_3: f32{} = const[448.0]()
#   div_1: f32{m} = div(maximum, const_3)
#   div_2: f32{m, n} = div(mul_2, div_1)
#   cast_2: f8e4m3{m, n} = cast(div_2)
#   output out0: f32 [m:1] = div_1
#   output out1: f8e4m3 [m:5120, n:1] = cast_2
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_rms_norm_fp8(x, weight, out0, out1):
    n_a = tl.arange(0, 2048)[None, :]
    n_b = 2048 + tl.arange(0, 2048)[None, :]
    n_c = 4096 + tl.arange(0, 2048)[None, :]
    column_exists_c = n_c < 5120
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    x_at = x + m * 5120
    out1_at = out1 + m * 5120
    x_tile_a = tl.load(x_at + n_a, eviction_policy="evict_last")
    x_tile_b = tl.load(x_at + n_b, eviction_policy="evict_last")
    x_tile_c = tl.load(x_at + n_c, mask=column_exists_c, other=0, eviction_policy="evict_last")
    weight_tile_a = tl.load(weight + n_a)
    weight_tile_b = tl.load(weight + n_b)
    weight_tile_c = tl.load(weight + n_c, mask=column_exists_c, other=0)
    cast_a = w.to_f32(x_tile_a)
    mul_a = cast_a * cast_a
    cast_b = w.to_f32(x_tile_b)
    mul_b = cast_b * cast_b
    cast_c = w.to_f32(x_tile_c)
    mul_c = cast_c * cast_c
    sum = tl.sum(mul_a + mul_b + tl.where(column_exists_c, mul_c, 0.0), 1, keep_dims=True)
    div = tl.div_rn(sum, 5120.0)
    add = div + 1e-06
    rsqrt = tl.rsqrt(add)
    mul_1_a = cast_a * rsqrt
    cast_1_a = w.to_f32(weight_tile_a)
    mul_2_a = mul_1_a * cast_1_a
    abs_a = tl.abs(mul_2_a)
    mul_1_b = cast_b * rsqrt
    cast_1_b = w.to_f32(weight_tile_b)
    mul_2_b = mul_1_b * cast_1_b
    abs_b = tl.abs(mul_2_b)
    mul_1_c = cast_c * rsqrt
    cast_1_c = w.to_f32(weight_tile_c)
    mul_2_c = mul_1_c * cast_1_c
    abs_c = tl.abs(mul_2_c)
    max = w.max(w.maximum(w.maximum(abs_a, abs_b), tl.where(column_exists_c, abs_c, float("-inf"))), 1)
    maximum = w.maximum(max, 1e-12)
    div_1 = tl.div_rn(maximum, 448.0)
    div_2_a = tl.div_rn(mul_2_a, div_1)
    cast_2_a = w.to_f8e4m3_saturated(div_2_a)
    tl.store(out1_at + n_a, cast_2_a)
    div_2_b = tl.div_rn(mul_2_b, div_1)
    cast_2_b = w.to_f8e4m3_saturated(div_2_b)
    tl.store(out1_at + n_b, cast_2_b)
    div_2_c = tl.div_rn(mul_2_c, div_1)
    cast_2_c = w.to_f8e4m3_saturated(div_2_c)
    tl.store(out1_at + n_c, cast_2_c, mask=column_exists_c)
    tl.store(out0 + m, div_1)
