# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=(4096, 1024) warps=8 stages=1 chunks=0 inputs=evict_last
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

from weft.render import weft_triton as w


@triton.jit
def weft_softmax_backward(dy, y, out0):
    n_a = tl.arange(0, 4096)[None, :]
    n_b = 4096 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    dy_at = dy + m * 5120
    y_at = y + m * 5120
    out0_at = out0 + m * 5120
    dy_tile_a = tl.load(dy_at + n_a, eviction_policy="evict_last")
    dy_tile_b = tl.load(dy_at + n_b, eviction_policy="evict_last")
    y_tile_a = tl.load(y_at + n_a, eviction_policy="evict_last")
    y_tile_b = tl.load(y_at + n_b, eviction_policy="evict_last")
    cast_a = w.to_f32(dy_tile_a)
    cast_1_a = w.to_f32(y_tile_a)
    mul_a = cast_a * cast_1_a
    cast_b = w.to_f32(dy_tile_b)
    cast_1_b = w.to_f32(y_tile_b)
    mul_b = cast_b * cast_1_b
    sum = tl.sum(mul_a, 1, keep_dims=True) + tl.sum(mul_b, 1, keep_dims=True)
    mul_1_a = cast_1_a * sum
    sub_a = mul_a - mul_1_a
    cast_2_a = sub_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_2_a)
    mul_1_b = cast_1_b * sum
    sub_b = mul_b - mul_1_b
    cast_2_b = sub_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_2_b)
