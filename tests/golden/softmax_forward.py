# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=5x1024 warps=4 stages=1 chunks=0 inputs=evict_last
# program softmax_forward()
#   dim m = 32768
#   dim n = 5120
#   input x: bf16 [m:5120, n:1]
#   cast: f32{m, n} = cast(x)
#   max: f32{m} = max[n](cast)
#   sub: f32{m, n} = sub(cast, max)
#   exp: f32{m, n} = exp(sub)
#   sum: f32{m} = sum[n](exp)
#   div: f32{m, n} = div(exp, sum)
#   cast_1: bf16{m, n} = cast(div)
#   output out0: bf16 [m:5120, n:1] = cast_1
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_softmax_forward(x, out0):
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
    div_a = exp_a * tl.div_rn(1.0, sum)
    cast_1_a = div_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_1_a)
    div_b = exp_b * tl.div_rn(1.0, sum)
    cast_1_b = div_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_1_b)
    div_c = exp_c * tl.div_rn(1.0, sum)
    cast_1_c = div_c.to(tl.bfloat16)
    tl.store(out0_at + n_c, cast_1_c)
    div_d = exp_d * tl.div_rn(1.0, sum)
    cast_1_d = div_d.to(tl.bfloat16)
    tl.store(out0_at + n_d, cast_1_d)
    div_e = exp_e * tl.div_rn(1.0, sum)
    cast_1_e = div_e.to(tl.bfloat16)
    tl.store(out0_at + n_e, cast_1_e)
