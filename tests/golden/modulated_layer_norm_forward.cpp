// schedule ONE_SHOT rows=(m0, m1) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=none
// program modulated_layer_norm_forward(s0)
//   dim m0 = s0
//   dim m1 = 8
//   dim n = 1024
//   input x: bf16 [m0:8192, m1:1024, n:1]
//   input scale: bf16 [m0:1024, n:1]
//   input shift: bf16 [m0:1024, n:1]
//   cast: f32{m0, m1, n} = cast(x)
//   sum: f32{m0, m1} = sum[n](cast)
//   const: f32{} = const[0.0009765625]()
//   mul: f32{m0, m1} = mul(sum, const)
//   sub: f32{m0, m1, n} = sub(cast, mul)
//   mul_1: f32{m0, m1, n} = mul(sub, sub)
//   sum_1: f32{m0, m1} = sum[n](mul_1)
//   mul_2: f32{m0, m1} = mul(sum_1, const)
//   const_1: f32{} = const[1e-06]()
//   add: f32{m0, m1} = add(mul_2, const_1)
//   rsqrt: f32{m0, m1} = rsqrt(add)
//   mul_3: f32{m0, m1, n} = mul(sub, rsqrt)
//   cast_1: f32{m0, n} = cast(scale)
//   const_2: f32{} = const[1.0]()
//   add_1: f32{m0, n} = add(cast_1, const_2)
//   mul_4: f32{m0, m1, n} = mul(mul_3, add_1)
//   cast_2: f32{m0, n} = cast(shift)
//   add_2: f32{m0, m1, n} = add(mul_4, cast_2)
//   cast_3: bf16{m0, m1, n} = cast(add_2)
//   output out0: bf16 [m0:8192, m1:1024, n:1] = cast_3
// end
#include "weft_cpu.h"

extern "C" void weft_modulated_layer_norm_forward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m0_size = s0;
  constexpr int64_t m1_size = 8;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* scale_data = static_cast<const w::bf16*>(buffers[1]);
  const w::bf16* shift_data = static_cast<const w::bf16*>(buffers[2]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[3]);

  constexpr int64_t rows_per_chunk = 64;
  const int64_t rows = m0_size * m1_size;
  const int64_t chunks = w::chunks_of(rows, rows_per_chunk);

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * rows_per_chunk;
      const int64_t last = std::min(first + rows_per_chunk, rows);
      for (int64_t tile = first; tile < last; tile += 4) {
        constexpr int tile_rows = 4;
        const int64_t m0 = tile / (m1_size);
        const int64_t m1_first = tile % m1_size;
        w::Sum<float> sum_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m1 = m1_first + r;
            const auto x = w::load(x_data + m0 * 8192 + m1 * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            sum_lanes[r].add(cast, lanes);
          }
        });
        float sum[tile_rows], mul[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum[r] = sum_lanes[r].result();
          mul[r] = sum[r] * 0.0009765625f;
        }
        w::Sum<float> sum_1_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m1 = m1_first + r;
            const auto x = w::load(x_data + m0 * 8192 + m1 * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(mul[r]);
            const auto mul_1 = sub * sub;
            sum_1_lanes[r].add(mul_1, lanes);
          }
        });
        float sum_1[tile_rows], mul_2[tile_rows], add[tile_rows], rsqrt[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum_1[r] = sum_1_lanes[r].result();
          mul_2[r] = sum_1[r] * 0.0009765625f;
          add[r] = mul_2[r] + 1e-06f;
          rsqrt[r] = w::rsqrt(add[r]);
        }
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto scale = w::load(scale_data + m0 * 1024 + n, lanes);
          const auto shift = w::load(shift_data + m0 * 1024 + n, lanes);
          const auto cast_1 = w::cast<float>(scale);
          const auto add_1 = cast_1 + w::vec(1.0f);
          const auto cast_2 = w::cast<float>(shift);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m1 = m1_first + r;
            const auto x = w::load(x_data + m0 * 8192 + m1 * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(mul[r]);
            const auto mul_3 = sub * w::vec(rsqrt[r]);
            const auto mul_4 = mul_3 * add_1;
            const auto add_2 = mul_4 + cast_2;
            const auto cast_3 = w::cast<w::bf16>(add_2);
            w::store(out0_data + m0 * 8192 + m1 * 1024 + n, cast_3, lanes);
          }
        });
      }
    }
  }
}
