// schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=same
// program row_column_amax(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   cast: f32{m, n} = cast(x)
//   max: f32{m} = max[n](cast)
//   cast_1: bf16{m} = cast(max)
//   max_1: f32{n} = max[m](cast)
//   cast_2: bf16{n} = cast(max_1)
//   output out0: bf16 [m:1] = cast_1
//   output out1: bf16 [n:1] = cast_2
// end
#include "weft_cpu.h"

extern "C" void weft_row_column_amax(void* const* buffers, const int64_t* parameters, int threads) {
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
  const w::Workspace<float, 0> max_1_kept(chunks * n_size);
  float* max_1_partial = max_1_kept.data();

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * rows_per_chunk;
      const int64_t last = std::min(first + rows_per_chunk, rows);
      float* max_1_chunk = max_1_partial + chunk * n_size;
      w::fill(max_1_chunk, n_size, -std::numeric_limits<float>::infinity());
      w::for_tiles<4>(first, last, m_size, [&](int64_t tile, auto whole) {
        constexpr int tile_rows = whole.count;
        w::Max<float> max_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          auto max_1_tile = w::vec(-std::numeric_limits<float>::infinity());
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            max_lanes[r].add(cast, lanes);
            max_1_tile = w::maximum(max_1_tile, cast);
          }
          w::store(max_1_chunk + n, w::maximum(w::load(max_1_chunk + n, lanes), max_1_tile), lanes);
        });
        float max[tile_rows];
        w::bf16 cast_1[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          max[r] = max_lanes[r].result();
          cast_1[r] = w::cast<w::bf16>(max[r]);
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
    float max_1_total[finish_columns];
    w::fill(max_1_total, finish_columns, -std::numeric_limits<float>::infinity());
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
        w::store(max_1_total + n - block, w::maximum(w::load(max_1_total + n - block, lanes), w::cast<float>(w::load(max_1_partial + chunk * n_size + n, lanes))), lanes);
      });
    }
    w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
      const auto max_1 = w::cast<float>(w::load(max_1_total + n - block, lanes));
      const auto cast_2 = w::cast<w::bf16>(max_1);
      w::store(out1_data + n, cast_2, lanes);
    });
  }
}
