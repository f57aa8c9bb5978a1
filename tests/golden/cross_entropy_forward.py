# schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=1 finish=same backend=triton pieces=(4096, 1024) warps=4 stages=5 chunks=528
# program cross_entropy_forward()
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
#   sub_1: f32{m, n} = sub(sub, log)
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
#   where_2: f32{m, n} = where(eq, sub_1, const_4)
#   sum_1: f32{m} = sum[n](where_2)
#   cast_2: i64{m} = cast(ne)
#   sum_2: i64{} = sum[m](cast_2)
#   cast_3: f32{} = cast(sum_2)
#   neg: f32{m} = neg(sum_1)
#   where_3: f32{m} = where(ne, neg, const_4)
#   sum_3: f32{} = sum[m](where_3)
#   div: f32{} = div(sum_3, cast_3)
#   output out0: f32 [m:1] = max
#   output out1: f32 [m:1] = log
#   output out2: f32 [] = cast_3
#   output out3: f32 [] = div
# end
import triton
import triton.language as tl

from weft.render import weft_triton as w


@triton.jit
def weft_cross_entropy_forward(x, target, out0, out1, out2, out3, sum_2_partial, sum_3_partial, arrived):
    n_a = tl.arange(0, 4096)[None, :]
    n_b = 4096 + tl.arange(0, 1024)[None, :]
    for chunk in range(tl.program_id(0), 528, tl.num_programs(0)):
        sum_2_sum = tl.full([1, 1], 0, tl.int64)
        sum_3_sum = tl.full([1, 1], 0.0, tl.float32)
        for tile in tl.range(chunk, 32768, 528, num_stages=5):
            m = tile + tl.arange(0, 1)[:, None]
            x_at = x + m * 5120
            x_tile_a = tl.load(x_at + n_a)
            x_tile_b = tl.load(x_at + n_b)
            target_row = tl.load(target + m)
            ne = target_row != -100
            where = tl.where(ne, target_row, 0)
            ge = where >= 0
            lt = where < 5120
            logical_and = ge & lt
            where_1 = tl.where(logical_and, where, -1)
            cast_1 = where_1.to(tl.int32)
            cast_2 = ne.to(tl.int64)
            cast_a = w.to_f32(x_tile_a)
            cast_b = w.to_f32(x_tile_b)
            max = w.max(w.maximum(w.fold_max(cast_a, 1024), cast_b), 1)
            sum_2_sum = sum_2_sum + cast_2
            sub_a = cast_a - max
            exp_a = w.exp(sub_a)
            sub_b = cast_b - max
            exp_b = w.exp(sub_b)
            sum = tl.sum(w.fold_sum(exp_a, 1024) + exp_b, 1, keep_dims=True)
            log = tl.log(sum)
            tl.store(out0 + m, max)
            sub_1_a = sub_a - log
            iota_a = n_a.to(tl.int32)
            eq_a = iota_a == cast_1
            where_2_a = tl.where(eq_a, sub_1_a, 0.0)
            sub_1_b = sub_b - log
            iota_b = n_b.to(tl.int32)
            eq_b = iota_b == cast_1
            where_2_b = tl.where(eq_b, sub_1_b, 0.0)
            sum_1 = tl.sum(w.fold_sum(where_2_a, 1024) + where_2_b, 1, keep_dims=True)
            neg = -1.0 * sum_1
            where_3 = tl.where(ne, neg, 0.0)
            tl.store(out1 + m, log)
            sum_3_sum = sum_3_sum + where_3
        tl.store(sum_2_partial + chunk + tl.arange(0, 1)[None, :], tl.sum(sum_2_sum, 0, keep_dims=True))
        tl.store(sum_3_partial + chunk + tl.arange(0, 1)[None, :], tl.sum(sum_3_sum, 0, keep_dims=True))
    w.wait_for_all(arrived)
    weft_cross_entropy_forward_finish(x, target, out0, out1, out2, out3, sum_2_partial, sum_3_partial, arrived)


@triton.jit
def weft_cross_entropy_forward_finish(x, target, out0, out1, out2, out3, sum_2_partial, sum_3_partial, arrived):
    for task in range(tl.program_id(0), 1, tl.num_programs(0)):
        sum_2_sum = tl.full([256, 1], 0, tl.int64)
        sum_3_sum = tl.full([256, 1], 0.0, tl.float32)
        for start in tl.static_range(0, 528, 256):
            part = start + tl.arange(0, 256)[:, None]
            sum_2_sum = sum_2_sum + tl.load(sum_2_partial + part, mask=(part < 528), other=0, cache_modifier=".cg")
            sum_3_sum = sum_3_sum + tl.load(sum_3_partial + part, mask=(part < 528), other=0.0, cache_modifier=".cg")
        sum_2 = tl.sum(sum_2_sum, 0, keep_dims=True)
        sum_3 = tl.sum(sum_3_sum, 0, keep_dims=True)
        cast_3 = sum_2.to(tl.float32)
        div = tl.div_rn(sum_3, cast_3)
        tl.store(out2 + tl.arange(0, 1)[None, :], cast_3)
        tl.store(out3 + tl.arange(0, 1)[None, :], div)
