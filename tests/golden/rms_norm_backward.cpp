// schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=same
// program rms_norm_backward(s0)
//   dim m = s0
//   dim n = 1024
//   input dy: bf16 [m:1024, n:1]
//   input x: bf16 [m:1024, n:1]
//   input weight: bf16 [n:1]
//   input rstd: f32 [m:1]
//   cast: f32{m, n} = cast(x)
//   mul: f32{m, n} = mul(cast, rstd)
//   cast_1: f32{m, n} = cast(dy)
//   cast_2: f32{n} = cast(weight)
//   mul_1: f32{m, n} = mul(cast_1, cast_2)
//   mul_2: f32{m, n} = mul(mul, mul_1)
//   sum: f32{m} = sum[n](mul_2)
//   const: f32{} = const[0.0009765625]()
//   mul_3: f32{m} = mul(sum, const)
//   mul_4: f32{m, n} = mul(mul, mul_3)
//   sub: f32{m, n} = sub(mul_1, mul_4)
//   mul_5: f32{m, n} = mul(rstd, sub)
//   mul_6: f32{m, n} = mul(cast_1, mul)
//   sum_1: f32{n} = sum[m](mul_6)
//   cast_3: bf16{m, n} = cast(mul_5)
//   cast_4: bf16{n} = cast(sum_1)
//   output out0: bf16 [m:1024, n:1] = cast_3
//   output out1: bf16 [n:1] = cast_4
// end
#include "weft_cpu.h"

extern "C" void weft_rms_norm_backward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* dy_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[1]);
  const w::bf16* weight_data = static_cast<const w::bf16*>(buffers[2]);
  const float* rstd_data = static_cast<const float*>(buffers[3]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[4]);
  w::bf16* out1_data = static_cast<w::bf16*>(buffers[5]);

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
        float rstd[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          const int64_t m = tile + r;
          rstd[r] = rstd_data[m];
        }
        w::Sum<float> sum_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto weight = w::load(weight_data + n, lanes);
          const auto cast_2 = w::cast<float>(weight);
          auto sum_1_tile = w::vec(0.0f);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto dy = w::load(dy_data + m * 1024 + n, lanes);
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto mul = cast * w::vec(rstd[r]);
            const auto cast_1 = w::cast<float>(dy);
            const auto mul_1 = cast_1 * cast_2;
            const auto mul_2 = mul * mul_1;
            const auto mul_6 = cast_1 * mul;
            sum_lanes[r].add(mul_2, lanes);
            sum_1_tile = sum_1_tile + mul_6;
          }
          w::store(sum_1_chunk + n, w::load(sum_1_chunk + n, lanes) + sum_1_tile, lanes);
        });
        float sum[tile_rows], mul_3[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum[r] = sum_lanes[r].result();
          mul_3[r] = sum[r] * 0.0009765625f;
        }
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto weight = w::load(weight_data + n, lanes);
          const auto cast_2 = w::cast<float>(weight);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto dy = w::load(dy_data + m * 1024 + n, lanes);
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto mul = cast * w::vec(rstd[r]);
            const auto cast_1 = w::cast<float>(dy);
            const auto mul_1 = cast_1 * cast_2;
            const auto mul_4 = mul * w::vec(mul_3[r]);
            const auto sub = mul_1 - mul_4;
            const auto mul_5 = w::vec(rstd[r]) * sub;
            const auto cast_3 = w::cast<w::bf16>(mul_5);
            w::store(out0_data + m * 1024 + n, cast_3, lanes);
          }
        });
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
      const auto cast_4 = w::cast<w::bf16>(sum_1);
      w::store(out1_data + n, cast_4, lanes);
    });
  }
}
