// schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=same
// program row_column_sum(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   cast: f32{m, n} = cast(x)
//   sum: f32{m} = sum[n](cast)
//   cast_1: bf16{m} = cast(sum)
//   sum_1: f32{n} = sum[m](cast)
//   cast_2: bf16{n} = cast(sum_1)
//   output out0: bf16 [m:1] = cast_1
//   output out1: bf16 [n:1] = cast_2
// end
#include "weft_cpu.h"

extern "C" void weft_row_column_sum(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[1]);
  w::bf16* out1_data = static_cast<w::bf16*>(buffers[2]);

  // Column sums of every chunk of rows, combined in order by the finish below.
  constexpr int64_t rows_per_chunk = 64;
  const int64_t rows = m_size;
  const int64_t chunks = w::chunks_of(rows, rows_per_chunk);
  const w::Workspace<float, 0> sum_1_kept(chunks * n_size);
  float* sum_1_partial = sum_1_kept.data();

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * rows_per_chunk;
      const int64_t last = std::min(first + rows_per_chunk, rows);
      float* sum_1_chunk = sum_1_partial + chunk * n_size;
      w::fill(sum_1_chunk, n_size, 0.0f);
      w::for_tiles<4>(first, last, m_size, [&](int64_t tile, auto whole) {
        constexpr int tile_rows = whole.count;
        w::Sum<float> sum_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          auto sum_1_tile = w::vec(0.0f);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            sum_lanes[r].add(cast, lanes);
            sum_1_tile = sum_1_tile + cast;
          }
          w::store(sum_1_chunk + n, w::load(sum_1_chunk + n, lanes) + sum_1_tile, lanes);
        });
        float sum[tile_rows];
        w::bf16 cast_1[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum[r] = sum_lanes[r].result();
          cast_1[r] = w::cast<w::bf16>(sum[r]);
        }
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          const int64_t m = tile + r;
          out0_data[m] = cast_1[r];
        }
      });
    }
  }

  constexpr int64_t finish_columns = 512;

  #pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t block = 0; block < n_size; block += finish_columns) {
    const int64_t end = std::min(block + finish_columns, n_size);
    double sum_1_total[finish_columns];
    w::fill(sum_1_total, finish_columns, 0.0);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
        w::store(sum_1_total + n - block, w::load(sum_1_total + n - block, lanes) + w::cast<double>(w::load(sum_1_partial + chunk * n_size + n, lanes)), lanes);
      });
    }
    w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
      const auto sum_1 = w::cast<float>(w::load(sum_1_total + n - block, lanes));
      const auto cast_2 = w::cast<w::bf16>(sum_1);
      w::store(out1_data + n, cast_2, lanes);
    });
  }
}
