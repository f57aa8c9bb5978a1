# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=2 finish=none backend=triton pieces=(4096, 1024) warps=4 stages=1 chunks=0 inputs=evict_last
# program cross_entropy_backward()
#   dim m = 32768
#   dim n = 5120
#   input dloss: f32 []
#   input x: bf16 [m:5120, n:1]
#   input target: i64 [m:1]
#   input maximum: f32 [m:1]
#   input log_total: f32 [m:1]
#   input count: f32 []
#   const: i64{} = const[-100]()
#   ne: bool{m} = ne(target, const)
#   const_1: i64{} = const[0]()
#   where: i64{m} = where(ne, target, const_1)
#   ge: bool{m} = ge(where, const_1)
#   const_2: i64{} = const[5120]()
#   lt: bool{m} = lt(where, const_2)
#   logical_and: bool{m} = logical_and(ge, lt)
#   const_3: i64{} = const[-1]()
#   where_1: i64{m} = where(logical_and, where, const_3)
#   cast: i32{m} = cast(where_1)
#   iota: i32{n} = iota[n]()
#   eq: bool{m, n} = eq(iota, cast)
#   const_4: f32{} = const[-1.0]()
#   const_5: f32{} = const[0.0]()
#   where_2: f32{m, n} = where(eq, const_4, const_5)
#   div: f32{} = div(dloss, count)
#   where_3: f32{m} = where(ne, div, const_5)
#   mul: f32{m, n} = mul(where_2, where_3)
#   cast_1: f32{m, n} = cast(x)
#   sub: f32{m, n} = sub(cast_1, maximum)
#   sub_1: f32{m, n} = sub(sub, log_total)
#   exp: f32{m, n} = exp(sub_1)
#   sum: f32{m} = sum[n](mul)
#   mul_1: f32{m, n} = mul(exp, sum)
#   sub_2: f32{m, n} = sub(mul, mul_1)
#   cast_2: bf16{m, n} = cast(sub_2)
#   output out0: bf16 [m:5120, n:1] = cast_2
# end
import triton
import triton.language as tl

from weft.render import weft_triton as w


@triton.jit
def weft_cross_entropy_backward(dloss, x, target, maximum, log_total, count, out0):
    n_a = tl.arange(0, 4096)[None, :]
    n_b = 4096 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0)
    m = tile * 2 + tl.arange(0, 2)[:, None]
    x_at = x + m * 5120
    out0_at = out0 + m * 5120
    dloss_row = tl.load(dloss)
    x_tile_a = tl.load(x_at + n_a, eviction_policy="evict_last")
    x_tile_b = tl.load(x_at + n_b, eviction_policy="evict_last")
    target_row = tl.load(target + m)
    maximum_row = tl.load(maximum + m)
    log_total_row = tl.load(log_total + m)
    count_row = tl.load(count)
    ne = target_row != -100
    where = tl.where(ne, target_row, 0)
    ge = where >= 0
    lt = where < 5120
    logical_and = ge & lt
    where_1 = tl.where(logical_and, where, -1)
    cast = where_1.to(tl.int32)
    div = tl.div_rn(dloss_row, count_row)
    where_3 = tl.where(ne, div, 0.0)
    iota_a = n_a.to(tl.int32)
    eq_a = iota_a == cast
    where_2_a = tl.where(eq_a, -1.0, 0.0)
    mul_a = where_2_a * where_3
    iota_b = n_b.to(tl.int32)
    eq_b = iota_b == cast
    where_2_b = tl.where(eq_b, -1.0, 0.0)
    mul_b = where_2_b * where_3
    sum = tl.sum(w.fold_sum(mul_a, 1024) + mul_b, 1, keep_dims=True)
    cast_1_a = w.to_f32(x_tile_a)
    sub_a = cast_1_a - maximum_row
    sub_1_a = sub_a - log_total_row
    exp_a = tl.exp(sub_1_a)
    mul_1_a = exp_a * sum
    sub_2_a = mul_a - mul_1_a
    cast_2_a = sub_2_a.to(tl.bfloat16)
    tl.store(out0_at + n_a, cast_2_a)
    cast_1_b = w.to_f32(x_tile_b)
    sub_b = cast_1_b - maximum_row
    sub_1_b = sub_b - log_total_row
    exp_b = tl.exp(sub_1_b)
    mul_1_b = exp_b * sum
    sub_2_b = mul_b - mul_1_b
    cast_2_b = sub_2_b.to(tl.bfloat16)
    tl.store(out0_at + n_b, cast_2_b)
