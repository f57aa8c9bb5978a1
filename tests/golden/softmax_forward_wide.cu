// schedule CLUSTER rows=(m) columns=(n) segments=() rows_per_tile=1 finish=none backend=cuda cluster=2 warps=12 groups=1 blocks=1 vectors=9 lanes=8 stages=2 chunks=66 weights=registers lag=0 tile=exponentials
// program softmax_forward()
//   dim m = 1024
//   dim n = 50257
//   input x: bf16 [m:50257, n:1]
//   cast: f32{m, n} = cast(x)
//   max: f32{m} = max[n](cast)
//   sub: f32{m, n} = sub(cast, max)
//   exp: f32{m, n} = exp(sub)
//   sum: f32{m} = sum[n](exp)
//   div: f32{m, n} = div(exp, sum)
//   cast_1: bf16{m, n} = cast(div)
//   output out0: bf16 [m:50257, n:1] = cast_1
// end

extern "C" __global__ void __launch_bounds__(416, 1)
weft_softmax_forward(const w::bf16* __restrict__ x, w::bf16* out0, unsigned long long* counter) {
  constexpr int lanes = 8, cluster = 2, warps = 12;
  constexpr int threads = 32 * warps;
  constexpr int columns = 50257;
  const int64_t rows = 1024;
  constexpr bool early = true;
  constexpr int own = (columns + (early ? lanes - 1 : 0) + cluster * lanes - 1) / (cluster * lanes);
  constexpr int thread_vectors = (own + threads - 1) / threads;
  constexpr int surely = (columns + lanes - 1) / lanes - (cluster - 1) * own;
  constexpr bool ragged = early || columns % lanes != 0;
  constexpr bool x_together = WEFT_ALIGNED_x;
  constexpr bool out0_together = WEFT_ALIGNED_x && WEFT_ALIGNED_out0;
  extern __shared__ __align__(128) uint8_t memory[];
  uint64_t* const barriers = reinterpret_cast<uint64_t*>(memory + 101296);
  const int rank = w::rank_in_cluster<cluster>(), first = rank * own;
  int64_t* const next_rows = reinterpret_cast<int64_t*>(memory + 101248);
  w::Ring<2, 50432, warps, w::Eviction::last> ring(memory, barriers, next_rows);
  w::Exchange<cluster, warps, 1, 2> exchange(memory + 100864, barriers + 4, rank);
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
      const auto x_at = [&](int64_t row) { return x + row * 50257; };
      for (int64_t row = first_row, next_row; row < end_row; row = next_row) {
        next_row = queue.next();
        ring.wait_until_free();
        ring.set_next_row(next_row);
        const int before = beginning(x_at(row));
        const int begin = max(first * lanes - before, 0);
        const int end = min((first + own) * lanes - before, columns);
        ring.copy(0, x_at(row) + begin, x_at(row) + end, x + 51463168);
        ring.copied();
      }
    }
  }
  else {
    const int thread = threadIdx.x;
    const int64_t first_row = queue.first(), end_row = rows;
    const auto x_at = [&](int64_t row) { return x + row * 50257; };
    const auto out0_at = [&](int64_t row) { return out0 + row * 50257; };
    for (int64_t row = first_row, next_row; row < end_row; row = next_row) {
      ring.wait_until_filled();
      next_row = ring.next_row();
      w::Parts<w::Max, float> sumexp_largest;
      const int before = beginning(x_at(row));
      const int begin = max(first * lanes - before, 0);
      const auto* const x_stage = ring.row(0, x_at(row), begin);
      ring.next();
      float sumexp_row[thread_vectors][lanes];
      #pragma unroll
      for (int k = 0; k < thread_vectors; ++k) {
        const int vector = thread + k * threads;
        const int column = (first + vector) * lanes - before;
        if (has_vector(k, vector, column)) {
          const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
          const auto x_tile = w::load_copied<lanes, x_together>(x_stage, column, columns, whole);
          auto& sumexp_block = sumexp_row[k];
          #pragma unroll
          for (int i = 0; i < lanes; ++i) {
            const float cast = w::cast<float>(x_tile[i]);
            sumexp_block[i] = cast;
          }
          if (!whole) {
            w::keep_inside<w::Max>(sumexp_block, column, columns);
          }
          sumexp_largest.add(sumexp_block);
        }
      }
      ring.release();
      w::Exponentials<float> sumexp_terms(sumexp_largest.total());
      #pragma unroll
      for (int k = 0; k < thread_vectors; ++k) {
        const int vector = thread + k * threads;
        const int column = (first + vector) * lanes - before;
        if (has_vector(k, vector, column)) {
          sumexp_terms.add(sumexp_row[k]);
        }
      }
      w::Sumexp<float> sumexp_state = sumexp_terms.state();
      exchange.template reduce<w::Merge>(sumexp_state);
      const float max_ = sumexp_state.centre, sumexp = sumexp_state.total();
      const float div_factor = w::div_rounded(sumexp_terms.about(max_), sumexp);
      auto* const out0_row = w::once(out0_at(row) + (first + thread) * lanes - before);
      #pragma unroll
      for (int k = 0; k < thread_vectors; ++k) {
        const int vector = thread + k * threads;
        const int column = (first + vector) * lanes - before;
        if (has_vector(k, vector, column)) {
          const bool whole = !at_edge(k) || w::whole<lanes>(column, columns);
          float cast_1_lanes[lanes];
          #pragma unroll
          for (int i = 0; i < lanes; ++i) {
            const float div = sumexp_row[k][i] * div_factor;
            cast_1_lanes[i] = div;
          }
          const auto cast_1_tile = w::rounded<w::bf16>(cast_1_lanes);
          w::store_row<out0_together>(out0_row + k * threads * lanes, cast_1_tile, column, columns, whole);
        }
      }
    }
  }
}
