// schedule CLUSTER rows=(m) columns=(n) segments=() rows_per_tile=8 finish=separate backend=cuda cluster=1 warps=4 groups=4 blocks=3 vectors=9 lanes=2 stages=2 chunks=396 weights=registers lag=0 tile=shared
// program layer_norm_backward()
//   dim m = 131072
//   dim n = 521
//   input dy: bf16 [m:521, n:1]
//   input x: bf16 [m:521, n:1]
//   input weight: bf16 [n:1]
//   input mean: f32 [m:1]
//   input rstd: f32 [m:1]
//   cast: f32{m, n} = cast(x)
//   sub: f32{m, n} = sub(cast, mean)
//   mul: f32{m, n} = mul(sub, rstd)
//   cast_1: f32{m, n} = cast(dy)
//   cast_2: f32{n} = cast(weight)
//   mul_1: f32{m, n} = mul(cast_1, cast_2)
//   sum: f32{m} = sum[n](mul_1)
//   const: f32{} = const[521.0]()
//   div: f32{m} = div(sum, const)
//   sub_1: f32{m, n} = sub(mul_1, div)
//   mul_2: f32{m, n} = mul(mul, mul_1)
//   sum_1: f32{m} = sum[n](mul_2)
//   div_1: f32{m} = div(sum_1, const)
//   mul_3: f32{m, n} = mul(mul, div_1)
//   sub_2: f32{m, n} = sub(sub_1, mul_3)
//   mul_4: f32{m, n} = mul(rstd, sub_2)
//   mul_5: f32{m, n} = mul(cast_1, mul)
//   sum_2: f32{n} = sum[m](mul_5)
//   sum_3: f32{n} = sum[m](cast_1)
//   cast_3: bf16{m, n} = cast(mul_4)
//   cast_4: bf16{n} = cast(sum_2)
//   cast_5: bf16{n} = cast(sum_3)
//   output out0: bf16 [m:521, n:1] = cast_3
//   output out1: bf16 [n:1] = cast_4
//   output out2: bf16 [n:1] = cast_5
// end

extern "C" __global__ void __launch_bounds__(160, 3)
weft_layer_norm_backward(const w::bf16* __restrict__ dy, const w::bf16* __restrict__ x, const w::bf16* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd, w::bf16* out0, w::bf16* out1, w::bf16* out2, float* sum_2_partial, float* sum_3_partial) {
  constexpr int lanes = 2, cluster = 1, warps = 4;
  constexpr int threads = 32 * warps;
  constexpr int groups = 4, group_threads = threads / groups;
  const int group = threadIdx.x / group_threads, group_thread = threadIdx.x % group_threads;
  constexpr int tile_rows = 2;
  constexpr int stage_rows = groups * tile_rows;
  constexpr int columns = 521;
  const int64_t rows = 131072;
  constexpr int chunks = 396;
  constexpr bool early = true;
  constexpr int own = (columns + (early ? lanes - 1 : 0) + cluster * lanes - 1) / (cluster * lanes);
  constexpr int thread_vectors = (own + group_threads - 1) / group_threads;
  constexpr int surely = (columns + lanes - 1) / lanes - (cluster - 1) * own;
  constexpr bool ragged = early || columns % lanes != 0;
  constexpr bool dy_together = WEFT_ALIGNED_dy;
  constexpr bool x_together = WEFT_ALIGNED_dy && WEFT_ALIGNED_x;
  constexpr bool out0_together = WEFT_ALIGNED_dy && WEFT_ALIGNED_out0;
  constexpr bool weight_together = !early && WEFT_ALIGNED_weight;
  extern __shared__ __align__(128) uint8_t memory[];
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(memory + 39936);
  const int rank = w::rank_in_cluster<cluster>(), first = rank * own;
  w::Ring<2, 17664, warps, w::Eviction::last> ring(memory, barriers);
  w::Exchange<cluster, warps / groups, 4, 2, true> exchange(memory + 39680 + group * 64, barriers + 4 + group * 2, rank);
  const auto beginning = [](const auto* row) { return early ? w::elements_early<lanes>(row) : 0; };
  constexpr int64_t padded = (columns + (early ? lanes - 1 : 0) + lanes - 1) / lanes * lanes;
  const auto has_vector = [&](int k, int vector, int column) {
    return (k + 1) * group_threads <= surely || (vector < own && column < columns);
  };
  const auto at_edge = [&](int k) {
    return ragged && (k == 0 || (k + 1) * group_threads >= surely - 1);
  };
  const w::Columns<float, lanes> sum_2_columns{reinterpret_cast<float*>(memory + 35328), 262};
  const w::Columns<float, lanes> sum_3_columns{reinterpret_cast<float*>(memory + 37504), 262};
  if (group < groups && group_thread == 0) {
    exchange.start();
    w::started_barriers();
  }
  if (threadIdx.x == 0) {
    ring.start(1);
    w::started_barriers();
  }
  w::wait_for_cluster<cluster>();

  if (threadIdx.x >= threads) {
    if (threadIdx.x == threads) {
      for (int chunk = blockIdx.x / cluster; chunk < chunks; chunk += gridDim.x / cluster) {
        const int64_t first_row = chunk * stage_rows, end_row = rows, stride = chunks * stage_rows;
        const auto dy_at = [&](int64_t row) { return dy + row * 521; };
        const auto x_at = [&](int64_t row) { return x + row * 521; };
        const auto mean_at = [&](int64_t row) { return mean + row; };
        const auto rstd_at = [&](int64_t row) { return rstd + row; };
        for (int64_t tile = first_row; tile < end_row; tile += stride) {
          ring.wait_until_free();
          const int64_t count = min(end_row - tile, static_cast<int64_t>(stage_rows));
          ring.copy(0, dy_at(tile), dy_at(tile) + count * columns, dy + 68288512);
          ring.copy(8576, x_at(tile), x_at(tile) + count * columns, x + 68288512);
          ring.copy(17152, mean_at(tile), mean_at(tile) + count, mean + 131072);
          ring.copy(17408, rstd_at(tile), rstd_at(tile) + count, rstd + 131072);
          ring.copied();
        }
      }
    }
  }
  else {
    const int thread = threadIdx.x;
    for (int chunk = blockIdx.x / cluster; chunk < chunks; chunk += gridDim.x / cluster) {
      const int64_t first_row = chunk * stage_rows, end_row = rows, stride = chunks * stage_rows;
      const auto dy_at = [&](int64_t row) { return dy + row * 521; };
      const auto x_at = [&](int64_t row) { return x + row * 521; };
      const auto mean_at = [&](int64_t row) { return mean + row; };
      const auto rstd_at = [&](int64_t row) { return rstd + row; };
      const auto weight_at = [&](int64_t row) { return weight; };
      const auto out0_at = [&](int64_t row) { return out0 + row * 521; };
      const int before = early ? w::once(beginning(dy_at(first_row + group))) : 0;
      w::Vector<w::bf16, lanes> weight_tile[thread_vectors];
      #pragma unroll
      for (int k = 0; k < thread_vectors; ++k) {
        const int vector = group_thread + k * group_threads;
        const int column = (first + vector) * lanes - before;
        if (has_vector(k, vector, column)) {
          const bool inner = !at_edge(k) || w::whole<2 * lanes>(column, columns);
          weight_tile[k] = w::load_row<lanes, weight_together>(weight_at(first_row), column, columns, inner);
        }
      }
      float sum_2[thread_vectors][lanes];
      w::fill(sum_2, 0.0f);
      float sum_3[thread_vectors][lanes];
      w::fill(sum_3, 0.0f);
      for (int64_t tile = first_row; tile < end_row; tile += stride) {
        const int64_t row = tile + group;
        ring.wait_until_filled();
        const w::bf16* dy_stage[tile_rows];
        const w::bf16* x_stage[tile_rows];
        const float* mean_stage[tile_rows];
        const float* rstd_stage[tile_rows];
        #pragma unroll
        for (int r = 0; r < tile_rows; ++r) {
          dy_stage[r] = ring.row(0, dy_at(tile), 0) + (r * groups + group) * columns;
          x_stage[r] = ring.row(8576, x_at(tile), 0) + (r * groups + group) * columns;
          mean_stage[r] = ring.row(17152, mean_at(tile), 0) + (r * groups + group);
          rstd_stage[r] = ring.row(17408, rstd_at(tile), 0) + (r * groups + group);
        }
        ring.next();
        float mean_number[tile_rows];
        float rstd_number[tile_rows];
        float mul[tile_rows];
        #pragma unroll
        for (int r = 0; r < tile_rows; ++r) {
          mean_number[r] = row + r * groups < end_row ? *mean_stage[r] : float();
          rstd_number[r] = row + r * groups < end_row ? *rstd_stage[r] : float();
          mul[r] = mean_number[r] * rstd_number[r];
        }
        w::Parts<w::Sum, float> sum_state[tile_rows];
        w::Parts<w::Sum, float> sum_1_state[tile_rows];
        #pragma unroll
        for (int r = 0; r < tile_rows; ++r) {
          if (row + r * groups < end_row) {
            #pragma unroll
            for (int k = 0; k < thread_vectors; ++k) {
              const int vector = group_thread + k * group_threads;
              const int column = (first + vector) * lanes - before;
              if (has_vector(k, vector, column)) {
                const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
                const auto dy_tile = w::load_copied<lanes, dy_together>(dy_stage[r], column, columns, whole);
                const auto x_tile = w::load_copied<lanes, x_together>(x_stage[r], column, columns, whole);
                const auto weight_vector = w::kept(weight_tile[k]);
                float sum_block[lanes];
                float sum_1_block[lanes];
                #pragma unroll
                for (int i = 0; i < lanes; ++i) {
                  const float cast = w::cast<float>(x_tile[i]);
                  const float mul_1 = cast * rstd_number[r];
                  const float sub = mul_1 - mul[r];
                  const float cast_1 = w::cast<float>(dy_tile[i]);
                  const float cast_2 = w::cast<float>(weight_vector[i]);
                  const float mul_2 = cast_1 * cast_2;
                  const float mul_3 = sub * mul_2;
                  const float mul_10 = cast_1 * sub;
                  sum_block[i] = mul_2;
                  sum_1_block[i] = mul_3;
                  sum_2[k][i] = sum_2[k][i] + mul_10;
                  sum_3[k][i] = sum_3[k][i] + cast_1;
                }
                if (!whole) {
                  w::keep_inside<w::Sum>(sum_block, column, columns);
                  w::keep_inside<w::Sum>(sum_1_block, column, columns);
                }
                sum_state[r].add(sum_block);
                sum_1_state[r].add(sum_1_block);
              }
            }
          }
        }
        float sum[tile_rows], sum_1[tile_rows];
        for (int r = 0; r < tile_rows; ++r) sum[r] = sum_state[r].total(), sum_1[r] = sum_1_state[r].total();
        exchange.template reduce<w::Sum>(sum, sum_1);
        float div[tile_rows];
        float div_1[tile_rows];
        float mul_4[tile_rows];
        float mul_5[tile_rows];
        float mul_6[tile_rows];
        float mul_7[tile_rows];
        #pragma unroll
        for (int r = 0; r < tile_rows; ++r) {
          div[r] = sum[r] / 521.0f;
          div_1[r] = sum_1[r] / 521.0f;
          mul_4[r] = mul[r] * div_1[r];
          mul_5[r] = rstd_number[r] * div_1[r];
          mul_6[r] = mul_4[r] * rstd_number[r];
          mul_7[r] = mul_5[r] * rstd_number[r];
        }
        #pragma unroll
        for (int r = 0; r < tile_rows; ++r) {
          if (row + r * groups < end_row) {
            auto* const out0_row = w::once(out0_at(row + r * groups) + (first + group_thread) * lanes - before);
            #pragma unroll
            for (int k = 0; k < thread_vectors; ++k) {
              const int vector = group_thread + k * group_threads;
              const int column = (first + vector) * lanes - before;
              if (has_vector(k, vector, column)) {
                const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
                const auto dy_tile = w::load_copied<lanes, dy_together>(dy_stage[r], column, columns, whole);
                const auto x_tile = w::load_copied<lanes, x_together>(x_stage[r], column, columns, whole);
                const auto weight_vector = w::kept(weight_tile[k]);
                float cast_3_lanes[lanes];
                #pragma unroll
                for (int i = 0; i < lanes; ++i) {
                  const float cast = w::cast<float>(x_tile[i]);
                  const float cast_1 = w::cast<float>(dy_tile[i]);
                  const float cast_2 = w::cast<float>(weight_vector[i]);
                  const float mul_2 = cast_1 * cast_2;
                  const float sub_1 = mul_2 - div[r];
                  const float mul_8 = cast * mul_7[r];
                  const float sub_2 = mul_6[r] - mul_8;
                  const float mul_9 = sub_1 * rstd_number[r];
                  const float add = mul_9 + sub_2;
                  cast_3_lanes[i] = add;
                }
                const auto cast_3_tile = w::rounded<w::bf16>(cast_3_lanes);
                w::store_row<out0_together>(out0_row + k * group_threads * lanes, cast_3_tile, column, columns, whole);
              }
            }
          }
        }
        ring.release();
      }
      #pragma unroll 1
      for (int one = 0; one < groups; ++one) {
        if (one == group) {
          #pragma unroll
          for (int k = 0; k < thread_vectors; ++k) {
            const int vector = group_thread + k * group_threads;
            const int column = (first + vector) * lanes - before;
            if (has_vector(k, vector, column)) {
              sum_2_columns.template add<w::Sum>(sum_2[k], column, columns, one == 0);
              sum_3_columns.template add<w::Sum>(sum_3[k], column, columns, one == 0);
            }
          }
        }
        w::wait_for_threads<threads>();
      }
      for (int vector = thread; vector * lanes < columns; vector += threads) {
        w::store(sum_2_partial + chunk * padded + vector * lanes, sum_2_columns.at(vector));
        w::store(sum_3_partial + chunk * padded + vector * lanes, sum_3_columns.at(vector));
      }
      w::wait_for_threads<threads>();
    }
  }
}


extern "C" __global__ void __launch_bounds__(1024, 1)
weft_layer_norm_backward_finish(const w::bf16* __restrict__ dy, const w::bf16* __restrict__ x, const w::bf16* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd, w::bf16* out0, w::bf16* out1, w::bf16* out2, float* sum_2_partial, float* sum_3_partial) {
  constexpr int warps = 32;
  constexpr int columns = 521;
  constexpr int chunks = 396;
  constexpr int lanes = 2;
  constexpr bool early = true;
  constexpr int64_t padded = (columns + (early ? lanes - 1 : 0) + lanes - 1) / lanes * lanes;
  const auto begins = [&](int part) {
    return 0;
  };
  const int thread = threadIdx.x;
  __shared__ __align__(16) uint8_t memory[4096];
  {
    constexpr int wide = 1, task_columns = 32 * wide;
    const int blocks = (columns + task_columns - 1) / task_columns;
    for (int64_t task = blockIdx.x; task < blocks; task += gridDim.x) {
      const int begin = static_cast<int>(task) * task_columns, column = begin + thread;
      const bool exists = thread < task_columns && column < columns;
      const float sum_2 = w::gathered_columns<w::Sum, warps, wide, !early>(memory, sum_2_partial, chunks, padded, begins, begin, columns);
      const float sum_3 = w::gathered_columns<w::Sum, warps, wide, !early>(memory, sum_3_partial, chunks, padded, begins, begin, columns);
      const w::bf16 cast_4 = w::cast<w::bf16>(sum_2);
      const w::bf16 cast_5 = w::cast<w::bf16>(sum_3);
      if (exists) {
        out1[column] = cast_4;
        out2[column] = cast_5;
      }
    }
  }
}
