# schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=1 finish=same backend=triton pieces=5x1024 warps=4 stages=3 chunks=396 register_cap=168
# program row_column_sum()
#   dim m = 32768
#   dim n = 5120
#   input x: bf16 [m:5120, n:1]
#   cast: f32{m, n} = cast(x)
#   sum: f32{m} = sum[n](cast)
#   cast_1: bf16{m} = cast(sum)
#   sum_1: f32{n} = sum[m](cast)
#   cast_2: bf16{n} = cast(sum_1)
#   output out0: bf16 [m:1] = cast_1
#   output out1: bf16 [n:1] = cast_2
# end
import triton
import triton.language as tl

from weft.backends.triton import weft_triton as w


@triton.jit
def weft_row_column_sum(x, out0, out1, sum_1_partial, barrier):
    n_a = tl.arange(0, 1024)[None, :]
    n_b = 1024 + tl.arange(0, 1024)[None, :]
    n_c = 2048 + tl.arange(0, 1024)[None, :]
    n_d = 3072 + tl.arange(0, 1024)[None, :]
    n_e = 4096 + tl.arange(0, 1024)[None, :]
    for chunk in range(tl.program_id(0), 396, tl.num_programs(0)):
        sum_1_sum_a = tl.full([1, 1024], 0.0, tl.float32)
        sum_1_sum_b = tl.full([1, 1024], 0.0, tl.float32)
        sum_1_sum_c = tl.full([1, 1024], 0.0, tl.float32)
        sum_1_sum_d = tl.full([1, 1024], 0.0, tl.float32)
        sum_1_sum_e = tl.full([1, 1024], 0.0, tl.float32)
        for tile in tl.range(chunk, 32768, 396, num_stages=3):
            m = tile + tl.arange(0, 1)[:, None]
            x_at = x + m * 5120
            x_tile_a = tl.load(x_at + n_a)
            x_tile_b = tl.load(x_at + n_b)
            x_tile_c = tl.load(x_at + n_c)
            x_tile_d = tl.load(x_at + n_d)
            x_tile_e = tl.load(x_at + n_e)
            cast_a = w.to_f32(x_tile_a)
            sum_1_sum_a = sum_1_sum_a + cast_a
            cast_b = w.to_f32(x_tile_b)
            sum_1_sum_b = sum_1_sum_b + cast_b
            cast_c = w.to_f32(x_tile_c)
            sum_1_sum_c = sum_1_sum_c + cast_c
            cast_d = w.to_f32(x_tile_d)
            sum_1_sum_d = sum_1_sum_d + cast_d
            cast_e = w.to_f32(x_tile_e)
            sum_1_sum_e = sum_1_sum_e + cast_e
            sum = tl.sum(cast_a + cast_b + cast_c + cast_d + cast_e, 1, keep_dims=True)
            cast_1 = sum.to(tl.bfloat16)
            tl.store(out0 + m, cast_1)
        tl.store(sum_1_partial + chunk * 5120 + n_a, tl.sum(sum_1_sum_a, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n_b, tl.sum(sum_1_sum_b, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n_c, tl.sum(sum_1_sum_c, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n_d, tl.sum(sum_1_sum_d, 0, keep_dims=True))
        tl.store(sum_1_partial + chunk * 5120 + n_e, tl.sum(sum_1_sum_e, 0, keep_dims=True))
    w.wait_for_all(barrier)
    weft_row_column_sum_finish(x, out0, out1, sum_1_partial, barrier)


@triton.jit
def weft_row_column_sum_finish(x, out0, out1, sum_1_partial, barrier):
    for task in range(tl.program_id(0), 320, tl.num_programs(0)):
        n = task * 16 + tl.arange(0, 16)[None, :]
        sum_1_sum = tl.full([256, 16], 0.0, tl.float32)
        for start in tl.static_range(0, 396, 256):
            part = start + tl.arange(0, 256)[:, None]
            sum_1_sum = sum_1_sum + tl.load(sum_1_partial + part * 5120 + n, mask=(part < 396), other=0.0, cache_modifier=".cg")
        sum_1 = tl.sum(sum_1_sum, 0, keep_dims=True)
        cast_2 = sum_1.to(tl.bfloat16)
        tl.store(out1 + n, cast_2)
