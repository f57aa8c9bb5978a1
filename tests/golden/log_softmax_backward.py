# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=(4096, 1024) warps=16 stages=1 chunks=0 inputs=evict_last
# program log_softmax_backward()
#   dim m = 32768
#   dim n = 5120
#   input dy: bf16 [m:5120, n:1]
#   input log_y: bf16 [m:5120, n:1]
#   cast: f32{m, n} = cast(dy)
#   cast_1: f32{m, n} = cast(log_y)
#   exp: f32{m, n} = exp(cast_1)
#   sum: f32{m} = sum[n](cast)
#   mul: f32{m, n} = mul(exp, sum)
#   sub: f32{m, n} = sub(cast, mul)
#   cast_2: bf16{m, n} = cast(sub)
#   output out0: bf16 [m:5120, n:1] = cast_2
# end
import triton
import triton.language as tl

from weft.render import weft_triton as w


@triton.jit
def weft_log_softmax_backward(dy, log_y, out0):
    n_a = tl.arange(0, 4096)[None, :]
    n_b = 4096 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    dy_at = dy + m * 5120
    log_y_at = log_y + m * 5120
    out0_at = out0 + m * 5120
    dy_tile_a = tl.load(dy_at + n_a, eviction_policy="evict_last")
    dy_tile_b = tl.load(dy_at + n_b, eviction_policy="evict_last")
    log_y_tile_a = tl.load(log_y_at + n_a, eviction_policy="evict_last")
    log_y_tile_b = tl.load(log_y_at + n_b, eviction_policy="evict_last")
    cast_a = w.to_f32(dy_tile_a)
    cast_b = w.to_f32(dy_tile_b)
    sum = tl.sum(cast_a, 1, keep_dims=True) + tl.sum(cast_b, 1, keep_dims=True)
    cast_1_a = w.to_f32(log_y_tile_a)
    exp_a = tl.exp(cast_1_a)
    mul_a = exp_a * sum
    sub_a = cast_a - mul_a
    cast_2_a = sub_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_2_a)
    cast_1_b = w.to_f32(log_y_tile_b)
    exp_b = tl.exp(cast_1_b)
    mul_b = exp_b * sum
    sub_b = cast_b - mul_b
    cast_2_b = sub_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_2_b)
