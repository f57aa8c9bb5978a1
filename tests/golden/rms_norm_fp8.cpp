// schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=none
// program rms_norm_fp8(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   input weight: bf16 [n:1]
//   cast: f32{m, n} = cast(x)
//   mul: f32{m, n} = mul(cast, cast)
//   sum: f32{m} = sum[n](mul)
//   const: f32{} = const[0.0009765625]()
//   mul_1: f32{m} = mul(sum, const)
//   const_1: f32{} = const[1e-06]()
//   add: f32{m} = add(mul_1, const_1)
//   rsqrt: f32{m} = rsqrt(add)
//   mul_2: f32{m, n} = mul(cast, rsqrt)
//   cast_1: f32{n} = cast(weight)
//   mul_3: f32{m, n} = mul(mul_2, cast_1)
//   abs: f32{m, n} = abs(mul_3)
//   max: f32{m} = max[n](abs)
//   const_2: f32{} = const[1e-12]()
//   maximum: f32{m} = maximum(max, const_2)
//   const_3: f32{} = const[448.0]()
//   div: f32{m} = div(maximum, const_3)
//   div_1: f32{m, n} = div(mul_3, div)
//   cast_2: f8e4m3{m, n} = cast(div_1)
//   output out0: f32 [m:1] = div
//   output out1: f8e4m3 [m:1024, n:1] = cast_2
// end
#include "weft_cpu.h"

extern "C" void weft_rms_norm_fp8(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* weight_data = static_cast<const w::bf16*>(buffers[1]);
  float* out0_data = static_cast<float*>(buffers[2]);
  w::f8e4m3* out1_data = static_cast<w::f8e4m3*>(buffers[3]);

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
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto mul = cast * cast;
            sum_lanes[r].add(mul, lanes);
          }
        });
        float sum[tile_rows], mul_1[tile_rows], add[tile_rows], rsqrt[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum[r] = sum_lanes[r].result();
          mul_1[r] = sum[r] * 0.0009765625f;
          add[r] = mul_1[r] + 1e-06f;
          rsqrt[r] = w::rsqrt(add[r]);
        }
        w::Max<float> max_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto weight = w::load(weight_data + n, lanes);
          const auto cast_1 = w::cast<float>(weight);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto mul_2 = cast * w::vec(rsqrt[r]);
            const auto mul_3 = mul_2 * cast_1;
            const auto abs = w::abs(mul_3);
            max_lanes[r].add(abs, lanes);
          }
        });
        float max[tile_rows], maximum[tile_rows], div[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          max[r] = max_lanes[r].result();
          maximum[r] = w::maximum(max[r], 1e-12f);
          div[r] = maximum[r] / 448.0f;
        }
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto weight = w::load(weight_data + n, lanes);
          const auto cast_1 = w::cast<float>(weight);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto mul_2 = cast * w::vec(rsqrt[r]);
            const auto mul_3 = mul_2 * cast_1;
            const auto div_1 = mul_3 / w::vec(div[r]);
            const auto cast_2 = w::cast<w::f8e4m3>(div_1);
            w::store(out1_data + m * 1024 + n, cast_2, lanes);
          }
        });
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          const int64_t m = tile + r;
          out0_data[m] = div[r];
        }
      });
    }
  }
}
