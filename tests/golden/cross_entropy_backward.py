# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=4 finish=none backend=triton pieces=1x1024 warps=4 stages=1 chunks=0
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
#   mul_1: f32{m} = mul(const_4, where_3)
#   const_6: i32{} = const[0]()
#   ge_1: bool{m} = ge(cast, const_6)
#   const_7: i32{} = const[5120]()
#   lt_1: bool{m} = lt(cast, const_7)
#   logical_and_1: bool{m} = logical_and(ge_1, lt_1)
#   where_4: f32{m} = where(logical_and_1, mul_1, const_5)
#   mul_2: f32{m, n} = mul(exp, where_4)
#   sub_2: f32{m, n} = sub(mul, mul_2)
#   cast_2: bf16{m, n} = cast(sub_2)
#   output out0: bf16 [m:5120, n:1] = cast_2
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_cross_entropy_backward(dloss, x, target, maximum, log_total, count, out0):
    block = tl.program_id(0) % 5
    n = block * 1024 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0) // 5
    m = tile * 4 + tl.arange(0, 4)[:, None]
    x_at = x + m * 5120
    out0_at = out0 + m * 5120
    dloss_row = tl.load(dloss)
    count_row = tl.load(count)
    x_tile = tl.load(x_at + n)
    target_row = tl.load(target + m)
    maximum_row = tl.load(maximum + m)
    log_total_row = tl.load(log_total + m)
    ne = target_row != -100
    where = tl.where(ne, target_row, 0)
    ge = where >= 0
    lt = where < 5120
    logical_and = ge & lt
    where_1 = tl.where(logical_and, where, -1)
    cast = where_1.to(tl.int32)
    div = tl.div_rn(dloss_row, count_row)
    where_3 = tl.where(ne, div, 0.0)
    mul_1 = -1.0 * where_3
    ge_1 = cast >= 0
    lt_1 = cast < 5120
    logical_and_1 = ge_1 & lt_1
    where_4 = tl.where(logical_and_1, mul_1, 0.0)
    iota = n.to(tl.int32)
    eq = iota == cast
    where_2 = tl.where(eq, -1.0, 0.0)
    mul = where_2 * where_3
    cast_1 = w.to_f32(x_tile)
    sub = cast_1 - maximum_row
    sub_1 = sub - log_total_row
    exp = tl.exp(sub_1)
    mul_2 = exp * where_4
    sub_2 = mul - mul_2
    cast_2 = sub_2.to(tl.bfloat16)
    tl.store(out0_at + n, cast_2)
