# schedule COLUMN rows=(m) columns=(n) segments=() rows_per_tile=4 finish=separate backend=triton pieces=1x1024 warps=4 stages=3 chunks=106
# program batch_norm_forward_0()
#   dim m = 32768
#   dim n = 5120
#   input x: bf16 [m:5120, n:1]
#   cast: f32{m, n} = cast(x)
#   sum: f32{n} = sum[m](cast)
#   const: f32{} = const[3.0517578125e-05]()
#   mul: f32{n} = mul(sum, const)
#   mul_1: f32{m, n} = mul(cast, cast)
#   sum_1: f32{n} = sum[m](mul_1)
#   mul_2: f32{n} = mul(sum_1, const)
#   mul_3: f32{n} = mul(mul, mul)
#   sub: f32{n} = sub(mul_2, mul_3)
#   const_1: f32{} = const[0.0]()
#   maximum: f32{n} = maximum(sub, const_1)
#   const_2: f32{} = const[1e-06]()
#   add: f32{n} = add(maximum, const_2)
#   rsqrt: f32{n} = rsqrt(add)
#   output rsqrt_saved: f32 [n:1] = rsqrt
#   output mul_saved: f32 [n:1] = mul
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_batch_norm_forward_0(x, rsqrt_saved, mul_saved, sum_partial, sum_1_partial):
    n = tl.program_id(1) * 1024 + tl.arange(0, 1024)[None, :]
    for chunk in range(tl.program_id(0), 106, tl.num_programs(0)):
        sum_sum = tl.full([4, 1024], 0.0, tl.float32)
        sum_1_sum = tl.full([4, 1024], 0.0, tl.float32)
        for tile in tl.range(chunk, 8192, 106, num_stages=3):
            m = tile * 4 + tl.arange(0, 4)[:, None]
            x_at = x + m * 5120
            x_tile = tl.load(x_at + n)
            cast = w.to_f32(x_tile)
            mul_1 = cast * cast
            sum_sum = sum_sum + cast
            sum_1_sum = sum_1_sum + mul_1
        tl.store(sum_partial + chunk * 5120 + n, tl.sum(sum_sum, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n, tl.sum(sum_1_sum, 0, keep_dims=True))


@triton.jit
def weft_batch_norm_forward_0_finish(x, rsqrt_saved, mul_saved, sum_partial, sum_1_partial):
    for task in range(tl.program_id(0), 80, tl.num_programs(0)):
        n = task * 64 + tl.arange(0, 64)[None, :]
        sum_sum = tl.full([64, 64], 0.0, tl.float32)
        sum_1_sum = tl.full([64, 64], 0.0, tl.float32)
        for start in tl.static_range(0, 106, 64):
            part = start + tl.arange(0, 64)[:, None]
            sum_sum = sum_sum + tl.load(sum_partial + part * 5120 + n, mask=(part < 106), other=0.0, cache_modifier=".cg")
            sum_1_sum = sum_1_sum + tl.load(sum_1_partial + part * 5120 + n, mask=(part < 106), other=0.0, cache_modifier=".cg")
        sum = tl.sum(sum_sum, 0, keep_dims=True)
        sum_1 = tl.sum(sum_1_sum, 0, keep_dims=True)
        mul = sum * 3.0517578e-05
        mul_2 = sum_1 * 3.0517578e-05
        mul_3 = mul * mul
        sub = mul_2 - mul_3
        maximum = w.maximum(sub, 0.0)
        add = maximum + 1e-06
        rsqrt = tl.rsqrt(add)
        tl.store(rsqrt_saved + n, rsqrt)
        tl.store(mul_saved + n, mul)

# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=4 finish=none backend=triton pieces=1x1024 warps=4 stages=1 chunks=0
# program batch_norm_forward_1()
#   dim m = 32768
#   dim n = 5120
#   input x: bf16 [m:5120, n:1]
#   input weight: bf16 [n:1]
#   input bias: bf16 [n:1]
#   input rsqrt_saved: f32 [n:1]
#   input mul_saved: f32 [n:1]
#   cast: f32{m, n} = cast(x)
#   sub: f32{m, n} = sub(cast, mul_saved)
#   mul: f32{m, n} = mul(sub, rsqrt_saved)
#   cast_1: f32{n} = cast(weight)
#   mul_1: f32{m, n} = mul(mul, cast_1)
#   cast_2: f32{n} = cast(bias)
#   add: f32{m, n} = add(mul_1, cast_2)
#   cast_3: bf16{m, n} = cast(add)
#   output out0: bf16 [m:5120, n:1] = cast_3
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_batch_norm_forward_1(x, weight, bias, rsqrt_saved, mul_saved, out0):
    block = tl.program_id(0) % 5
    n = block * 1024 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0) // 5
    m = tile * 4 + tl.arange(0, 4)[:, None]
    x_at = x + m * 5120
    out0_at = out0 + m * 5120
    x_tile = tl.load(x_at + n)
    weight_tile = tl.load(weight + n)
    bias_tile = tl.load(bias + n)
    rsqrt_saved_tile = tl.load(rsqrt_saved + n)
    mul_saved_tile = tl.load(mul_saved + n)
    cast = w.to_f32(x_tile)
    sub = cast - mul_saved_tile
    mul = sub * rsqrt_saved_tile
    cast_1 = w.to_f32(weight_tile)
    mul_1 = mul * cast_1
    cast_2 = w.to_f32(bias_tile)
    add = mul_1 + cast_2
    cast_3 = add.to(tl.bfloat16)
    tl.store(out0_at + n, cast_3)
