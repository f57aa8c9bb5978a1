// schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=(cast_2) finish=none
// program add_rms_norm_forward(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   input residual: bf16 [m:1024, n:1]
//   input weight: bf16 [n:1]
//   cast: f32{m, n} = cast(residual)
//   cast_1: f32{m, n} = cast(x)
//   add: f32{m, n} = add(cast_1, cast)
//   cast_2: bf16{m, n} = cast(add)
//   cast_3: f32{m, n} = cast(cast_2)
//   mul: f32{m, n} = mul(cast_3, cast_3)
//   sum: f32{m} = sum[n](mul)
//   const: f32{} = const[0.0009765625]()
//   mul_1: f32{m} = mul(sum, const)
//   const_1: f32{} = const[9.999999974752427e-07]()
//   add_1: f32{m} = add(mul_1, const_1)
//   rsqrt: f32{m} = rsqrt(add_1)
//   mul_2: f32{m, n} = mul(cast_3, rsqrt)
//   cast_4: f32{n} = cast(weight)
//   mul_3: f32{m, n} = mul(mul_2, cast_4)
//   cast_5: bf16{m, n} = cast(mul_3)
//   output out0: bf16 [m:1024, n:1] = cast_2
//   output out1: bf16 [m:1024, n:1] = cast_5
// end
#include "weft_cpu.h"

extern "C" void weft_add_rms_norm_forward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* residual_data = static_cast<const w::bf16*>(buffers[1]);
  const w::bf16* weight_data = static_cast<const w::bf16*>(buffers[2]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[3]);
  w::bf16* out1_data = static_cast<w::bf16*>(buffers[4]);

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
            const auto residual = w::load(residual_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(residual);
            const auto cast_1 = w::cast<float>(x);
            const auto add = cast_1 + cast;
            const auto cast_2 = w::cast<w::bf16>(add);
            const auto cast_3 = w::cast<float>(cast_2);
            const auto mul = cast_3 * cast_3;
            sum_lanes[r].add(mul, lanes);
            w::store(out0_data + m * 1024 + n, cast_2, lanes);
          }
        });
        float sum[tile_rows], mul_1[tile_rows], add_1[tile_rows], rsqrt[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          sum[r] = sum_lanes[r].result();
          mul_1[r] = sum[r] * 0.0009765625f;
          add_1[r] = mul_1[r] + 1e-06f;
          rsqrt[r] = w::rsqrt(add_1[r]);
        }
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto weight = w::load(weight_data + n, lanes);
          const auto cast_4 = w::cast<float>(weight);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto cast_2 = w::load(out0_data + m * 1024 + n, lanes);
            const auto cast_3 = w::cast<float>(cast_2);
            const auto mul_2 = cast_3 * w::vec(rsqrt[r]);
            const auto mul_3 = mul_2 * cast_4;
            const auto cast_5 = w::cast<w::bf16>(mul_3);
            w::store(out1_data + m * 1024 + n, cast_5, lanes);
          }
        });
      });
    }
  }
}
