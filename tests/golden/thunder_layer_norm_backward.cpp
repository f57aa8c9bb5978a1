// schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=same
// program thunder_layer_norm_backward(s0)
//   dim m = s0
//   dim n = 1024
//   input weight: bf16 [n:1]
//   input mean: f32 [m:1]
//   input dy: bf16 [m:1024, n:1]
//   input x: bf16 [m:1024, n:1]
//   input rstd: f32 [m:1]
//   cast: f32{m, n} = cast(x)
//   sub: f32{m, n} = sub(cast, mean)
//   cast_1: f32{n} = cast(weight)
//   cast_2: f32{m, n} = cast(dy)
//   mul: f32{m, n} = mul(cast_1, cast_2)
//   mul_1: f32{m, n} = mul(sub, rstd)
//   sum: f32{n} = sum[m](cast_2)
//   mul_2: f32{m, n} = mul(cast_2, mul_1)
//   sum_1: f32{n} = sum[m](mul_2)
//   mul_3: f32{m, n} = mul(rstd, mul)
//   mul_4: f32{m, n} = mul(sub, mul)
//   sum_2: f32{m} = sum[n](mul_4)
//   neg: f32{m, n} = neg(mul_3)
//   sum_3: f32{m} = sum[n](neg)
//   const: f32{} = const[-0.5]()
//   mul_5: f32{m} = mul(sum_2, const)
//   mul_6: f32{m} = mul(rstd, rstd)
//   mul_7: f32{m} = mul(mul_6, rstd)
//   mul_8: f32{m} = mul(mul_5, mul_7)
//   const_1: f32{} = const[0.000976562]()
//   mul_9: f32{m} = mul(sum_3, const_1)
//   const_2: f32{} = const[0.00195312]()
//   mul_10: f32{m} = mul(mul_8, const_2)
//   mul_11: f32{m, n} = mul(mul_10, sub)
//   add: f32{m, n} = add(mul_3, mul_11)
//   add_1: f32{m, n} = add(add, mul_9)
//   cast_3: bf16{m, n} = cast(add_1)
//   cast_4: bf16{n} = cast(sum_1)
//   cast_5: bf16{n} = cast(sum)
//   output out0: bf16 [m:1024, n:1] = cast_3
//   output out1: bf16 [n:1] = cast_4
//   output out2: bf16 [n:1] = cast_5
// end
#include "weft_cpu.h"

extern "C" void weft_thunder_layer_norm_backward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* weight_data = static_cast<const w::bf16*>(buffers[0]);
  const float* mean_data = static_cast<const float*>(buffers[1]);
  const w::bf16* dy_data = static_cast<const w::bf16*>(buffers[2]);
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[3]);
  const float* rstd_data = static_cast<const float*>(buffers[4]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[5]);
  w::bf16* out1_data = static_cast<w::bf16*>(buffers[6]);
  w::bf16* out2_data = static_cast<w::bf16*>(buffers[7]);

  // Column sums of every chunk of rows, combined in order by the finish below.
  constexpr int64_t rows_per_chunk = 64;
  const int64_t rows = m_size;
  const int64_t chunks = w::chunks_of(rows, rows_per_chunk);
  const w::Workspace<float, 0> sum_kept(chunks * n_size);
  float* sum_partial = sum_kept.data();
  const w::Workspace<float, 1> sum_1_kept(chunks * n_size);
  float* sum_1_partial = sum_1_kept.data();

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * rows_per_chunk;
      const int64_t last = std::min(first + rows_per_chunk, rows);
      float* sum_chunk = sum_partial + chunk * n_size;
      w::fill(sum_chunk, n_size, 0.0f);
      float* sum_1_chunk = sum_1_partial + chunk * n_size;
      w::fill(sum_1_chunk, n_size, 0.0f);
      w::for_tiles<4>(first, last, m_size, [&](int64_t tile, auto whole) {
        constexpr int tile_rows = whole.count;
        float mean[tile_rows], rstd[tile_rows], mul_6[tile_rows], mul_7[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          const int64_t m = tile + r;
          mean[r] = mean_data[m];
          rstd[r] = rstd_data[m];
          mul_6[r] = rstd[r] * rstd[r];
          mul_7[r] = mul_6[r] * rstd[r];
        }
        w::Sum<float> sum_2_lanes[tile_rows];
        w::Sum<float> sum_3_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto weight = w::load(weight_data + n, lanes);
          const auto cast_1 = w::cast<float>(weight);
          auto sum_tile = w::vec(0.0f);
          auto sum_1_tile = w::vec(0.0f);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto dy = w::load(dy_data + m * 1024 + n, lanes);
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(mean[r]);
            const auto cast_2 = w::cast<float>(dy);
            const auto mul = cast_1 * cast_2;
            const auto mul_1 = sub * w::vec(rstd[r]);
            const auto mul_2 = cast_2 * mul_1;
            const auto mul_3 = w::vec(rstd[r]) * mul;
            const auto mul_4 = sub * mul;
            const auto neg = -mul_3;
            sum_2_lanes[r].add(mul_4, lanes);
            sum_3_lanes[r].add(neg, lanes);
            sum_tile = sum_tile + cast_2;
            sum_1_tile = sum_1_tile + mul_2;
          }
          w::store(sum_chunk + n, w::load(sum_chunk + n, lanes) + sum_tile, lanes);
          w::store(sum_1_chunk + n, w::load(sum_1_chunk + n, lanes) + sum_1_tile, lanes);
        });
        float sum_2[tile_rows], sum_3[tile_rows], mul_5[tile_rows], mul_8[tile_rows], mul_9[tile_rows], mul_10[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum_2[r] = sum_2_lanes[r].result();
          sum_3[r] = sum_3_lanes[r].result();
          mul_5[r] = sum_2[r] * -0.5f;
          mul_8[r] = mul_5[r] * mul_7[r];
          mul_9[r] = sum_3[r] * 0.000976562f;
          mul_10[r] = mul_8[r] * 0.00195312f;
        }
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto weight = w::load(weight_data + n, lanes);
          const auto cast_1 = w::cast<float>(weight);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto dy = w::load(dy_data + m * 1024 + n, lanes);
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(mean[r]);
            const auto cast_2 = w::cast<float>(dy);
            const auto mul = cast_1 * cast_2;
            const auto mul_3 = w::vec(rstd[r]) * mul;
            const auto mul_11 = w::vec(mul_10[r]) * sub;
            const auto add = mul_3 + mul_11;
            const auto add_1 = add + w::vec(mul_9[r]);
            const auto cast_3 = w::cast<w::bf16>(add_1);
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
    double sum_total[finish_columns];
    w::fill(sum_total, finish_columns, 0.0);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
        w::store(sum_total + n - block, w::load(sum_total + n - block, lanes) + w::cast<double>(w::load(sum_partial + chunk * n_size + n, lanes)), lanes);
      });
    }
    double sum_1_total[finish_columns];
    w::fill(sum_1_total, finish_columns, 0.0);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
        w::store(sum_1_total + n - block, w::load(sum_1_total + n - block, lanes) + w::cast<double>(w::load(sum_1_partial + chunk * n_size + n, lanes)), lanes);
      });
    }
    w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
      const auto sum = w::cast<float>(w::load(sum_total + n - block, lanes));
      const auto sum_1 = w::cast<float>(w::load(sum_1_total + n - block, lanes));
      const auto cast_4 = w::cast<w::bf16>(sum_1);
      const auto cast_5 = w::cast<w::bf16>(sum);
      w::store(out1_data + n, cast_4, lanes);
      w::store(out2_data + n, cast_5, lanes);
    });
  }
}
