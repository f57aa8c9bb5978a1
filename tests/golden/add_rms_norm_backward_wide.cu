// schedule CLUSTER rows=(m) columns=(n) segments=() rows_per_tile=1 finish=separate backend=cuda cluster=8 warps=4 groups=1 blocks=2 vectors=4 lanes=8 stages=3 chunks=30 weights=shared lag=1 tile=shared
// program add_rms_norm_backward()
//   dim m = 1024
//   dim n = 32768
//   input dy: bf16 [m:32768, n:1]
//   input dresidual: bf16 [m:32768, n:1]
//   input x: bf16 [m:32768, n:1]
//   input weight: bf16 [n:1]
//   input rstd: f32 [m:1]
//   cast: f32{m, n} = cast(x)
//   mul: f32{m, n} = mul(cast, rstd)
//   cast_1: f32{m, n} = cast(dy)
//   cast_2: f32{n} = cast(weight)
//   mul_1: f32{m, n} = mul(cast_1, cast_2)
//   mul_2: f32{m, n} = mul(mul, mul_1)
//   sum: f32{m} = sum[n](mul_2)
//   const: f32{} = const[3.0517578125e-05]()
//   mul_3: f32{m} = mul(sum, const)
//   mul_4: f32{m, n} = mul(mul, mul_3)
//   sub: f32{m, n} = sub(mul_1, mul_4)
//   mul_5: f32{m, n} = mul(rstd, sub)
//   cast_3: f32{m, n} = cast(dresidual)
//   add: f32{m, n} = add(mul_5, cast_3)
//   mul_6: f32{m, n} = mul(cast_1, mul)
//   sum_1: f32{n} = sum[m](mul_6)
//   cast_4: bf16{m, n} = cast(add)
//   cast_5: bf16{n} = cast(sum_1)
//   output out0: bf16 [m:32768, n:1] = cast_4
//   output out1: bf16 [n:1] = cast_5
// end

extern "C" __global__ void __launch_bounds__(160, 2)
weft_add_rms_norm_backward(const w::bf16* __restrict__ dy, const w::bf16* __restrict__ dresidual, const w::bf16* __restrict__ x, const w::bf16* __restrict__ weight, const float* __restrict__ rstd, w::bf16* out0, w::bf16* out1, float* sum_1_partial) {
  constexpr int lanes = 8, cluster = 8, warps = 4;
  constexpr int threads = 32 * warps;
  constexpr int columns = 32768;
  const int64_t rows = 1024;
  constexpr int chunks = 30;
  constexpr bool early = !WEFT_ALIGNED_dy;
  constexpr int own = (columns + (early ? lanes - 1 : 0) + cluster * lanes - 1) / (cluster * lanes);
  constexpr int thread_vectors = (own + threads - 1) / threads;
  constexpr int surely = (columns + lanes - 1) / lanes - (cluster - 1) * own;
  constexpr bool ragged = early || columns % lanes != 0;
  constexpr bool dy_together = WEFT_ALIGNED_dy;
  constexpr bool dresidual_together = WEFT_ALIGNED_dy && WEFT_ALIGNED_dresidual;
  constexpr bool x_together = WEFT_ALIGNED_dy && WEFT_ALIGNED_x;
  constexpr bool out0_together = WEFT_ALIGNED_dy && WEFT_ALIGNED_out0;
  constexpr bool weight_together = !early && WEFT_ALIGNED_weight;
  extern __shared__ __align__(128) uint8_t memory[];
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(memory + 93952);
  const int rank = w::rank_in_cluster<cluster>(), first = rank * own;
  w::Ring<3, 25472, warps, w::Eviction::last> ring(memory, barriers);
  w::Exchange<cluster, warps, 1, 4> exchange(memory + 92928, barriers + 6, rank);
  const auto beginning = [](const auto* row) { return early ? w::elements_early<lanes>(row) : 0; };
  constexpr int64_t padded = (columns + (early ? lanes - 1 : 0) + lanes - 1) / lanes * lanes;
  const auto has_vector = [&](int k, int vector, int column) {
    return (k + 1) * threads <= surely || (vector < own && column < columns);
  };
  const auto at_edge = [&](int k) {
    return ragged && (k == 0 || (k + 1) * threads >= surely - 1);
  };
  auto* const weight_memory = reinterpret_cast<float*>(memory + 76416);
  if (threadIdx.x == 0) {
    ring.start(2);
    exchange.start();
    w::started_barriers();
  }
  w::wait_for_cluster<cluster>();

  if (threadIdx.x >= threads) {
    if (threadIdx.x == threads) {
      for (int chunk = blockIdx.x / cluster; chunk < chunks; chunk += gridDim.x / cluster) {
        const int64_t first_row = chunk, end_row = rows, stride = chunks;
        const auto dy_at = [&](int64_t row) { return dy + row * 32768; };
        const auto dresidual_at = [&](int64_t row) { return dresidual + row * 32768; };
        const auto x_at = [&](int64_t row) { return x + row * 32768; };
        const auto rstd_at = [&](int64_t row) { return rstd + row; };
        for (int64_t row = first_row; row < end_row; row += stride) {
          ring.wait_until_free();
          const int before = beginning(dy_at(row));
          const int begin = max(first * lanes - before, 0);
          const int end = min((first + own) * lanes - before, columns);
          ring.copy(0, dy_at(row) + begin, dy_at(row) + end, dy + 33554432);
          ring.copy(8448, dresidual_at(row) + begin, dresidual_at(row) + end, dresidual + 33554432);
          ring.copy(16896, x_at(row) + begin, x_at(row) + end, x + 33554432);
          ring.copy_number(25344, rstd_at(row));
          ring.numbers_copied();
          ring.copied();
        }
      }
    }
  }
  else {
    const int thread = threadIdx.x;
    for (int chunk = blockIdx.x / cluster; chunk < chunks; chunk += gridDim.x / cluster) {
      const int64_t first_row = chunk, end_row = rows, stride = chunks;
      const auto dy_at = [&](int64_t row) { return dy + row * 32768; };
      const auto dresidual_at = [&](int64_t row) { return dresidual + row * 32768; };
      const auto x_at = [&](int64_t row) { return x + row * 32768; };
      const auto weight_at = [&](int64_t row) { return weight; };
      const auto out0_at = [&](int64_t row) { return out0 + row * 32768; };
      const int before = early ? w::once(beginning(dy_at(first_row))) : 0;
      const w::Planes<float, lanes, 4> weight_tile{weight_memory, own};
      #pragma unroll
      for (int k = 0; k < thread_vectors; ++k) {
        const int vector = thread + k * threads;
        const int column = (first + vector) * lanes - before;
        if (has_vector(k, vector, column)) {
          const bool inner = !at_edge(k) || w::whole<2 * lanes>(column, columns);
          weight_tile.set(vector, w::load_row<lanes, weight_together>(weight_at(first_row), column, columns, inner));
        }
      }
      float sum_1[thread_vectors][lanes];
      w::fill(sum_1, 0.0f);
      struct Tile {
        unsigned sent;
        int64_t row;
        float rstd_number;
        const w::bf16* dy_stage;
        const w::bf16* dresidual_stage;
        const w::bf16* x_stage;
      } held, fresh;
      #pragma unroll 1
      for (int64_t ahead = first_row; ; ahead += stride) {
        if (ahead < end_row) {
          const int64_t row = ahead;
          ring.wait_until_filled();
          const int begin = max(first * lanes - before, 0);
          const auto* const dy_stage = ring.row(0, dy_at(row), begin);
          const auto* const dresidual_stage = ring.row(8448, dresidual_at(row), begin);
          const auto* const x_stage = ring.row(16896, x_at(row), begin);
          const auto* const rstd_stage = ring.number<float>(25344);
          ring.next();
          const float rstd_number = *rstd_stage;
          w::Parts<w::Sum, float> sum_state;
          #pragma unroll
          for (int k = 0; k < thread_vectors; ++k) {
            const int vector = thread + k * threads;
            const int column = (first + vector) * lanes - before;
            if (has_vector(k, vector, column)) {
              const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
              const auto dy_tile = w::load_copied<lanes, dy_together>(dy_stage, column, columns, whole);
              const auto x_tile = w::load_copied<lanes, x_together>(x_stage, column, columns, whole);
              const auto weight_vector = weight_tile.at(vector);
              float sum_block[lanes];
              #pragma unroll
              for (int i = 0; i < lanes; ++i) {
                const float cast = w::cast<float>(x_tile[i]);
                const float mul = cast * rstd_number;
                const float cast_1 = w::cast<float>(dy_tile[i]);
                const float cast_2 = w::cast<float>(weight_vector[i]);
                const float mul_1 = cast_1 * cast_2;
                const float mul_2 = mul * mul_1;
                const float mul_7 = cast_1 * mul;
                sum_block[i] = mul_2;
                sum_1[k][i] = sum_1[k][i] + mul_7;
              }
              if (!whole) {
                w::keep_inside<w::Sum>(sum_block, column, columns);
              }
              sum_state.add(sum_block);
            }
          }
          float sum = sum_state.total();
          const unsigned sent = exchange.template send<w::Sum>(sum);
          fresh.sent = sent, fresh.row = row;
          fresh.rstd_number = rstd_number, fresh.dy_stage = dy_stage, fresh.dresidual_stage = dresidual_stage, fresh.x_stage = x_stage;
        }
        if (ahead != first_row) {
          const auto& sent = held.sent;
          const auto& row = held.row;
          const auto& rstd_number = held.rstd_number;
          const auto& dy_stage = held.dy_stage;
          const auto& dresidual_stage = held.dresidual_stage;
          const auto& x_stage = held.x_stage;
          float sum;
          exchange.template receive<w::Sum>(sent, sum);
          const float mul_3 = sum * 3.0517578e-05f;
          const float mul_4 = rstd_number * mul_3;
          auto* const out0_row = w::once(out0_at(row) + (first + thread) * lanes - before);
          #pragma unroll
          for (int k = 0; k < thread_vectors; ++k) {
            const int vector = thread + k * threads;
            const int column = (first + vector) * lanes - before;
            if (has_vector(k, vector, column)) {
              const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
              const auto dy_tile = w::load_copied<lanes, dy_together>(dy_stage, column, columns, whole);
              const auto dresidual_tile = w::load_copied<lanes, dresidual_together>(dresidual_stage, column, columns, whole);
              const auto x_tile = w::load_copied<lanes, x_together>(x_stage, column, columns, whole);
              const auto weight_vector = weight_tile.at(vector);
              float cast_4_lanes[lanes];
              #pragma unroll
              for (int i = 0; i < lanes; ++i) {
                const float cast = w::cast<float>(x_tile[i]);
                const float cast_1 = w::cast<float>(dy_tile[i]);
                const float cast_2 = w::cast<float>(weight_vector[i]);
                const float mul_1 = cast_1 * cast_2;
                const float mul_5 = cast * mul_4;
                const float sub = mul_1 - mul_5;
                const float mul_6 = rstd_number * sub;
                const float cast_3 = w::cast<float>(dresidual_tile[i]);
                const float add = mul_6 + cast_3;
                cast_4_lanes[i] = add;
              }
              const auto cast_4_tile = w::rounded<w::bf16>(cast_4_lanes);
              w::store_row<out0_together>(out0_row + k * threads * lanes, cast_4_tile, column, columns, whole);
            }
          }
          ring.release();
        }
        if (ahead >= end_row) break;
        held = fresh;
      }
      #pragma unroll
      for (int k = 0; k < thread_vectors; ++k) {
        const int vector = thread + k * threads;
        const int column = (first + vector) * lanes - before;
        if (has_vector(k, vector, column)) {
          w::store(sum_1_partial + chunk * padded + before + column, w::vector(sum_1[k]));
        }
      }
    }
  }
}


extern "C" __global__ void __launch_bounds__(256, 4)
weft_add_rms_norm_backward_finish(const w::bf16* __restrict__ dy, const w::bf16* __restrict__ dresidual, const w::bf16* __restrict__ x, const w::bf16* __restrict__ weight, const float* __restrict__ rstd, w::bf16* out0, w::bf16* out1, float* sum_1_partial) {
  constexpr int warps = 8;
  constexpr int columns = 32768;
  constexpr int chunks = 30;
  constexpr int lanes = 8;
  constexpr bool early = !WEFT_ALIGNED_dy;
  const auto beginning = [](const auto* row) { return early ? w::elements_early<lanes>(row) : 0; };
  constexpr int64_t padded = (columns + (early ? lanes - 1 : 0) + lanes - 1) / lanes * lanes;
  const auto begins = [&](int part) {
    return beginning(dy + part * 32768);
  };
  const int thread = threadIdx.x;
  __shared__ __align__(16) uint8_t memory[4096];
  {
    constexpr int wide = 4, task_columns = 32 * wide;
    const int blocks = (columns + task_columns - 1) / task_columns;
    for (int64_t task = blockIdx.x; task < blocks; task += gridDim.x) {
      const int begin = static_cast<int>(task) * task_columns, column = begin + thread;
      const bool exists = thread < task_columns && column < columns;
      const float sum_1 = w::gathered_columns<w::Sum, warps, wide, !early>(memory, sum_1_partial, chunks, padded, begins, begin, columns);
      const w::bf16 cast_5 = w::cast<w::bf16>(sum_1);
      if (exists) {
        out1[column] = cast_5;
      }
    }
  }
}
