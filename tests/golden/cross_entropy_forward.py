# schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=triton pieces=5x1024 warps=4 stages=1 chunks=0 inputs=evict_last remat=tiles
# program cross_entropy_forward_rows()
#   dim m = 32768
#   dim n = 5120
#   input x: bf16 [m:5120, n:1]
#   input target: i64 [m:1]
#   cast: f32{m, n} = cast(x)
#   max: f32{m} = max[n](cast)
#   sub: f32{m, n} = sub(cast, max)
#   exp: f32{m, n} = exp(sub)
#   sum: f32{m} = sum[n](exp)
#   log: f32{m} = log(sum)
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
#   cast_1: i32{m} = cast(where_1)
#   iota: i32{n} = iota[n]()
#   eq: bool{m, n} = eq(iota, cast_1)
#   const_4: f32{} = const[0.0]()
#   where_2: f32{m, n} = where(eq, cast, const_4)
#   sum_1: f32{m} = sum[n](where_2)
#   sub_1: f32{m} = sub(sum_1, max)
#   sub_2: f32{m} = sub(sub_1, log)
#   const_5: i32{} = const[0]()
#   ge_1: bool{m} = ge(cast_1, const_5)
#   const_6: i32{} = const[5120]()
#   lt_1: bool{m} = lt(cast_1, const_6)
#   logical_and_1: bool{m} = logical_and(ge_1, lt_1)
#   where_3: f32{m} = where(logical_and_1, sub_2, const_4)
#   cast_2: i64{m} = cast(ne)
#   neg: f32{m} = neg(where_3)
#   where_4: f32{m} = where(ne, neg, const_4)
#   output out0: f32 [m:1] = max
#   output out1: f32 [m:1] = log
#   output cast_2_saved: i64 [m:1] = cast_2
#   output where_4_saved: f32 [m:1] = where_4
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_cross_entropy_forward_rows(x, target, out0, out1, cast_2_saved, where_4_saved):
    n_a = tl.arange(0, 1024)[None, :]
    n_b = 1024 + tl.arange(0, 1024)[None, :]
    n_c = 2048 + tl.arange(0, 1024)[None, :]
    n_d = 3072 + tl.arange(0, 1024)[None, :]
    n_e = 4096 + tl.arange(0, 1024)[None, :]
    tile = tl.program_id(0)
    m = tile + tl.arange(0, 1)[:, None]
    x_at = x + m * 5120
    x_tile_a = tl.load(x_at + n_a, eviction_policy="evict_last")
    x_tile_b = tl.load(x_at + n_b, eviction_policy="evict_last")
    x_tile_c = tl.load(x_at + n_c, eviction_policy="evict_last")
    x_tile_d = tl.load(x_at + n_d, eviction_policy="evict_last")
    x_tile_e = tl.load(x_at + n_e, eviction_policy="evict_last")
    target_row = tl.load(target + m)
    ne = target_row != -100
    where = tl.where(ne, target_row, 0)
    ge = where >= 0
    lt = where < 5120
    logical_and = ge & lt
    where_1 = tl.where(logical_and, where, -1)
    cast_1 = where_1.to(tl.int32)
    ge_1 = cast_1 >= 0
    lt_1 = cast_1 < 5120
    logical_and_1 = ge_1 & lt_1
    cast_2 = ne.to(tl.int64)
    cast_a = w.to_f32(x_tile_a)
    iota_a = n_a.to(tl.int32)
    eq_a = iota_a == cast_1
    where_2_a = tl.where(eq_a, cast_a, 0.0)
    cast_b = w.to_f32(x_tile_b)
    iota_b = n_b.to(tl.int32)
    eq_b = iota_b == cast_1
    where_2_b = tl.where(eq_b, cast_b, 0.0)
    cast_c = w.to_f32(x_tile_c)
    iota_c = n_c.to(tl.int32)
    eq_c = iota_c == cast_1
    where_2_c = tl.where(eq_c, cast_c, 0.0)
    cast_d = w.to_f32(x_tile_d)
    iota_d = n_d.to(tl.int32)
    eq_d = iota_d == cast_1
    where_2_d = tl.where(eq_d, cast_d, 0.0)
    cast_e = w.to_f32(x_tile_e)
    iota_e = n_e.to(tl.int32)
    eq_e = iota_e == cast_1
    where_2_e = tl.where(eq_e, cast_e, 0.0)
    max = w.max(w.maximum(w.maximum(w.maximum(w.maximum(cast_a, cast_b), cast_c), cast_d), cast_e), 1)
    sum_1 = tl.sum(where_2_a + where_2_b + where_2_c + where_2_d + where_2_e, 1, keep_dims=True)
    sub_1 = sum_1 - max
    tl.store(cast_2_saved + m, cast_2)
    cast_a = w.to_f32_again(x_tile_a)
    sub_a = cast_a - max
    exp_a = w.exp(sub_a)
    cast_b = w.to_f32_again(x_tile_b)
    sub_b = cast_b - max
    exp_b = w.exp(sub_b)
    cast_c = w.to_f32_again(x_tile_c)
    sub_c = cast_c - max
    exp_c = w.exp(sub_c)
    cast_d = w.to_f32_again(x_tile_d)
    sub_d = cast_d - max
    exp_d = w.exp(sub_d)
    cast_e = w.to_f32_again(x_tile_e)
    sub_e = cast_e - max
    exp_e = w.exp(sub_e)
    sum = tl.sum(exp_a + exp_b + exp_c + exp_d + exp_e, 1, keep_dims=True)
    log = tl.log(sum)
    sub_2 = sub_1 - log
    where_3 = tl.where(logical_and_1, sub_2, 0.0)
    neg = -1.0 * where_3
    where_4 = tl.where(ne, neg, 0.0)
    tl.store(out0 + m, max)
    tl.store(out1 + m, log)
    tl.store(where_4_saved + m, where_4)

# schedule COLUMN rows=(m) columns=() segments=() rows_per_tile=1024 finish=separate backend=triton pieces=1x1 warps=4 stages=2 chunks=32 register_cap=255
# program cross_entropy_forward_columns()
#   dim m = 32768
#   input cast_2_saved: i64 [m:1]
#   input where_4_saved: f32 [m:1]
#   sum: i64{} = sum[m](cast_2_saved)
#   cast: f32{} = cast(sum)
#   sum_1: f32{} = sum[m](where_4_saved)
#   div: f32{} = div(sum_1, cast)
#   output out2: f32 [] = cast
#   output out3: f32 [] = div
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_cross_entropy_forward_columns(cast_2_saved, where_4_saved, out2, out3, sum_partial, sum_1_partial):
    for chunk in range(tl.program_id(0), 32, tl.num_programs(0)):
        sum_sum = tl.full([1024, 1], 0, tl.int64)
        sum_1_sum = tl.full([1024, 1], 0.0, tl.float32)
        for tile in tl.range(chunk, 32, 32, num_stages=2):
            m = tile * 1024 + tl.arange(0, 1024)[:, None]
            cast_2_saved_row = tl.load(cast_2_saved + m)
            where_4_saved_row = tl.load(where_4_saved + m)
            sum_sum = sum_sum + cast_2_saved_row
            sum_1_sum = sum_1_sum + where_4_saved_row
        tl.store(sum_partial + chunk + tl.arange(0, 1)[None, :], tl.sum(sum_sum, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk + tl.arange(0, 1)[None, :], tl.sum(sum_1_sum, 0, keep_dims=True))


@triton.jit
def weft_cross_entropy_forward_columns_finish(cast_2_saved, where_4_saved, out2, out3, sum_partial, sum_1_partial):
    for task in range(tl.program_id(0), 1, tl.num_programs(0)):
        part = tl.arange(0, 32)[:, None]
        sum_sum = tl.load(sum_partial + part, cache_modifier=".cg")
        sum_1_sum = tl.load(sum_1_partial + part, cache_modifier=".cg")
        sum = tl.sum(sum_sum, 0, keep_dims=True)
        sum_1 = tl.sum(sum_1_sum, 0, keep_dims=True)
        cast = sum.to(tl.float32)
        div = tl.div_rn(sum_1, cast)
        tl.store(out2 + tl.arange(0, 1)[None, :], cast)
        tl.store(out3 + tl.arange(0, 1)[None, :], div)
