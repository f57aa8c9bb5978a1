# schedule COLUMN rows=(m) columns=(n) segments=() rows_per_tile=16 finish=separate backend=triton pieces=1x128 warps=4 stages=3 chunks=14 register_cap=96
# program gelu_backward_bias()
#   dim m = 32768
#   dim n = 5120
#   input dy: bf16 [m:5120, n:1]
#   input x: bf16 [m:5120, n:1]
#   cast: f32{m, n} = cast(x)
#   const: f32{} = const[0.7071067811865476]()
#   mul: f32{m, n} = mul(cast, const)
#   erf: f32{m, n} = erf(mul)
#   const_1: f32{} = const[1.0]()
#   add: f32{m, n} = add(erf, const_1)
#   const_2: f32{} = const[0.5]()
#   mul_1: f32{m, n} = mul(add, const_2)
#   const_3: f32{} = const[-0.5]()
#   mul_2: f32{m, n} = mul(cast, const_3)
#   mul_3: f32{m, n} = mul(mul_2, cast)
#   exp: f32{m, n} = exp(mul_3)
#   const_4: f32{} = const[0.3989422804014327]()
#   mul_4: f32{m, n} = mul(exp, const_4)
#   cast_1: f32{m, n} = cast(dy)
#   mul_5: f32{m, n} = mul(cast, mul_4)
#   add_1: f32{m, n} = add(mul_1, mul_5)
#   mul_6: f32{m, n} = mul(cast_1, add_1)
#   cast_2: bf16{m, n} = cast(mul_6)
#   cast_3: f32{m, n} = cast(cast_2)
#   sum: f32{n} = sum[m](cast_3)
#   cast_4: bf16{n} = cast(sum)
#   output out0: bf16 [m:5120, n:1] = cast_2
#   output out1: bf16 [n:1] = cast_4
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_gelu_backward_bias(dy, x, out0, out1, sum_partial):
    n = tl.program_id(1) * 128 + tl.arange(0, 128)[None, :]
    for chunk in range(tl.program_id(0), 14, tl.num_programs(0)):
        sum_sum = tl.full([16, 128], 0.0, tl.float32)
        for tile in tl.range(chunk, 2048, 14, num_stages=3):
            m = tile * 16 + tl.arange(0, 16)[:, None]
            dy_at = dy + m * 5120
            x_at = x + m * 5120
            out0_at = out0 + m * 5120
            dy_tile = tl.load(dy_at + n)
            x_tile = tl.load(x_at + n)
            cast = w.to_f32(x_tile)
            mul = cast * 0.70710677
            erf = tl.erf(mul)
            add = erf + 1.0
            mul_1 = add * 0.5
            mul_2 = cast * -0.5
            mul_3 = mul_2 * cast
            exp = tl.exp(mul_3)
            mul_4 = exp * 0.3989423
            cast_1 = w.to_f32(dy_tile)
            mul_5 = cast * mul_4
            add_1 = mul_1 + mul_5
            mul_6 = cast_1 * add_1
            cast_2 = w.to_bf16(mul_6)
            cast_3 = w.to_f32(cast_2)
            tl.store(out0_at + n, cast_2)
            sum_sum = sum_sum + cast_3
        tl.store(sum_partial + chunk * 5120 + n, tl.sum(sum_sum, 0, keep_dims=True))


@triton.jit
def weft_gelu_backward_bias_finish(dy, x, out0, out1, sum_partial):
    for task in range(tl.program_id(0), 80, tl.num_programs(0)):
        n = task * 64 + tl.arange(0, 64)[None, :]
        sum_sum = tl.full([8, 64], 0.0, tl.float32)
        for start in tl.static_range(0, 14, 8):
            part = start + tl.arange(0, 8)[:, None]
            sum_sum = sum_sum + tl.load(sum_partial + part * 5120 + n, mask=(part < 14), other=0.0, cache_modifier=".cg")
        sum = tl.sum(sum_sum, 0, keep_dims=True)
        cast_4 = sum.to(tl.bfloat16)
        tl.store(out1 + n, cast_4)
