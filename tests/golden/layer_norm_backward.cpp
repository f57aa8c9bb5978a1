// schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=8 rows_per_chunk=64 held=() finish=same
// program layer_norm_backward(s0)
//   dim m = s0
//   dim n = 1024
//   input arg1: bf16 [m:1024, n:1]
//   input arg3: f32 [m:1]
//   input arg4: f32 [m:1]
//   input arg0: bf16 [m:1024, n:1]
//   input arg2: bf16 [n:1]
//   cast: f32{m, n} = cast(arg1)
//   sub: f32{m, n} = sub(cast, arg3)
//   mul: f32{m, n} = mul(sub, arg4)
//   cast_1: f32{m, n} = cast(arg0)
//   cast_2: f32{n} = cast(arg2)
//   mul_1: f32{m, n} = mul(cast_1, cast_2)
//   sum: f32{m} = sum[n](mul_1)
//   const: f32{} = const[0.0009765625]()
//   mul_2: f32{m} = mul(sum, const)
//   sub_1: f32{m, n} = sub(mul_1, mul_2)
//   mul_3: f32{m, n} = mul(mul, mul_1)
//   sum_1: f32{m} = sum[n](mul_3)
//   mul_4: f32{m} = mul(sum_1, const)
//   mul_5: f32{m, n} = mul(mul, mul_4)
//   sub_2: f32{m, n} = sub(sub_1, mul_5)
//   mul_6: f32{m, n} = mul(arg4, sub_2)
//   mul_7: f32{m, n} = mul(cast_1, mul)
//   sum_2: f32{n} = sum[m](mul_7)
//   sum_3: f32{n} = sum[m](cast_1)
//   cast_3: bf16{m, n} = cast(mul_6)
//   cast_4: bf16{n} = cast(sum_2)
//   cast_5: bf16{n} = cast(sum_3)
//   output convert_element_type: bf16 [m:1024, n:1] = cast_3
//   output convert_element_type_1: bf16 [n:1] = cast_4
//   output convert_element_type_2: bf16 [n:1] = cast_5
// end
#include "weft_cpu.h"

extern "C" void layer_norm_backward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* arg1_data = static_cast<const w::bf16*>(buffers[0]);
  const float* arg3_data = static_cast<const float*>(buffers[1]);
  const float* arg4_data = static_cast<const float*>(buffers[2]);
  const w::bf16* arg0_data = static_cast<const w::bf16*>(buffers[3]);
  const w::bf16* arg2_data = static_cast<const w::bf16*>(buffers[4]);
  w::bf16* convert_element_type_data = static_cast<w::bf16*>(buffers[5]);
  w::bf16* convert_element_type_1_data = static_cast<w::bf16*>(buffers[6]);
  w::bf16* convert_element_type_2_data = static_cast<w::bf16*>(buffers[7]);

  // Column sums of every chunk of rows, combined in order by the finish below.
  constexpr int64_t rows_per_chunk = 64;
  const int64_t rows = m_size;
  const int64_t chunks = w::chunks_of(rows, rows_per_chunk);
  const auto sum_2_partial = w::scratch<float>(chunks * n_size);
  const auto sum_3_partial = w::scratch<float>(chunks * n_size);

  #pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const int64_t first = chunk * rows_per_chunk;
    const int64_t last = std::min(first + rows_per_chunk, rows);
    float* sum_2_chunk = sum_2_partial.get() + chunk * n_size;
    w::fill(sum_2_chunk, n_size, 0.0f);
    const auto sum_2_tile = w::scratch<float>(n_size);
    float* sum_3_chunk = sum_3_partial.get() + chunk * n_size;
    w::fill(sum_3_chunk, n_size, 0.0f);
    const auto sum_3_tile = w::scratch<float>(n_size);
    for (int64_t tile = first; tile < last; tile += 8) {
      w::fill(sum_2_tile.get(), n_size, 0.0f);
      w::fill(sum_3_tile.get(), n_size, 0.0f);
      for (int64_t row = tile; row < std::min(tile + 8, last); ++row) {
        const int64_t m = row;
        const auto arg3 = arg3_data[m];
        const auto arg4 = arg4_data[m];
        w::Sum<float> sum_lanes;
        w::Sum<float> sum_1_lanes;
        w::for_columns(0, n_size, [&](int64_t n, auto lanes) {
          const auto arg1 = w::load(arg1_data + m * 1024 + n, lanes);
          const auto arg0 = w::load(arg0_data + m * 1024 + n, lanes);
          const auto arg2 = w::load(arg2_data + n, lanes);
          const auto cast = w::cast<float>(arg1);
          const auto sub = cast - w::vec(arg3);
          const auto mul = sub * w::vec(arg4);
          const auto cast_1 = w::cast<float>(arg0);
          const auto cast_2 = w::cast<float>(arg2);
          const auto mul_1 = cast_1 * cast_2;
          const auto mul_3 = mul * mul_1;
          const auto mul_7 = cast_1 * mul;
          sum_lanes.add(mul_1, lanes);
          sum_1_lanes.add(mul_3, lanes);
          w::store(sum_2_tile.get() + n, w::load(sum_2_tile.get() + n, lanes) + mul_7, lanes);
          w::store(sum_3_tile.get() + n, w::load(sum_3_tile.get() + n, lanes) + cast_1, lanes);
        });
        const auto sum = sum_lanes.result();
        const auto sum_1 = sum_1_lanes.result();
        const auto mul_2 = sum * 0.0009765625f;
        const auto mul_4 = sum_1 * 0.0009765625f;
        w::for_columns(0, n_size, [&](int64_t n, auto lanes) {
          const auto arg1 = w::load(arg1_data + m * 1024 + n, lanes);
          const auto arg0 = w::load(arg0_data + m * 1024 + n, lanes);
          const auto arg2 = w::load(arg2_data + n, lanes);
          const auto cast = w::cast<float>(arg1);
          const auto sub = cast - w::vec(arg3);
          const auto mul = sub * w::vec(arg4);
          const auto cast_1 = w::cast<float>(arg0);
          const auto cast_2 = w::cast<float>(arg2);
          const auto mul_1 = cast_1 * cast_2;
          const auto sub_1 = mul_1 - w::vec(mul_2);
          const auto mul_5 = mul * w::vec(mul_4);
          const auto sub_2 = sub_1 - mul_5;
          const auto mul_6 = w::vec(arg4) * sub_2;
          const auto cast_3 = w::cast<w::bf16>(mul_6);
          w::store(convert_element_type_data + m * 1024 + n, cast_3, lanes);
        });
      }
      for (int64_t i = 0; i < n_size; ++i) sum_2_chunk[i] = sum_2_chunk[i] + sum_2_tile[i];
      for (int64_t i = 0; i < n_size; ++i) sum_3_chunk[i] = sum_3_chunk[i] + sum_3_tile[i];
    }
  }

  #pragma omp parallel for num_threads(threads) schedule(static) collapse(1)
  for (int64_t block = 0; block < n_size; block += 512) {
    w::for_columns(block, std::min<int64_t>(block + 512, n_size), [&](int64_t n, auto lanes) {
      auto sum_2_total = w::vec(double(0.0));
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        sum_2_total = sum_2_total + w::cast<double>(w::load(sum_2_partial.get() + chunk * n_size + n, lanes));
      }
      const auto sum_2 = w::cast<float>(sum_2_total);
      auto sum_3_total = w::vec(double(0.0));
      for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        sum_3_total = sum_3_total + w::cast<double>(w::load(sum_3_partial.get() + chunk * n_size + n, lanes));
      }
      const auto sum_3 = w::cast<float>(sum_3_total);
      const auto cast_4 = w::cast<w::bf16>(sum_2);
      const auto cast_5 = w::cast<w::bf16>(sum_3);
      w::store(convert_element_type_1_data + n, cast_4, lanes);
      w::store(convert_element_type_2_data + n, cast_5, lanes);
    });
  }
}
