// schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=none
// program log_softmax_backward(s0)
//   dim m = s0
//   dim n = 1024
//   input dy: bf16 [m:1024, n:1]
//   input log_y: bf16 [m:1024, n:1]
//   cast: f32{m, n} = cast(dy)
//   cast_1: f32{m, n} = cast(log_y)
//   exp: f32{m, n} = exp(cast_1)
//   sum: f32{m} = sum[n](cast)
//   mul: f32{m, n} = mul(exp, sum)
//   sub: f32{m, n} = sub(cast, mul)
//   cast_2: bf16{m, n} = cast(sub)
//   output out0: bf16 [m:1024, n:1] = cast_2
// end
#include "weft_cpu.h"

extern "C" void weft_log_softmax_backward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* dy_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* log_y_data = static_cast<const w::bf16*>(buffers[1]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[2]);

  constexpr int64_t rows_per_chunk = 64;
  const int64_t rows = m_size;
  const int64_t chunks = w::chunks_of(rows, rows_per_chunk);

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * rows_per_chunk;
      const int64_t last = std::min(first + rows_per_chunk, rows);
      w::for_tiles<4>(first, last, m_size, [&](int64_t tile, auto whole) {
        constexpr int tile_rows = whole.count;
        w::Sum<float> sum_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto dy = w::load(dy_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(dy);
            sum_lanes[r].add(cast, lanes);
          }
        });
        float sum[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum[r] = sum_lanes[r].result();
        }
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto dy = w::load(dy_data + m * 1024 + n, lanes);
            const auto log_y = w::load(log_y_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(dy);
            const auto cast_1 = w::cast<float>(log_y);
            const auto exp = w::exp(cast_1);
            const auto mul = exp * w::vec(sum[r]);
            const auto sub = cast - mul;
            const auto cast_2 = w::cast<w::bf16>(sub);
            w::store(out0_data + m * 1024 + n, cast_2, lanes);
          }
        });
      });
    }
  }
}
