# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=5x1024 warps=4 stages=1 chunks=0 inputs=evict_last
# program log_softmax_forward()
#   dim m = 32768
#   dim n = 5120
#   input x: bf16 [m:5120, n:1]
#   cast: f32{m, n} = cast(x)
#   max: f32{m} = max[n](cast)
#   sub: f32{m, n} = sub(cast, max)
#   exp: f32{m, n} = exp(sub)
#   sum: f32{m} = sum[n](exp)
#   log: f32{m} = log(sum)
#   sub_1: f32{m, n} = sub(sub, log)
#   cast_1: bf16{m, n} = cast(sub_1)
#   output out0: bf16 [m:5120, n:1] = cast_1
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_log_softmax_forward(x, out0):
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
    max = w.max(w.maximum(w.maximum(w.maximum(w.maximum(cast_a, cast_b), cast_c), cast_d), cast_e), 1)
    sub_a = cast_a - max
    exp_a = tl.exp(sub_a)
    sub_b = cast_b - max
    exp_b = tl.exp(sub_b)
    sub_c = cast_c - max
    exp_c = tl.exp(sub_c)
    sub_d = cast_d - max
    exp_d = tl.exp(sub_d)
    sub_e = cast_e - max
    exp_e = tl.exp(sub_e)
    sum = tl.sum(exp_a + exp_b + exp_c + exp_d + exp_e, 1, keep_dims=True)
    log = tl.log(sum)
    sub_1_a = sub_a - log
    cast_1_a = sub_1_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_1_a)
    sub_1_b = sub_b - log
    cast_1_b = sub_1_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_1_b)
    sub_1_c = sub_c - log
    cast_1_c = sub_1_c.to(tl.bfloat16)
    tl.store(out0_at + n_c, cast_1_c)
    sub_1_d = sub_d - log
    cast_1_d = sub_1_d.to(tl.bfloat16)
    tl.store(out0_at + n_d, cast_1_d)
    sub_1_e = sub_e - log
    cast_1_e = sub_1_e.to(tl.bfloat16)
    tl.store(out0_at + n_e, cast_1_e)
