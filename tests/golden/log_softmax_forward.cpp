// schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=8 rows_per_chunk=64 held=() finish=none
// program log_softmax_forward(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   cast: f32{m, n} = cast(x)
//   max: f32{m} = max[n](cast)
//   sub: f32{m, n} = sub(cast, max)
//   exp: f32{m, n} = exp(sub)
//   sum: f32{m} = sum[n](exp)
//   log: f32{m} = log(sum)
//   sub_1: f32{m, n} = sub(sub, log)
//   cast_1: bf16{m, n} = cast(sub_1)
//   output out0: bf16 [m:1024, n:1] = cast_1
// end
#include "weft_cpu.h"

extern "C" void log_softmax_forward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[1]);

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t m = 0; m < m_size; ++m) {
      w::Max<float> max_lanes;
      w::for_columns(0, n_size, [&](int64_t n, auto lanes) {
        const auto x = w::load(x_data + m * 1024 + n, lanes);
        const auto cast = w::cast<float>(x);
        max_lanes.add(cast, lanes);
      });
      const auto max = max_lanes.result();
      w::Sum<float> sum_lanes;
      w::for_columns(0, n_size, [&](int64_t n, auto lanes) {
        const auto x = w::load(x_data + m * 1024 + n, lanes);
        const auto cast = w::cast<float>(x);
        const auto sub = cast - w::vec(max);
        const auto exp = w::exp(sub);
        sum_lanes.add(exp, lanes);
      });
      const auto sum = sum_lanes.result();
      const auto log = w::log(sum);
      w::for_columns(0, n_size, [&](int64_t n, auto lanes) {
        const auto x = w::load(x_data + m * 1024 + n, lanes);
        const auto cast = w::cast<float>(x);
        const auto sub = cast - w::vec(max);
        const auto sub_1 = sub - w::vec(log);
        const auto cast_1 = w::cast<w::bf16>(sub_1);
        w::store(out0_data + m * 1024 + n, cast_1, lanes);
      });
    }
  }
}
