// schedule CLUSTER rows=(m0, m1) columns=(n) segments=(m0) rows_per_tile=2 finish=separate backend=cuda cluster=8 warps=8 groups=1 blocks=2 vectors=2 lanes=8 stages=2 chunks=30 weights=shared lag=0 tile=shared
// program modulated_layer_norm_backward()
//   dim m0 = 8
//   dim m1 = 128
//   dim n = 32768
//   input dy: bf16 [m0:4194304, m1:32768, n:1]
//   input x: bf16 [m0:4194304, m1:32768, n:1]
//   input scale: bf16 [m0:32768, n:1]
//   input mean: f32 [m0:128, m1:1]
//   input rstd: f32 [m0:128, m1:1]
//   cast: f32{m0, m1, n} = cast(x)
//   sub: f32{m0, m1, n} = sub(cast, mean)
//   mul: f32{m0, m1, n} = mul(sub, rstd)
//   cast_1: f32{m0, m1, n} = cast(dy)
//   cast_2: f32{m0, n} = cast(scale)
//   const: f32{} = const[1.0]()
//   add: f32{m0, n} = add(cast_2, const)
//   mul_1: f32{m0, m1, n} = mul(cast_1, add)
//   sum: f32{m0, m1} = sum[n](mul_1)
//   const_1: f32{} = const[3.0517578125e-05]()
//   mul_2: f32{m0, m1} = mul(sum, const_1)
//   sub_1: f32{m0, m1, n} = sub(mul_1, mul_2)
//   mul_3: f32{m0, m1, n} = mul(mul, mul_1)
//   sum_1: f32{m0, m1} = sum[n](mul_3)
//   mul_4: f32{m0, m1} = mul(sum_1, const_1)
//   mul_5: f32{m0, m1, n} = mul(mul, mul_4)
//   sub_2: f32{m0, m1, n} = sub(sub_1, mul_5)
//   mul_6: f32{m0, m1, n} = mul(rstd, sub_2)
//   mul_7: f32{m0, m1, n} = mul(cast_1, mul)
//   sum_2: f32{m0, n} = sum[m1](mul_7)
//   sum_3: f32{m0, n} = sum[m1](cast_1)
//   cast_3: bf16{m0, m1, n} = cast(mul_6)
//   cast_4: bf16{m0, n} = cast(sum_2)
//   cast_5: bf16{m0, n} = cast(sum_3)
//   output out0: bf16 [m0:4194304, m1:32768, n:1] = cast_3
//   output out1: bf16 [m0:32768, n:1] = cast_4
//   output out2: bf16 [m0:32768, n:1] = cast_5
// end

extern "C" __global__ void __launch_bounds__(288, 2)
weft_modulated_layer_norm_backward(const w::bf16* __restrict__ dy, const w::bf16* __restrict__ x, const w::bf16* __restrict__ scale, const float* __restrict__ mean, const float* __restrict__ rstd, w::bf16* out0, w::bf16* out1, w::bf16* out2, float* sum_2_partial, float* sum_3_partial) {
  constexpr int lanes = 8, cluster = 8, warps = 8;
  constexpr int threads = 32 * warps;
  constexpr int tile_rows = 2;
  constexpr int turn = 3;
  constexpr int columns = 32768;
  const int64_t rows = 128;
  const int64_t segments = 8;
  constexpr int chunks = 30;
  constexpr w::ChunkParts<int> parts{segments, chunks};
  constexpr bool early = !WEFT_ALIGNED_dy;
  constexpr int own = (columns + (early ? lanes - 1 : 0) + cluster * lanes - 1) / (cluster * lanes);
  constexpr int thread_vectors = (own + threads - 1) / threads;
  constexpr int surely = (columns + lanes - 1) / lanes - (cluster - 1) * own;
  constexpr bool ragged = early || columns % lanes != 0;
  constexpr bool dy_together = WEFT_ALIGNED_dy;
  constexpr bool x_together = WEFT_ALIGNED_dy && WEFT_ALIGNED_x;
  constexpr bool out0_together = WEFT_ALIGNED_dy && WEFT_ALIGNED_out0;
  constexpr bool scale_together = !early && WEFT_ALIGNED_scale;
  extern __shared__ __align__(128) uint8_t memory[];
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(memory + 88464);
  const int rank = w::rank_in_cluster<cluster>(), first = rank * own;
  int64_t* const next_rows = reinterpret_cast<int64_t*>(memory + 88448);
  w::Ring<2, 33920, warps, w::Eviction::last> ring(memory, barriers, next_rows);
  w::Exchange<cluster, warps, 4, 2> exchange(memory + 84352, barriers + 4, rank);
  const auto beginning = [](const auto* row) { return early ? w::elements_early<lanes>(row) : 0; };
  constexpr int64_t padded = (columns + (early ? lanes - 1 : 0) + lanes - 1) / lanes * lanes;
  const auto has_vector = [&](int k, int vector, int column) {
    return (k + 1) * threads <= surely || (vector < own && column < columns);
  };
  const auto at_edge = [&](int k) {
    return ragged && (k == 0 || (k + 1) * threads >= surely - 1);
  };
  auto* const scale_memory = reinterpret_cast<float*>(memory + 67840);
  if (threadIdx.x == 0) {
    ring.start(2);
    exchange.start();
    w::started_barriers();
  }
  w::wait_for_cluster<cluster>();

  if (threadIdx.x >= threads) {
    if (threadIdx.x == threads) {
      for (int chunk = blockIdx.x / cluster; chunk < chunks; chunk += gridDim.x / cluster) {
        for (int part = parts.first(chunk); part <= parts.last(chunk); ++part) {
          const int64_t segment = parts.place(part);
          auto tiles = w::tiles_of<1, tile_rows, turn>(parts, part, chunk, rows);
          const int64_t first_row = tiles.next(), end_row = rows;
          const auto dy_at = [&](int64_t row) { return dy + segment * 4194304 + row * 32768; };
          const auto x_at = [&](int64_t row) { return x + segment * 4194304 + row * 32768; };
          const auto mean_at = [&](int64_t row) { return mean + segment * 128 + row; };
          const auto rstd_at = [&](int64_t row) { return rstd + segment * 128 + row; };
          for (int64_t row = first_row, next_row; row < end_row; row = next_row) {
            next_row = tiles.next();
            ring.wait_until_free();
            ring.set_next_row(next_row);
            #pragma unroll
            for (int r = 0; r < tile_rows; ++r) {
              if (row + r < end_row) {
                const int before = beginning(dy_at(row + r));
                const int begin = max(first * lanes - before, 0);
                const int end = min((first + own) * lanes - before, columns);
                ring.copy(r * 8448, dy_at(row + r) + begin, dy_at(row + r) + end, dy + 33554432);
                ring.copy(16896 + r * 8448, x_at(row + r) + begin, x_at(row + r) + end, x + 33554432);
                ring.copy_number(33792 + r * 8, mean_at(row + r));
                ring.copy_number(33808 + r * 8, rstd_at(row + r));
              }
            }
            ring.numbers_copied();
            ring.copied();
          }
        }
      }
    }
  }
  else {
    const int thread = threadIdx.x;
    for (int chunk = blockIdx.x / cluster; chunk < chunks; chunk += gridDim.x / cluster) {
      for (int part = parts.first(chunk); part <= parts.last(chunk); ++part) {
        const int64_t segment = parts.place(part);
        auto tiles = w::tiles_of<1, tile_rows, turn>(parts, part, chunk, rows);
        const int64_t first_row = tiles.next(), end_row = rows;
        const auto dy_at = [&](int64_t row) { return dy + segment * 4194304 + row * 32768; };
        const auto x_at = [&](int64_t row) { return x + segment * 4194304 + row * 32768; };
        const auto scale_at = [&](int64_t row) { return scale + segment * 32768; };
        const auto out0_at = [&](int64_t row) { return out0 + segment * 4194304 + row * 32768; };
        const int before = early ? w::once(beginning(dy_at(first_row))) : 0;
        const w::Planes<float, lanes, 4> scale_tile{scale_memory, own};
        if (first_row < end_row) {
          #pragma unroll
          for (int k = 0; k < thread_vectors; ++k) {
            const int vector = thread + k * threads;
            const int column = (first + vector) * lanes - before;
            if (has_vector(k, vector, column)) {
              const bool inner = !at_edge(k) || w::whole<2 * lanes>(column, columns);
              scale_tile.set(vector, w::load_row<lanes, scale_together>(scale_at(first_row), column, columns, inner));
            }
          }
        }
        float sum_2[thread_vectors][lanes];
        w::fill(sum_2, 0.0f);
        float sum_3[thread_vectors][lanes];
        w::fill(sum_3, 0.0f);
        for (int64_t row = first_row, next_row; row < end_row; row = next_row) {
          ring.wait_until_filled();
          next_row = ring.next_row();
          const w::bf16* dy_stage[tile_rows];
          const w::bf16* x_stage[tile_rows];
          const float* mean_stage[tile_rows];
          const float* rstd_stage[tile_rows];
          #pragma unroll
          for (int r = 0; r < tile_rows; ++r) {
            const int begin = max(first * lanes - before, 0);
            dy_stage[r] = ring.row(r * 8448, dy_at(row + r), begin);
            x_stage[r] = ring.row(16896 + r * 8448, x_at(row + r), begin);
            mean_stage[r] = ring.number<float>(33792 + r * 8);
            rstd_stage[r] = ring.number<float>(33808 + r * 8);
          }
          ring.next();
          float mean_number[tile_rows];
          float rstd_number[tile_rows];
          float mul[tile_rows];
          #pragma unroll
          for (int r = 0; r < tile_rows; ++r) {
            mean_number[r] = row + r < end_row ? *mean_stage[r] : float();
            rstd_number[r] = row + r < end_row ? *rstd_stage[r] : float();
            mul[r] = mean_number[r] * rstd_number[r];
          }
          w::Parts<w::Sum, float> sum_state[tile_rows];
          w::Parts<w::Sum, float> sum_1_state[tile_rows];
          #pragma unroll
          for (int r = 0; r < tile_rows; ++r) {
            if (row + r < end_row) {
              #pragma unroll
              for (int k = 0; k < thread_vectors; ++k) {
                const int vector = thread + k * threads;
                const int column = (first + vector) * lanes - before;
                if (has_vector(k, vector, column)) {
                  const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
                  const auto dy_tile = w::load_copied<lanes, dy_together>(dy_stage[r], column, columns, whole);
                  const auto x_tile = w::load_copied<lanes, x_together>(x_stage[r], column, columns, whole);
                  const auto scale_vector = scale_tile.at(vector);
                  float sum_block[lanes];
                  float sum_1_block[lanes];
                  #pragma unroll
                  for (int i = 0; i < lanes; ++i) {
                    const float cast = w::cast<float>(x_tile[i]);
                    const float mul_1 = cast * rstd_number[r];
                    const float sub = mul_1 - mul[r];
                    const float cast_1 = w::cast<float>(dy_tile[i]);
                    const float cast_2 = w::cast<float>(scale_vector[i]);
                    const float add = cast_2 + 1.0f;
                    const float mul_2 = cast_1 * add;
                    const float mul_4 = sub * mul_2;
                    const float mul_12 = cast_1 * sub;
                    sum_block[i] = mul_2;
                    sum_1_block[i] = mul_4;
                    sum_2[k][i] = sum_2[k][i] + mul_12;
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
          float mul_3[tile_rows];
          float mul_5[tile_rows];
          float mul_6[tile_rows];
          float mul_7[tile_rows];
          float mul_8[tile_rows];
          float mul_9[tile_rows];
          #pragma unroll
          for (int r = 0; r < tile_rows; ++r) {
            mul_3[r] = sum[r] * 3.0517578e-05f;
            mul_5[r] = sum_1[r] * 3.0517578e-05f;
            mul_6[r] = mul[r] * mul_5[r];
            mul_7[r] = rstd_number[r] * mul_5[r];
            mul_8[r] = mul_6[r] * rstd_number[r];
            mul_9[r] = mul_7[r] * rstd_number[r];
          }
          #pragma unroll
          for (int r = 0; r < tile_rows; ++r) {
            if (row + r < end_row) {
              auto* const out0_row = w::once(out0_at(row + r) + (first + thread) * lanes - before);
              #pragma unroll
              for (int k = 0; k < thread_vectors; ++k) {
                const int vector = thread + k * threads;
                const int column = (first + vector) * lanes - before;
                if (has_vector(k, vector, column)) {
                  const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
                  const auto dy_tile = w::load_copied<lanes, dy_together>(dy_stage[r], column, columns, whole);
                  const auto x_tile = w::load_copied<lanes, x_together>(x_stage[r], column, columns, whole);
                  const auto scale_vector = scale_tile.at(vector);
                  float cast_3_lanes[lanes];
                  #pragma unroll
                  for (int i = 0; i < lanes; ++i) {
                    const float cast = w::cast<float>(x_tile[i]);
                    const float cast_1 = w::cast<float>(dy_tile[i]);
                    const float cast_2 = w::cast<float>(scale_vector[i]);
                    const float add = cast_2 + 1.0f;
                    const float mul_2 = cast_1 * add;
                    const float sub_1 = mul_2 - mul_3[r];
                    const float mul_10 = cast * mul_9[r];
                    const float sub_2 = mul_8[r] - mul_10;
                    const float mul_11 = sub_1 * rstd_number[r];
                    const float add_1 = mul_11 + sub_2;
                    cast_3_lanes[i] = add_1;
                  }
                  const auto cast_3_tile = w::rounded<w::bf16>(cast_3_lanes);
                  w::store_row<out0_together>(out0_row + k * threads * lanes, cast_3_tile, column, columns, whole);
                }
              }
            }
          }
          ring.release();
        }
        #pragma unroll
        for (int k = 0; k < thread_vectors; ++k) {
          const int vector = thread + k * threads;
          const int column = (first + vector) * lanes - before;
          if (has_vector(k, vector, column)) {
            w::store(sum_2_partial + part * padded + before + column, w::vector(sum_2[k]));
          }
        }
        #pragma unroll
        for (int k = 0; k < thread_vectors; ++k) {
          const int vector = thread + k * threads;
          const int column = (first + vector) * lanes - before;
          if (has_vector(k, vector, column)) {
            w::store(sum_3_partial + part * padded + before + column, w::vector(sum_3[k]));
          }
        }
      }
    }
  }
}


extern "C" __global__ void __launch_bounds__(256, 4)
weft_modulated_layer_norm_backward_finish(const w::bf16* __restrict__ dy, const w::bf16* __restrict__ x, const w::bf16* __restrict__ scale, const float* __restrict__ mean, const float* __restrict__ rstd, w::bf16* out0, w::bf16* out1, w::bf16* out2, float* sum_2_partial, float* sum_3_partial) {
  constexpr int warps = 8;
  constexpr int columns = 32768;
  const int64_t segments = 8;
  constexpr int chunks = 30;
  constexpr w::ChunkParts<int> parts{segments, chunks};
  constexpr int lanes = 8;
  constexpr bool early = !WEFT_ALIGNED_dy;
  const auto beginning = [](const auto* row) { return early ? w::elements_early<lanes>(row) : 0; };
  constexpr int64_t padded = (columns + (early ? lanes - 1 : 0) + lanes - 1) / lanes * lanes;
  const auto begins = [&](int part) {
    const int64_t segment = parts.place(part);
    return beginning(dy + segment * 4194304);
  };
  const int thread = threadIdx.x;
  __shared__ __align__(16) uint8_t memory[4096];
  {
    constexpr int wide = 4, task_columns = 32 * wide;
    const int blocks = (columns + task_columns - 1) / task_columns;
    for (int64_t task = blockIdx.x; task < 8 * blocks; task += gridDim.x) {
      const int64_t segment = task / blocks;
      const int64_t first_part = parts.begin(segment), own_parts = parts.begin(segment + 1) - first_part;
      const int begin = static_cast<int>(task % blocks) * task_columns, column = begin + thread;
      const bool exists = thread < task_columns && column < columns;
      const float sum_2 = w::gathered_columns<w::Sum, warps, wide, !early>(memory, sum_2_partial + first_part * padded, own_parts, padded, [&](int part) { return begins(first_part + part); }, begin, columns);
      const float sum_3 = w::gathered_columns<w::Sum, warps, wide, !early>(memory, sum_3_partial + first_part * padded, own_parts, padded, [&](int part) { return begins(first_part + part); }, begin, columns);
      const w::bf16 cast_4 = w::cast<w::bf16>(sum_2);
      const w::bf16 cast_5 = w::cast<w::bf16>(sum_3);
      if (exists) {
        out1[segment * 32768 + column] = cast_4;
        out2[segment * 32768 + column] = cast_5;
      }
    }
  }
}
