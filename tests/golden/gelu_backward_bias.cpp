// schedule COLUMN rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=same
// program gelu_backward_bias(s0)
//   dim m = s0
//   dim n = 1024
//   input dy: bf16 [m:1024, n:1]
//   input x: bf16 [m:1024, n:1]
//   cast: f32{m, n} = cast(x)
//   const: f32{} = const[0.7071067811865476]()
//   mul: f32{m, n} = mul(cast, const)
//   erf: f32{m, n} = erf(mul)
//   const_1: f32{} = const[1.0]()
//   add: f32{m, n} = add(erf, const_1)
//   const_2: f32{} = const[0.5]()
//   mul_1: f32{m, n} = mul(add, const_2)
//   const_3: f32{} = const[-0.5]()
//   mul_2: f32{m, n} = mul(cast, const_3)
//   mul_3: f32{m, n} = mul(mul_2, cast)
//   exp: f32{m, n} = exp(mul_3)
//   const_4: f32{} = const[0.3989422804014327]()
//   mul_4: f32{m, n} = mul(exp, const_4)
//   cast_1: f32{m, n} = cast(dy)
//   mul_5: f32{m, n} = mul(cast, mul_4)
//   add_1: f32{m, n} = add(mul_1, mul_5)
//   mul_6: f32{m, n} = mul(cast_1, add_1)
//   cast_2: bf16{m, n} = cast(mul_6)
//   cast_3: f32{m, n} = cast(cast_2)
//   sum: f32{n} = sum[m](cast_3)
//   cast_4: bf16{n} = cast(sum)
//   output out0: bf16 [m:1024, n:1] = cast_2
//   output out1: bf16 [n:1] = cast_4
// end
#include "weft_cpu.h"

extern "C" void weft_gelu_backward_bias(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* dy_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[1]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[2]);
  w::bf16* out1_data = static_cast<w::bf16*>(buffers[3]);

  // Column sums of every chunk of rows, combined in order by the finish below.
  constexpr int64_t rows_per_chunk = 64;
  const int64_t rows = m_size;
  const int64_t chunks = w::chunks_of(rows, rows_per_chunk);
  const w::Workspace<float, 0> sum_kept(chunks * n_size);
  float* sum_partial = sum_kept.data();

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * rows_per_chunk;
      const int64_t last = std::min(first + rows_per_chunk, rows);
      float* sum_chunk = sum_partial + chunk * n_size;
      w::fill(sum_chunk, n_size, 0.0f);
      w::for_tiles<4>(first, last, m_size, [&](int64_t tile, auto whole) {
        constexpr int tile_rows = whole.count;
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          auto sum_tile = w::vec(0.0f);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto dy = w::load(dy_data + m * 1024 + n, lanes);
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto mul = cast * w::vec(0.70710677f);
            const auto erf = w::erf(mul);
            const auto add = erf + w::vec(1.0f);
            const auto mul_1 = add * w::vec(0.5f);
            const auto mul_2 = cast * w::vec(-0.5f);
            const auto mul_3 = mul_2 * cast;
            const auto exp = w::exp(mul_3);
            const auto mul_4 = exp * w::vec(0.3989423f);
            const auto cast_1 = w::cast<float>(dy);
            const auto mul_5 = cast * mul_4;
            const auto add_1 = mul_1 + mul_5;
            const auto mul_6 = cast_1 * add_1;
            const auto cast_2 = w::cast<w::bf16>(mul_6);
            const auto cast_3 = w::cast<float>(cast_2);
            w::store(out0_data + m * 1024 + n, cast_2, lanes);
            sum_tile = sum_tile + cast_3;
          }
          w::store(sum_chunk + n, w::load(sum_chunk + n, lanes) + sum_tile, lanes);
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
    w::for_columns<n_size % w::W == 0>(block, end, [&](int64_t n, auto lanes) {
      const auto sum = w::cast<float>(w::load(sum_total + n - block, lanes));
      const auto cast_4 = w::cast<w::bf16>(sum);
      w::store(out1_data + n, cast_4, lanes);
    });
  }
}
