// schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=none
// program layer_norm_forward(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   input weight: bf16 [n:1]
//   input bias: bf16 [n:1]
//   cast: f32{m, n} = cast(x)
//   sum: f32{m} = sum[n](cast)
//   const: f32{} = const[0.0009765625]()
//   mul: f32{m} = mul(sum, const)
//   sub: f32{m, n} = sub(cast, mul)
//   mul_1: f32{m, n} = mul(sub, sub)
//   sum_1: f32{m} = sum[n](mul_1)
//   mul_2: f32{m} = mul(sum_1, const)
//   const_1: f32{} = const[1e-06]()
//   add: f32{m} = add(mul_2, const_1)
//   rsqrt: f32{m} = rsqrt(add)
//   mul_3: f32{m, n} = mul(sub, rsqrt)
//   cast_1: f32{n} = cast(weight)
//   mul_4: f32{m, n} = mul(mul_3, cast_1)
//   cast_2: f32{n} = cast(bias)
//   add_1: f32{m, n} = add(mul_4, cast_2)
//   cast_3: bf16{m, n} = cast(add_1)
//   output out0: bf16 [m:1024, n:1] = cast_3
// end
#include "weft_cpu.h"

extern "C" void weft_layer_norm_forward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* weight_data = static_cast<const w::bf16*>(buffers[1]);
  const w::bf16* bias_data = static_cast<const w::bf16*>(buffers[2]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[3]);

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
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
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
          const auto weight = w::load(weight_data + n, lanes);
          const auto bias = w::load(bias_data + n, lanes);
          const auto cast_1 = w::cast<float>(weight);
          const auto cast_2 = w::cast<float>(bias);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(mul[r]);
            const auto mul_3 = sub * w::vec(rsqrt[r]);
            const auto mul_4 = mul_3 * cast_1;
            const auto add_1 = mul_4 + cast_2;
            const auto cast_3 = w::cast<w::bf16>(add_1);
            w::store(out0_data + m * 1024 + n, cast_3, lanes);
          }
        });
      });
    }
  }
}
