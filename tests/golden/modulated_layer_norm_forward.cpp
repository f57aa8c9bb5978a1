// schedule ONE_SHOT rows=(m0, m1) columns=(n) segments=() rows_per_tile=8 rows_per_chunk=64 held=() finish=none
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

extern "C" void modulated_layer_norm_forward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m0_size = s0;
  constexpr int64_t m1_size = 8;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* scale_data = static_cast<const w::bf16*>(buffers[1]);
  const w::bf16* shift_data = static_cast<const w::bf16*>(buffers[2]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[3]);

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t row = 0; row < m0_size * m1_size; ++row) {
      const int64_t m0 = row / (m1_size);
      const int64_t m1 = row % m1_size;
      w::Sum<float> sum_lanes;
      w::for_columns(0, n_size, [&](int64_t n, auto lanes) {
        const auto x = w::load(x_data + m0 * 8192 + m1 * 1024 + n, lanes);
        const auto cast = w::cast<float>(x);
        sum_lanes.add(cast, lanes);
      });
      const auto sum = sum_lanes.result();
      const auto mul = sum * 0.0009765625f;
      w::Sum<float> sum_1_lanes;
      w::for_columns(0, n_size, [&](int64_t n, auto lanes) {
        const auto x = w::load(x_data + m0 * 8192 + m1 * 1024 + n, lanes);
        const auto cast = w::cast<float>(x);
        const auto sub = cast - w::vec(mul);
        const auto mul_1 = sub * sub;
        sum_1_lanes.add(mul_1, lanes);
      });
      const auto sum_1 = sum_1_lanes.result();
      const auto mul_2 = sum_1 * 0.0009765625f;
      const auto add = mul_2 + 1e-06f;
      const auto rsqrt = w::rsqrt(add);
      w::for_columns(0, n_size, [&](int64_t n, auto lanes) {
        const auto x = w::load(x_data + m0 * 8192 + m1 * 1024 + n, lanes);
        const auto scale = w::load(scale_data + m0 * 1024 + n, lanes);
        const auto shift = w::load(shift_data + m0 * 1024 + n, lanes);
        const auto cast = w::cast<float>(x);
        const auto sub = cast - w::vec(mul);
        const auto mul_3 = sub * w::vec(rsqrt);
        const auto cast_1 = w::cast<float>(scale);
        const auto add_1 = cast_1 + w::vec(1.0f);
        const auto mul_4 = mul_3 * add_1;
        const auto cast_2 = w::cast<float>(shift);
        const auto add_2 = mul_4 + cast_2;
        const auto cast_3 = w::cast<w::bf16>(add_2);
        w::store(out0_data + m0 * 8192 + m1 * 1024 + n, cast_3, lanes);
      });
    }
  }
}
