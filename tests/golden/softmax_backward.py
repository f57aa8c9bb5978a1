# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=5x1024 warps=4 stages=1 chunks=0 inputs=evict_last
# program softmax_backward()
#   dim m = 32768
#   dim n = 5120
#   input dy: bf16 [m:5120, n:1]
#   input y: bf16 [m:5120, n:1]
#   cast: f32{m, n} = cast(dy)
#   cast_1: f32{m, n} = cast(y)
#   mul: f32{m, n} = mul(cast, cast_1)
#   sum: f32{m} = sum[n](mul)
#   mul_1: f32{m, n} = mul(cast_1, sum)
#   sub: f32{m, n} = sub(mul, mul_1)
#   cast_2: bf16{m, n} = cast(sub)
#   output out0: bf16 [m:5120, n:1] = cast_2
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_softmax_backward(dy, y, out0):
    n_a = tl.arange(0, 1024)[None, :]
    n_b = 1024 + tl.arange(0, 1024)[None, :]
    n_c = 2048 + tl.arange(0, 1024)[None, :]
    n_d = 3072 + tl.arange(0, 1024)[None, :]
    n_e = 4096 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    dy_at = dy + m * 5120
    y_at = y + m * 5120
    out0_at = out0 + m * 5120
    dy_tile_a = tl.load(dy_at + n_a, eviction_policy="evict_last")
    dy_tile_b = tl.load(dy_at + n_b, eviction_policy="evict_last")
    dy_tile_c = tl.load(dy_at + n_c, eviction_policy="evict_last")
    dy_tile_d = tl.load(dy_at + n_d, eviction_policy="evict_last")
    dy_tile_e = tl.load(dy_at + n_e, eviction_policy="evict_last")
    y_tile_a = tl.load(y_at + n_a, eviction_policy="evict_last")
    y_tile_b = tl.load(y_at + n_b, eviction_policy="evict_last")
    y_tile_c = tl.load(y_at + n_c, eviction_policy="evict_last")
    y_tile_d = tl.load(y_at + n_d, eviction_policy="evict_last")
    y_tile_e = tl.load(y_at + n_e, eviction_policy="evict_last")
    cast_a = w.to_f32(dy_tile_a)
    cast_1_a = w.to_f32(y_tile_a)
    mul_a = cast_a * cast_1_a
    cast_b = w.to_f32(dy_tile_b)
    cast_1_b = w.to_f32(y_tile_b)
    mul_b = cast_b * cast_1_b
    cast_c = w.to_f32(dy_tile_c)
    cast_1_c = w.to_f32(y_tile_c)
    mul_c = cast_c * cast_1_c
    cast_d = w.to_f32(dy_tile_d)
    cast_1_d = w.to_f32(y_tile_d)
    mul_d = cast_d * cast_1_d
    cast_e = w.to_f32(dy_tile_e)
    cast_1_e = w.to_f32(y_tile_e)
    mul_e = cast_e * cast_1_e
    sum = tl.sum(mul_a + mul_b + mul_c + mul_d + mul_e, 1, keep_dims=True)
    mul_1_a = cast_1_a * sum
    sub_a = mul_a - mul_1_a
    cast_2_a = sub_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_2_a)
    mul_1_b = cast_1_b * sum
    sub_b = mul_b - mul_1_b
    cast_2_b = sub_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_2_b)
    mul_1_c = cast_1_c * sum
    sub_c = mul_c - mul_1_c
    cast_2_c = sub_c.to(tl.bfloat16)
    tl.store(out0_at + n_c, cast_2_c)
    mul_1_d = cast_1_d * sum
    sub_d = mul_d - mul_1_d
    cast_2_d = sub_d.to(tl.bfloat16)
    tl.store(out0_at + n_d, cast_2_d)
    mul_1_e = cast_1_e * sum
    sub_e = mul_e - mul_1_e
    cast_2_e = sub_e.to(tl.bfloat16)
    tl.store(out0_at + n_e, cast_2_e)
