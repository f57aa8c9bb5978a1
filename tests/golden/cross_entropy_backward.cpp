// schedule ONE_SHOT rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=none
// program cross_entropy_backward(s0)
//   dim m = s0
//   dim n = 1024
//   input dloss: f32 []
//   input x: bf16 [m:1024, n:1]
//   input target: i64 [m:1]
//   input maximum: f32 [m:1]
//   input log_total: f32 [m:1]
//   input count: f32 []
//   const: i64{} = const[-100]()
//   ne: bool{m} = ne(target, const)
//   const_1: i64{} = const[0]()
//   where: i64{m} = where(ne, target, const_1)
//   ge: bool{m} = ge(where, const_1)
//   const_2: i64{} = const[1024]()
//   lt: bool{m} = lt(where, const_2)
//   logical_and: bool{m} = logical_and(ge, lt)
//   const_3: i64{} = const[-1]()
//   where_1: i64{m} = where(logical_and, where, const_3)
//   cast: i32{m} = cast(where_1)
//   iota: i32{n} = iota[n]()
//   eq: bool{m, n} = eq(iota, cast)
//   const_4: f32{} = const[-1.0]()
//   const_5: f32{} = const[0.0]()
//   where_2: f32{m, n} = where(eq, const_4, const_5)
//   div: f32{} = div(dloss, count)
//   where_3: f32{m} = where(ne, div, const_5)
//   mul: f32{m, n} = mul(where_2, where_3)
//   cast_1: f32{m, n} = cast(x)
//   sub: f32{m, n} = sub(cast_1, maximum)
//   sub_1: f32{m, n} = sub(sub, log_total)
//   exp: f32{m, n} = exp(sub_1)
//   mul_1: f32{m} = mul(const_4, where_3)
//   const_6: i32{} = const[0]()
//   ge_1: bool{m} = ge(cast, const_6)
//   const_7: i32{} = const[1024]()
//   lt_1: bool{m} = lt(cast, const_7)
//   logical_and_1: bool{m} = logical_and(ge_1, lt_1)
//   where_4: f32{m} = where(logical_and_1, mul_1, const_5)
//   mul_2: f32{m, n} = mul(exp, where_4)
//   sub_2: f32{m, n} = sub(mul, mul_2)
//   cast_2: bf16{m, n} = cast(sub_2)
//   output out0: bf16 [m:1024, n:1] = cast_2
// end
#include "weft_cpu.h"

extern "C" void weft_cross_entropy_backward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const float* dloss_data = static_cast<const float*>(buffers[0]);
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[1]);
  const int64_t* target_data = static_cast<const int64_t*>(buffers[2]);
  const float* maximum_data = static_cast<const float*>(buffers[3]);
  const float* log_total_data = static_cast<const float*>(buffers[4]);
  const float* count_data = static_cast<const float*>(buffers[5]);
  w::bf16* out0_data = static_cast<w::bf16*>(buffers[6]);

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
        const auto dloss = dloss_data[0];
        const auto count = count_data[0];
        const auto div = dloss / count;
        int64_t target[tile_rows], where[tile_rows], where_1[tile_rows];
        float maximum[tile_rows], log_total[tile_rows], where_3[tile_rows], mul_1[tile_rows], where_4[tile_rows];
        bool ne[tile_rows], ge[tile_rows], lt[tile_rows], logical_and[tile_rows], ge_1[tile_rows], lt_1[tile_rows], logical_and_1[tile_rows];
        int32_t cast[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          const int64_t m = tile + r;
          target[r] = target_data[m];
          maximum[r] = maximum_data[m];
          log_total[r] = log_total_data[m];
          ne[r] = w::ne(target[r], int64_t(-100));
          where[r] = w::where(ne[r], target[r], int64_t(0));
          ge[r] = w::ge(where[r], int64_t(0));
          lt[r] = w::lt(where[r], int64_t(1024));
          logical_and[r] = w::logical_and(ge[r], lt[r]);
          where_1[r] = w::where(logical_and[r], where[r], int64_t(-1));
          cast[r] = w::cast<int32_t>(where_1[r]);
          where_3[r] = w::where(ne[r], div, 0.0f);
          mul_1[r] = -1.0f * where_3[r];
          ge_1[r] = w::ge(cast[r], int32_t(0));
          lt_1[r] = w::lt(cast[r], int32_t(1024));
          logical_and_1[r] = w::logical_and(ge_1[r], lt_1[r]);
          where_4[r] = w::where(logical_and_1[r], mul_1[r], 0.0f);
        }
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto iota = w::positions<int32_t>(n);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto eq = w::eq(iota, w::vec(cast[r]));
            const auto where_2 = w::where(eq, w::vec(-1.0f), w::vec(0.0f));
            const auto mul = where_2 * w::vec(where_3[r]);
            const auto cast_1 = w::cast<float>(x);
            const auto sub = cast_1 - w::vec(maximum[r]);
            const auto sub_1 = sub - w::vec(log_total[r]);
            const auto exp = w::exp(sub_1);
            const auto mul_2 = exp * w::vec(where_4[r]);
            const auto sub_2 = mul - mul_2;
            const auto cast_2 = w::cast<w::bf16>(sub_2);
            w::store(out0_data + m * 1024 + n, cast_2, lanes);
          }
        });
      });
    }
  }
}
