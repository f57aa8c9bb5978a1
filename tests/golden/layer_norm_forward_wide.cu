// schedule CLUSTER rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=cuda cluster=8 warps=7 groups=1 blocks=2 vectors=10 lanes=8 stages=2 chunks=30 weights=registers lag=0 tile=shared
// program layer_norm_forward()
//   dim m = 1024
//   dim n = 131072
//   input x: bf16 [m:131072, n:1]
//   input weight: bf16 [n:1]
//   input bias: bf16 [n:1]
//   cast: f32{m, n} = cast(x)
//   sum: f32{m} = sum[n](cast)
//   const: f32{} = const[7.62939453125e-06]()
//   mul: f32{m} = mul(sum, const)
//   sub: f32{m, n} = sub(cast, mul)
//   mul_1: f32{m, n} = mul(sub, sub)
//   sum_1: f32{m} = sum[n](mul_1)
//   mul_2: f32{m} = mul(sum_1, const)
//   const_1: f32{} = const[1e-06]()
//   add: f32{m} = add(mul_2, const_1)
//   rsqrt: f32{m} = rsqrt(add)
//   mul_3: f32{m, n} = mul(sub, rsqrt)
//   cast_1: f32{n} = cast(weight)
//   mul_4: f32{m, n} = mul(mul_3, cast_1)
//   cast_2: f32{n} = cast(bias)
//   add_1: f32{m, n} = add(mul_4, cast_2)
//   cast_3: bf16{m, n} = cast(add_1)
//   output out0: bf16 [m:131072, n:1] = cast_3
// end

extern "C" __global__ void __launch_bounds__(256, 2)
weft_layer_norm_forward(const w::bf16* __restrict__ x, const w::bf16* __restrict__ weight, const w::bf16* __restrict__ bias, w::bf16* out0, unsigned long long* counter) {
  constexpr int lanes = 8, cluster = 8, warps = 7;
  constexpr int threads = 32 * warps;
  constexpr int columns = 131072;
  const int64_t rows = 1024;
  constexpr bool early = !WEFT_ALIGNED_x;
  constexpr int own = (columns + (early ? lanes - 1 : 0) + cluster * lanes - 1) / (cluster * lanes);
  constexpr int thread_vectors = (own + threads - 1) / threads;
  constexpr int surely = (columns + lanes - 1) / lanes - (cluster - 1) * own;
  constexpr bool ragged = early || columns % lanes != 0;
  constexpr bool x_together = WEFT_ALIGNED_x;
  constexpr bool out0_together = WEFT_ALIGNED_x && WEFT_ALIGNED_out0;
  constexpr bool weight_together = !early && WEFT_ALIGNED_weight;
  constexpr bool bias_together = !early && WEFT_ALIGNED_bias;
  extern __shared__ __align__(128) uint8_t memory[];
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(memory + 69680);
  const int rank = w::rank_in_cluster<cluster>(), first = rank * own;
  int64_t* const next_rows = reinterpret_cast<int64_t*>(memory + 69632);
  w::Ring<2, 33024, warps, w::Eviction::last> ring(memory, barriers, next_rows);
  w::Exchange<cluster, warps, 4, 2> exchange(memory + 66048, barriers + 4, rank);
  w::TileQueue<cluster, 4> queue(rows, counter, next_rows + 2, barriers + 6, rank);
  const auto beginning = [](const auto* row) { return early ? w::elements_early<lanes>(row) : 0; };
  const auto has_vector = [&](int k, int vector, int column) {
    return (k + 1) * threads <= surely || (vector < own && column < columns);
  };
  const auto at_edge = [&](int k) {
    return ragged && (k == 0 || (k + 1) * threads >= surely - 1);
  };
  if (threadIdx.x == 0) {
    ring.start(1);
    exchange.start();
    queue.start();
    w::started_barriers();
  }
  w::wait_for_cluster<cluster>();

  if (threadIdx.x >= threads) {
    if (threadIdx.x == threads) {
      const int64_t first_row = queue.first(), end_row = rows;
      const auto x_at = [&](int64_t row) { return x + row * 131072; };
      for (int64_t row = first_row, next_row; row < end_row; row = next_row) {
        next_row = queue.next();
        ring.wait_until_free();
        ring.set_next_row(next_row);
        const int before = beginning(x_at(row));
        const int begin = max(first * lanes - before, 0);
        const int end = min((first + own) * lanes - before, columns);
        ring.copy(0, x_at(row) + begin, x_at(row) + end, x + 134217728);
        ring.copied();
      }
    }
  }
  else {
    const int thread = threadIdx.x;
    const int64_t first_row = queue.first(), end_row = rows;
    const auto x_at = [&](int64_t row) { return x + row * 131072; };
    const auto weight_at = [&](int64_t row) { return weight; };
    const auto bias_at = [&](int64_t row) { return bias; };
    const auto out0_at = [&](int64_t row) { return out0 + row * 131072; };
    const int before = early ? w::once(beginning(x_at(first_row))) : 0;
    w::Vector<w::bf16, lanes> weight_tile[thread_vectors];
    #pragma unroll
    for (int k = 0; k < thread_vectors; ++k) {
      const int vector = thread + k * threads;
      const int column = (first + vector) * lanes - before;
      if (has_vector(k, vector, column)) {
        const bool inner = !at_edge(k) || w::whole<2 * lanes>(column, columns);
        weight_tile[k] = w::load_row<lanes, weight_together>(weight_at(first_row), column, columns, inner);
      }
    }
    w::Vector<w::bf16, lanes> bias_tile[thread_vectors];
    #pragma unroll
    for (int k = 0; k < thread_vectors; ++k) {
      const int vector = thread + k * threads;
      const int column = (first + vector) * lanes - before;
      if (has_vector(k, vector, column)) {
        const bool inner = !at_edge(k) || w::whole<2 * lanes>(column, columns);
        bias_tile[k] = w::load_row<lanes, bias_together>(bias_at(first_row), column, columns, inner);
      }
    }
    for (int64_t row = first_row, next_row; row < end_row; row = next_row) {
      ring.wait_until_filled();
      next_row = ring.next_row();
      w::Moments<float> m2_state;
      const int begin = max(first * lanes - before, 0);
      const auto* const x_stage = ring.row(0, x_at(row), begin);
      ring.next();
      #pragma unroll
      for (int k = 0; k < thread_vectors; ++k) {
        const int vector = thread + k * threads;
        const int column = (first + vector) * lanes - before;
        if (has_vector(k, vector, column)) {
          const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
          const auto x_tile = w::load_copied<lanes, x_together>(x_stage, column, columns, whole);
          float m2_block[lanes];
          #pragma unroll
          for (int i = 0; i < lanes; ++i) {
            const float cast = w::cast<float>(x_tile[i]);
            m2_block[i] = cast;
          }
          if (!whole) {
            m2_state.keep_inside(m2_block, k == 0, column, columns);
          }
          m2_state.add(m2_block, k);
        }
      }
      exchange.reduce_moments(columns, m2_state);
      const float sum = m2_state.elements(), m2 = m2_state.total();
      const float mul = sum * 7.6293945e-06f;
      const float mul_1 = m2 * 7.6293945e-06f;
      const float add = mul_1 + 1e-06f;
      const float rsqrt = w::rsqrt(add);
      const float mul_2 = mul * rsqrt;
      auto* const out0_row = w::once(out0_at(row) + (first + thread) * lanes - before);
      #pragma unroll
      for (int k = 0; k < thread_vectors; ++k) {
        const int vector = thread + k * threads;
        const int column = (first + vector) * lanes - before;
        if (has_vector(k, vector, column)) {
          const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
          const auto x_tile = w::load_copied<lanes, x_together>(x_stage, column, columns, whole);
          const auto weight_vector = w::kept(weight_tile[k]);
          const auto bias_vector = w::kept(bias_tile[k]);
          float cast_3_lanes[lanes];
          #pragma unroll
          for (int i = 0; i < lanes; ++i) {
            const float cast = w::cast<float>(x_tile[i]);
            const float mul_3 = cast * rsqrt;
            const float sub = mul_3 - mul_2;
            const float cast_1 = w::cast<float>(weight_vector[i]);
            const float mul_4 = sub * cast_1;
            const float cast_2 = w::cast<float>(bias_vector[i]);
            const float add_1 = mul_4 + cast_2;
            cast_3_lanes[i] = add_1;
          }
          const auto cast_3_tile = w::rounded<w::bf16>(cast_3_lanes);
          w::store_row<out0_together>(out0_row + k * threads * lanes, cast_3_tile, column, columns, whole);
        }
      }
      ring.release();
    }
  }
}
