// schedule STREAM rows=(m0, m1) columns=(n) segments=(m0) rows_per_tile=4 rows_per_chunk=8 held=() finish=same
// program modulated_layer_norm_backward(s0)
//   dim m0 = s0
//   dim m1 = 8
//   dim n = 1024
//   input dy: bf16 [m0:8192, m1:1024, n:1]
//   input x: bf16 [m0:8192, m1:1024, n:1]
//   input scale: bf16 [m0:1024, n:1]
//   input mean: f32 [m0:8, m1:1]
//   input rstd: f32 [m0:8, m1:1]
//   cast: f32{m0, m1, n} = cast(x)
//   sub: f32{m0, m1, n} = sub(cast, mean)
//   mul: f32{m0, m1, n} = mul(sub, rstd)
//   cast_1: f32{m0, m1, n} = cast(dy)
//   cast_2: f32{m0, n} = cast(scale)
//   const: f32{} = const[1.0]()
//   add: f32{m0, n} = add(cast_2, const)
//   mul_1: f32{m0, m1, n} = mul(cast_1, add)
//   sum: f32{m0, m1} = sum[n](mul_1)
//   const_1: f32{} = const[0.0009765625]()
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
//   output out0: bf16 [m0:8192, m1:1024, n:1] = cast_3
//   output out1: bf16 [m0:1024, n:1] = cast_4
//   output out2: bf16 [m0:1024, n:1] = cast_5
// end
#include "weft_cpu.h"

extern "C" void weft_modulated_layer_norm_backward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m0_size = s0;
  constexpr int64_t m1_size = 8;
  constexpr int64_t n_size = 1024;
  const w::bf16* dy_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[1]);
  const w::bf16* scale_data = static_cast<const w::bf16*>(buffers[2]);
  const float* mean_data = static_cast<const float*>(buffers[3]);
  const float* rstd_data = static_cast<const float*>(buffers[4]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[5]);
  w::bf16* out1_data = static_cast<w::bf16*>(buffers[6]);
  w::bf16* out2_data = static_cast<w::bf16*>(buffers[7]);

  // Column sums of every chunk of rows, combined in order by the finish below.
  constexpr int64_t rows_per_chunk = 8;
  const int64_t rows = m1_size;
  const int64_t segments = m0_size;
  const int64_t chunks = w::chunks_of(rows, rows_per_chunk);
  const w::Workspace<float, 0> sum_2_kept(segments * chunks * n_size);
  float* sum_2_partial = sum_2_kept.data();
  const w::Workspace<float, 1> sum_3_kept(segments * chunks * n_size);
  float* sum_3_partial = sum_3_kept.data();

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < segments * chunks; ++chunk) {
      const int64_t segment = chunk / chunks;
      const int64_t m0 = segment;
      const int64_t first = chunk % chunks * rows_per_chunk;
      const int64_t last = std::min(first + rows_per_chunk, rows);
      float* sum_2_chunk = sum_2_partial + chunk * n_size;
      w::fill(sum_2_chunk, n_size, 0.0f);
      float* sum_3_chunk = sum_3_partial + chunk * n_size;
      w::fill(sum_3_chunk, n_size, 0.0f);
      for (int64_t tile = first; tile < last; tile += 4) {
        constexpr int tile_rows = 4;
        float mean[tile_rows], rstd[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          const int64_t m1 = tile + r;
          mean[r] = mean_data[m0 * 8 + m1];
          rstd[r] = rstd_data[m0 * 8 + m1];
        }
        w::Sum<float> sum_lanes[tile_rows];
        w::Sum<float> sum_1_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto scale = w::load(scale_data + m0 * 1024 + n, lanes);
          const auto cast_2 = w::cast<float>(scale);
          const auto add = cast_2 + w::vec(1.0f);
          auto sum_2_tile = w::vec(0.0f);
          auto sum_3_tile = w::vec(0.0f);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m1 = tile + r;
            const auto dy = w::load(dy_data + m0 * 8192 + m1 * 1024 + n, lanes);
            const auto x = w::load(x_data + m0 * 8192 + m1 * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(mean[r]);
            const auto mul = sub * w::vec(rstd[r]);
            const auto cast_1 = w::cast<float>(dy);
            const auto mul_1 = cast_1 * add;
            const auto mul_3 = mul * mul_1;
            const auto mul_7 = cast_1 * mul;
            sum_lanes[r].add(mul_1, lanes);
            sum_1_lanes[r].add(mul_3, lanes);
            sum_2_tile = sum_2_tile + mul_7;
            sum_3_tile = sum_3_tile + cast_1;
          }
          w::store(sum_2_chunk + n, w::load(sum_2_chunk + n, lanes) + sum_2_tile, lanes);
          w::store(sum_3_chunk + n, w::load(sum_3_chunk + n, lanes) + sum_3_tile, lanes);
        });
        float sum[tile_rows], sum_1[tile_rows], mul_2[tile_rows], mul_4[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum[r] = sum_lanes[r].result();
          sum_1[r] = sum_1_lanes[r].result();
          mul_2[r] = sum[r] * 0.0009765625f;
          mul_4[r] = sum_1[r] * 0.0009765625f;
        }
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto scale = w::load(scale_data + m0 * 1024 + n, lanes);
          const auto cast_2 = w::cast<float>(scale);
          const auto add = cast_2 + w::vec(1.0f);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m1 = tile + r;
            const auto dy = w::load(dy_data + m0 * 8192 + m1 * 1024 + n, lanes);
            const auto x = w::load(x_data + m0 * 8192 + m1 * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(mean[r]);
            const auto mul = sub * w::vec(rstd[r]);
            const auto cast_1 = w::cast<float>(dy);
            const auto mul_1 = cast_1 * add;
            const auto sub_1 = mul_1 - w::vec(mul_2[r]);
            const auto mul_5 = mul * w::vec(mul_4[r]);
            const auto sub_2 = sub_1 - mul_5;
            const auto mul_6 = w::vec(rstd[r]) * sub_2;
            const auto cast_3 = w::cast<w::bf16>(mul_6);
            w::store(out0_data + m0 * 8192 + m1 * 1024 + n, cast_3, lanes);
          }
        });
      }
    }
  }

  constexpr int64_t finish_columns = 512;

  #pragma omp parallel for num_threads(threads) schedule(static) collapse(2)
  for (int64_t segment = 0; segment < m0_size; ++segment) {
    for (int64_t block = 0; block < n_size; block += finish_columns) {
      const int64_t m0 = segment;
      const int64_t end = std::min(block + finish_columns, n_size);
      double sum_2_total[finish_columns];
      w::fill(sum_2_total, finish_columns, 0.0);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
          w::store(sum_2_total + n - block, w::load(sum_2_total + n - block, lanes) + w::cast<double>(w::load(sum_2_partial + ((m0) * chunks + chunk) * n_size + n, lanes)), lanes);
        });
      }
      double sum_3_total[finish_columns];
      w::fill(sum_3_total, finish_columns, 0.0);
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
          w::store(sum_3_total + n - block, w::load(sum_3_total + n - block, lanes) + w::cast<double>(w::load(sum_3_partial + ((m0) * chunks + chunk) * n_size + n, lanes)), lanes);
        });
      }
      w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
        const auto sum_2 = w::cast<float>(w::load(sum_2_total + n - block, lanes));
        const auto sum_3 = w::cast<float>(w::load(sum_3_total + n - block, lanes));
        const auto cast_4 = w::cast<w::bf16>(sum_2);
        const auto cast_5 = w::cast<w::bf16>(sum_3);
        w::store(out1_data + m0 * 1024 + n, cast_4, lanes);
        w::store(out2_data + m0 * 1024 + n, cast_5, lanes);
      });
    }
  }
}
