// schedule COLUMN rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=same
// program batch_norm_forward_0(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   cast: f32{m, n} = cast(x)
//   sum: f32{n} = sum[m](cast)
//   size: f32{} = size[m]()
//   div: f32{n} = div(sum, size)
//   mul: f32{m, n} = mul(cast, cast)
//   sum_1: f32{n} = sum[m](mul)
//   div_1: f32{n} = div(sum_1, size)
//   mul_1: f32{n} = mul(div, div)
//   sub: f32{n} = sub(div_1, mul_1)
//   const: f32{} = const[0.0]()
//   maximum: f32{n} = maximum(sub, const)
//   const_1: f32{} = const[1e-06]()
//   add: f32{n} = add(maximum, const_1)
//   rsqrt: f32{n} = rsqrt(add)
//   output rsqrt_saved: f32 [n:1] = rsqrt
//   output div_saved: f32 [n:1] = div
// end
#include "weft_cpu.h"

extern "C" void weft_batch_norm_forward_0(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  float* rsqrt_saved_data = static_cast<float*>(buffers[1]);
  float* div_saved_data = static_cast<float*>(buffers[2]);

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
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          auto sum_tile = w::vec(0.0f);
          auto sum_1_tile = w::vec(0.0f);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto mul = cast * cast;
            sum_tile = sum_tile + cast;
            sum_1_tile = sum_1_tile + mul;
          }
          w::store(sum_chunk + n, w::load(sum_chunk + n, lanes) + sum_tile, lanes);
          w::store(sum_1_chunk + n, w::load(sum_1_chunk + n, lanes) + sum_1_tile, lanes);
        });
      });
    }
  }

  constexpr int64_t finish_columns = 512;

  #pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t block = 0; block < n_size; block += finish_columns) {
    const auto size = float(m_size);
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
      const auto div = sum / w::vec(size);
      const auto div_1 = sum_1 / w::vec(size);
      const auto mul_1 = div * div;
      const auto sub = div_1 - mul_1;
      const auto maximum = w::maximum(sub, w::vec(0.0f));
      const auto add = maximum + w::vec(1e-06f);
      const auto rsqrt = w::rsqrt(add);
      w::store(rsqrt_saved_data + n, rsqrt, lanes);
      w::store(div_saved_data + n, div, lanes);
    });
  }
}

// schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=none
// program batch_norm_forward_1(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   input weight: bf16 [n:1]
//   input bias: bf16 [n:1]
//   input rsqrt_saved: f32 [n:1]
//   input div_saved: f32 [n:1]
//   cast: f32{m, n} = cast(x)
//   sub: f32{m, n} = sub(cast, div_saved)
//   mul: f32{m, n} = mul(sub, rsqrt_saved)
//   cast_1: f32{n} = cast(weight)
//   mul_1: f32{m, n} = mul(mul, cast_1)
//   cast_2: f32{n} = cast(bias)
//   add: f32{m, n} = add(mul_1, cast_2)
//   cast_3: bf16{m, n} = cast(add)
//   output out0: bf16 [m:1024, n:1] = cast_3
// end
#include "weft_cpu.h"

extern "C" void weft_batch_norm_forward_1(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  const w::bf16* weight_data = static_cast<const w::bf16*>(buffers[1]);
  const w::bf16* bias_data = static_cast<const w::bf16*>(buffers[2]);
  const float* rsqrt_saved_data = static_cast<const float*>(buffers[3]);
  const float* div_saved_data = static_cast<const float*>(buffers[4]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[5]);

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
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto weight = w::load(weight_data + n, lanes);
          const auto bias = w::load(bias_data + n, lanes);
          const auto rsqrt_saved = w::load(rsqrt_saved_data + n, lanes);
          const auto div_saved = w::load(div_saved_data + n, lanes);
          const auto cast_1 = w::cast<float>(weight);
          const auto cast_2 = w::cast<float>(bias);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - div_saved;
            const auto mul = sub * rsqrt_saved;
            const auto mul_1 = mul * cast_1;
            const auto add = mul_1 + cast_2;
            const auto cast_3 = w::cast<w::bf16>(add);
            w::store(out0_data + m * 1024 + n, cast_3, lanes);
          }
        });
      });
    }
  }
}
