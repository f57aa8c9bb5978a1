# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=3x2048 warps=8 stages=1 chunks=0 inputs=evict_last hoisted
# program add_rms_norm_forward()
#   dim m = 32768
#   dim n = 5120
#   input x: bf16 [m:5120, n:1]
#   input residual: bf16 [m:5120, n:1]
#   input weight: bf16 [n:1]
#   cast: f32{m, n} = cast(residual)
#   cast_1: f32{m, n} = cast(x)
#   add: f32{m, n} = add(cast_1, cast)
#   cast_2: bf16{m, n} = cast(add)
#   cast_3: f32{m, n} = cast(cast_2)
#   mul: f32{m, n} = mul(cast_3, cast_3)
#   sum: f32{m} = sum[n](mul)
#   const: f32{} = const[5120.0]()
#   div: f32{m} = div(sum, const)
#   const_1: f32{} = const[9.999999974752427e-07]()
#   add_1: f32{m} = add(div, const_1)
#   rsqrt: f32{m} = rsqrt(add_1)
#   mul_1: f32{m, n} = mul(cast_3, rsqrt)
#   cast_4: f32{n} = cast(weight)
#   mul_2: f32{m, n} = mul(mul_1, cast_4)
#   cast_5: bf16{m, n} = cast(mul_2)
#   output out0: bf16 [m:5120, n:1] = cast_2
#   output out1: bf16 [m:5120, n:1] = cast_5
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_add_rms_norm_forward(x, residual, weight, out0, out1):
    n_a = tl.arange(0, 2048)[None, :]
    n_b = 2048 + tl.arange(0, 2048)[None, :]
    n_c = 4096 + tl.arange(0, 2048)[None, :]
    column_exists_c = n_c < 5120
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    x_at = x + m * 5120
    residual_at = residual + m * 5120
    out0_at = out0 + m * 5120
    out1_at = out1 + m * 5120
    x_tile_a = tl.load(x_at + n_a, eviction_policy="evict_last")
    x_tile_b = tl.load(x_at + n_b, eviction_policy="evict_last")
    x_tile_c = tl.load(x_at + n_c, mask=column_exists_c, other=0, eviction_policy="evict_last")
    residual_tile_a = tl.load(residual_at + n_a, eviction_policy="evict_last")
    residual_tile_b = tl.load(residual_at + n_b, eviction_policy="evict_last")
    residual_tile_c = tl.load(residual_at + n_c, mask=column_exists_c, other=0, eviction_policy="evict_last")
    weight_tile_a = tl.load(weight + n_a)
    weight_tile_b = tl.load(weight + n_b)
    weight_tile_c = tl.load(weight + n_c, mask=column_exists_c, other=0)
    add_a = w.add_halves(x_tile_a, residual_tile_a)
    cast_a = w.to_f32(add_a)
    mul_a = cast_a * cast_a
    tl.store(out0_at + n_a, add_a)
    add_b = w.add_halves(x_tile_b, residual_tile_b)
    cast_b = w.to_f32(add_b)
    mul_b = cast_b * cast_b
    tl.store(out0_at + n_b, add_b)
    add_c = w.add_halves(x_tile_c, residual_tile_c)
    cast_c = w.to_f32(add_c)
    mul_c = cast_c * cast_c
    tl.store(out0_at + n_c, add_c, mask=column_exists_c)
    sum = tl.sum(mul_a + mul_b + tl.where(column_exists_c, mul_c, 0.0), 1, keep_dims=True)
    div = tl.div_rn(sum, 5120.0)
    add_1 = div + 1e-06
    rsqrt = tl.rsqrt(add_1)
    mul_1_a = cast_a * rsqrt
    cast_1_a = w.to_f32(weight_tile_a)
    mul_2_a = mul_1_a * cast_1_a
    cast_2_a = mul_2_a.to(tl.bfloat16)
    tl.store(out1_at + n_a, cast_2_a)
    mul_1_b = cast_b * rsqrt
    cast_1_b = w.to_f32(weight_tile_b)
    mul_2_b = mul_1_b * cast_1_b
    cast_2_b = mul_2_b.to(tl.bfloat16)
    tl.store(out1_at + n_b, cast_2_b)
    mul_1_c = cast_c * rsqrt
    cast_1_c = w.to_f32(weight_tile_c)
    mul_2_c = mul_1_c * cast_1_c
    cast_2_c = mul_2_c.to(tl.bfloat16)
    tl.store(out1_at + n_c, cast_2_c, mask=column_exists_c)
