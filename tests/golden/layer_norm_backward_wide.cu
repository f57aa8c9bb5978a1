// schedule CLUSTER rows=(m) columns=(n) segments=() rows_per_tile=2 finish=separate backend=cuda cluster=8 warps=7 groups=1 blocks=1 vectors=4 lanes=8 stages=2 chunks=15 weights=shared lag=0 tile=registers
// program layer_norm_backward()
//   dim m = 1024
//   dim n = 50257
//   input dy: bf16 [m:50257, n:1]
//   input x: bf16 [m:50257, n:1]
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
//   const: f32{} = const[50257.0]()
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
//   output out0: bf16 [m:50257, n:1] = cast_3
//   output out1: bf16 [n:1] = cast_4
//   output out2: bf16 [n:1] = cast_5
// end

extern "C" __global__ void __launch_bounds__(256, 1)
weft_layer_norm_backward(const w::bf16* __restrict__ dy, const w::bf16* __restrict__ x, const w::bf16* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd, w::bf16* out0, w::bf16* out1, w::bf16* out2, float* sum_2_partial, float* sum_3_partial) {
  constexpr int lanes = 8, cluster = 8, warps = 7;
  constexpr int threads = 32 * warps;
  constexpr int tile_rows = 2;
  constexpr int turn = 3;
  constexpr int columns = 50257;
  const int64_t rows = 1024;
  constexpr int chunks = 15;
  constexpr int apart = 8;
  constexpr w::ChunkParts<int> parts{apart, chunks};
  constexpr bool early = true;
  constexpr int own = (columns + (early ? lanes - 1 : 0) + cluster * lanes - 1) / (cluster * lanes);
  constexpr int thread_vectors = (own + threads - 1) / threads;
  constexpr int surely = (columns + lanes - 1) / lanes - (cluster - 1) * own;
  constexpr bool ragged = early || columns % lanes != 0;
  constexpr bool dy_together = WEFT_ALIGNED_dy;
  constexpr bool x_together = WEFT_ALIGNED_dy && WEFT_ALIGNED_x;
  constexpr bool out0_together = WEFT_ALIGNED_dy && WEFT_ALIGNED_out0;
  constexpr bool weight_together = !early && WEFT_ALIGNED_weight;
  extern __shared__ __align__(128) uint8_t memory[];
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(memory + 131472);
  const int rank = w::rank_in_cluster<cluster>(), first = rank * own;
  int64_t* const next_rows = reinterpret_cast<int64_t*>(memory + 131456);
  w::Ring<2, 51328, warps, w::Eviction::last> ring(memory, barriers, next_rows);
  w::Exchange<cluster, warps, 4, 2> exchange(memory + 127872, barriers + 4, rank);
  const auto beginning = [](const auto* row) { return early ? w::elements_early<lanes>(row) : 0; };
  constexpr int64_t padded = (columns + (early ? lanes - 1 : 0) + lanes - 1) / lanes * lanes;
  // those of a block from its second one on, and its first one behind its last one
  const auto vector_of = [&](int thread, int k) {
    const int next = thread + k * threads + 1;
    return (k + 1) * threads >= own && next == own ? 0 : next;
  };
  const auto has_vector = [&](int k, int vector, int column) {
    return (k + 1) * threads < surely || (vector < own && column < columns);
  };
  const auto at_edge = [&](int k) {
    return ragged && (k + 1) * threads >= surely - 2;
  };
  auto* const weight_memory = reinterpret_cast<float*>(memory + 102656);
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
          auto tiles = w::tiles_of<apart, tile_rows, turn>(parts, part, chunk, rows);
          const int64_t first_row = tiles.next(), end_row = rows;
          const auto dy_at = [&](int64_t row) { return dy + row * 50257; };
          const auto x_at = [&](int64_t row) { return x + row * 50257; };
          const auto mean_at = [&](int64_t row) { return mean + row; };
          const auto rstd_at = [&](int64_t row) { return rstd + row; };
          for (int64_t row = first_row, next_row; row < end_row; row = next_row) {
            next_row = tiles.next();
            ring.wait_until_free();
            ring.set_next_row(next_row);
            #pragma unroll
            for (int r = 0; r < tile_rows; ++r) {
              if (row + r * apart < end_row) {
                const int before = beginning(dy_at(row + r * apart));
                const int begin = max(first * lanes - before, 0);
                const int end = min((first + own) * lanes - before, columns);
                ring.copy(r * 12800, dy_at(row + r * apart) + begin, dy_at(row + r * apart) + end, dy + 51463168);
                ring.copy(25600 + r * 12800, x_at(row + r * apart) + begin, x_at(row + r * apart) + end, x + 51463168);
                ring.copy_number(51200 + r * 8, mean_at(row + r * apart));
                ring.copy_number(51216 + r * 8, rstd_at(row + r * apart));
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
        auto tiles = w::tiles_of<apart, tile_rows, turn>(parts, part, chunk, rows);
        const int64_t first_row = tiles.next(), end_row = rows;
        const auto dy_at = [&](int64_t row) { return dy + row * 50257; };
        const auto x_at = [&](int64_t row) { return x + row * 50257; };
        const auto weight_at = [&](int64_t row) { return weight; };
        const auto out0_at = [&](int64_t row) { return out0 + row * 50257; };
        const int before = early ? w::once(beginning(dy_at(first_row))) : 0;
        w::Inside<lanes> row_lanes[thread_vectors];
        #pragma unroll
        for (int k = 0; k < thread_vectors; ++k) {
          const int vector = vector_of(thread, k);
          const int column = (first + vector) * lanes - before;
          if (has_vector(k, vector, column)) {
            if (at_edge(k)) row_lanes[k] = {column, columns};
          }
        }
        const w::Planes<float, lanes, 4> weight_tile{weight_memory, own};
        if (first_row < end_row) {
          #pragma unroll
          for (int k = 0; k < thread_vectors; ++k) {
            const int vector = vector_of(thread, k);
            const int column = (first + vector) * lanes - before;
            if (has_vector(k, vector, column)) {
              const bool inner = !at_edge(k) || w::whole<2 * lanes>(column, columns);
              weight_tile.set(vector, w::load_row<lanes, weight_together>(weight_at(first_row), column, columns, inner));
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
            dy_stage[r] = ring.row(r * 12800, dy_at(row + r * apart), begin);
            x_stage[r] = ring.row(25600 + r * 12800, x_at(row + r * apart), begin);
            mean_stage[r] = ring.number<float>(51200 + r * 8);
            rstd_stage[r] = ring.number<float>(51216 + r * 8);
          }
          ring.next();
          float mean_number[tile_rows];
          float rstd_number[tile_rows];
          float mul[tile_rows];
          #pragma unroll
          for (int r = 0; r < tile_rows; ++r) {
            mean_number[r] = row + r * apart < end_row ? *mean_stage[r] : float();
            rstd_number[r] = row + r * apart < end_row ? *rstd_stage[r] : float();
            mul[r] = mean_number[r] * rstd_number[r];
          }
          w::Vector<w::bf16, lanes> dy_row[tile_rows][thread_vectors];
          w::Vector<w::bf16, lanes> x_row[tile_rows][thread_vectors];
          #pragma unroll
          for (int r = 0; r < tile_rows; ++r) {
            if (row + r * apart < end_row) {
              #pragma unroll
              for (int k = 0; k < thread_vectors; ++k) {
                const int vector = vector_of(thread, k);
                const int column = (first + vector) * lanes - before;
                if (has_vector(k, vector, column)) {
                  const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
                  const auto dy_tile = w::load_copied<lanes, dy_together>(dy_stage[r], column, columns, whole);
                  dy_row[r][k] = dy_tile;
                  const auto x_tile = w::load_copied<lanes, x_together>(x_stage[r], column, columns, whole);
                  x_row[r][k] = x_tile;
                }
              }
            }
          }
          ring.release();
          w::Parts<w::Sum, float> sum_state[tile_rows];
          w::Parts<w::Sum, float> sum_1_state[tile_rows];
          #pragma unroll
          for (int r = 0; r < tile_rows; ++r) {
            if (row + r * apart < end_row) {
              #pragma unroll
              for (int k = 0; k < thread_vectors; ++k) {
                const int vector = vector_of(thread, k);
                const int column = (first + vector) * lanes - before;
                if (has_vector(k, vector, column)) {
                  const auto dy_tile = row_lanes[k].of(w::kept(dy_row[r][k]), at_edge(k));
                  const auto x_tile = row_lanes[k].of(w::kept(x_row[r][k]), at_edge(k));
                  const auto weight_vector = weight_tile.at(vector);
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
            div[r] = sum[r] / 50257.0f;
            div_1[r] = sum_1[r] / 50257.0f;
            mul_4[r] = mul[r] * div_1[r];
            mul_5[r] = rstd_number[r] * div_1[r];
            mul_6[r] = mul_4[r] * rstd_number[r];
            mul_7[r] = mul_5[r] * rstd_number[r];
          }
          #pragma unroll
          for (int r = 0; r < tile_rows; ++r) {
            if (row + r * apart < end_row) {
              auto* const out0_row = w::once(out0_at(row + r * apart) + (first + thread) * lanes - before);
              #pragma unroll
              for (int k = 0; k < thread_vectors; ++k) {
                const int vector = vector_of(thread, k);
                const int column = (first + vector) * lanes - before;
                if (has_vector(k, vector, column)) {
                  const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
                  const auto dy_tile = w::kept(dy_row[r][k]);
                  const auto x_tile = w::kept(x_row[r][k]);
                  const auto weight_vector = weight_tile.at(vector);
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
                  w::store_row<out0_together>(out0_row + (vector - thread) * lanes, cast_3_tile, column, columns, whole);
                }
              }
            }
          }
        }
        #pragma unroll
        for (int k = 0; k < thread_vectors; ++k) {
          const int vector = vector_of(thread, k);
          const int column = (first + vector) * lanes - before;
          if (has_vector(k, vector, column)) {
            w::store(sum_2_partial + part * padded + before + column, w::vector(sum_2[k]));
          }
        }
        #pragma unroll
        for (int k = 0; k < thread_vectors; ++k) {
          const int vector = vector_of(thread, k);
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
weft_layer_norm_backward_finish(const w::bf16* __restrict__ dy, const w::bf16* __restrict__ x, const w::bf16* __restrict__ weight, const float* __restrict__ mean, const float* __restrict__ rstd, w::bf16* out0, w::bf16* out1, w::bf16* out2, float* sum_2_partial, float* sum_3_partial) {
  constexpr int warps = 8;
  constexpr int columns = 50257;
  constexpr int chunks = 15;
  constexpr int apart = 8;
  constexpr w::ChunkParts<int> parts{apart, chunks};
  constexpr int lanes = 8;
  constexpr bool early = true;
  const auto beginning = [](const auto* row) { return early ? w::elements_early<lanes>(row) : 0; };
  constexpr int64_t padded = (columns + (early ? lanes - 1 : 0) + lanes - 1) / lanes * lanes;
  const auto begins = [&](int part) {
    return beginning(dy + parts.place(part) * 50257);
  };
  const int thread = threadIdx.x;
  __shared__ __align__(16) uint8_t memory[4096];
  {
    constexpr int wide = 4, task_columns = 32 * wide;
    const int blocks = (columns + task_columns - 1) / task_columns;
    for (int64_t task = blockIdx.x; task < blocks; task += gridDim.x) {
      const int begin = static_cast<int>(task) * task_columns, column = begin + thread;
      const bool exists = thread < task_columns && column < columns;
      const float sum_2 = w::gathered_columns<w::Sum, warps, wide, !early>(memory, sum_2_partial, parts.count(), padded, begins, begin, columns);
      const float sum_3 = w::gathered_columns<w::Sum, warps, wide, !early>(memory, sum_3_partial, parts.count(), padded, begins, begin, columns);
      const w::bf16 cast_4 = w::cast<w::bf16>(sum_2);
      const w::bf16 cast_5 = w::cast<w::bf16>(sum_3);
      if (exists) {
        out1[column] = cast_4;
        out2[column] = cast_5;
      }
    }
  }
}
