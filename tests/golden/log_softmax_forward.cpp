// schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=none
// program log_softmax_forward(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   cast: f32{m, n} = cast(x)
//   max: f32{m} = max[n](cast)
//   sub: f32{m, n} = sub(cast, max)
//   exp: f32{m, n} = exp(sub)
//   sum: f32{m} = sum[n](exp)
//   log: f32{m} = log(sum)
//   sub_1: f32{m, n} = sub(sub, log)
//   cast_1: bf16{m, n} = cast(sub_1)
//   output out0: bf16 [m:1024, n:1] = cast_1
// end
#include "weft_cpu.h"

extern "C" void weft_log_softmax_forward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[1]);

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
        w::Max<float> max_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            max_lanes[r].add(cast, lanes);
          }
        });
        float max[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          max[r] = max_lanes[r].result();
        }
        w::Sum<float> sum_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(max[r]);
            const auto exp = w::exp(sub);
            sum_lanes[r].add(exp, lanes);
          }
        });
        float sum[tile_rows], log[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum[r] = sum_lanes[r].result();
          log[r] = w::log(sum[r]);
        }
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(max[r]);
            const auto sub_1 = sub - w::vec(log[r]);
            const auto cast_1 = w::cast<w::bf16>(sub_1);
            w::store(out0_data + m * 1024 + n, cast_1, lanes);
          }
        });
      });
    }
  }
}
