// schedule STREAM rows=(m) columns=(n) segments=() rows_per_tile=4 rows_per_chunk=64 held=() finish=same
// program cross_entropy_forward(s0)
//   dim m = s0
//   dim n = 1024
//   input x: bf16 [m:1024, n:1]
//   input target: i64 [m:1]
//   cast: f32{m, n} = cast(x)
//   max: f32{m} = max[n](cast)
//   sub: f32{m, n} = sub(cast, max)
//   exp: f32{m, n} = exp(sub)
//   sum: f32{m} = sum[n](exp)
//   log: f32{m} = log(sum)
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
//   cast_1: i32{m} = cast(where_1)
//   iota: i32{n} = iota[n]()
//   eq: bool{m, n} = eq(iota, cast_1)
//   const_4: f32{} = const[0.0]()
//   where_2: f32{m, n} = where(eq, cast, const_4)
//   sum_1: f32{m} = sum[n](where_2)
//   sub_1: f32{m} = sub(sum_1, max)
//   sub_2: f32{m} = sub(sub_1, log)
//   const_5: i32{} = const[0]()
//   ge_1: bool{m} = ge(cast_1, const_5)
//   const_6: i32{} = const[1024]()
//   lt_1: bool{m} = lt(cast_1, const_6)
//   logical_and_1: bool{m} = logical_and(ge_1, lt_1)
//   where_3: f32{m} = where(logical_and_1, sub_2, const_4)
//   cast_2: i64{m} = cast(ne)
//   sum_2: i64{} = sum[m](cast_2)
//   cast_3: f32{} = cast(sum_2)
//   neg: f32{m} = neg(where_3)
//   where_4: f32{m} = where(ne, neg, const_4)
//   sum_3: f32{} = sum[m](where_4)
//   div: f32{} = div(sum_3, cast_3)
//   output out0: f32 [m:1] = max
//   output out1: f32 [m:1] = log
//   output out2: f32 [] = cast_3
//   output out3: f32 [] = div
// end
#include "weft_cpu.h"

extern "C" void weft_cross_entropy_forward(void* const* buffers, const int64_t* parameters, int threads) {
  const int64_t s0 = parameters[0];
  const int64_t m_size = s0;
  constexpr int64_t n_size = 1024;
  const w::bf16* x_data = static_cast<const w::bf16*>(buffers[0]);
  const int64_t* target_data = static_cast<const int64_t*>(buffers[1]);
  float* out0_data = static_cast<float*>(buffers[2]);
  float* out1_data = static_cast<float*>(buffers[3]);
  float* out2_data = static_cast<float*>(buffers[4]);
  float* out3_data = static_cast<float*>(buffers[5]);

  // Column sums of every chunk of rows, combined in order by the finish below.
  constexpr int64_t rows_per_chunk = 64;
  const int64_t rows = m_size;
  const int64_t chunks = w::chunks_of(rows, rows_per_chunk);
  const w::Workspace<int64_t, 0> sum_2_kept(chunks * 1);
  int64_t* sum_2_partial = sum_2_kept.data();
  const w::Workspace<float, 1> sum_3_kept(chunks * 1);
  float* sum_3_partial = sum_3_kept.data();

  #pragma omp parallel num_threads(threads)
  {
    #pragma omp for schedule(static)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      const int64_t first = chunk * rows_per_chunk;
      const int64_t last = std::min(first + rows_per_chunk, rows);
      int64_t* sum_2_chunk = sum_2_partial + chunk * 1;
      w::fill(sum_2_chunk, 1, int64_t(0));
      float* sum_3_chunk = sum_3_partial + chunk * 1;
      w::fill(sum_3_chunk, 1, 0.0f);
      w::for_tiles<4>(first, last, m_size, [&](int64_t tile, auto whole) {
        constexpr int tile_rows = whole.count;
        int64_t target[tile_rows], where[tile_rows], where_1[tile_rows], cast_2[tile_rows];
        bool ne[tile_rows], ge[tile_rows], lt[tile_rows], logical_and[tile_rows], ge_1[tile_rows], lt_1[tile_rows], logical_and_1[tile_rows];
        int32_t cast_1[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          const int64_t m = tile + r;
          target[r] = target_data[m];
          ne[r] = w::ne(target[r], int64_t(-100));
          where[r] = w::where(ne[r], target[r], int64_t(0));
          ge[r] = w::ge(where[r], int64_t(0));
          lt[r] = w::lt(where[r], int64_t(1024));
          logical_and[r] = w::logical_and(ge[r], lt[r]);
          where_1[r] = w::where(logical_and[r], where[r], int64_t(-1));
          cast_1[r] = w::cast<int32_t>(where_1[r]);
          ge_1[r] = w::ge(cast_1[r], int32_t(0));
          lt_1[r] = w::lt(cast_1[r], int32_t(1024));
          logical_and_1[r] = w::logical_and(ge_1[r], lt_1[r]);
          cast_2[r] = w::cast<int64_t>(ne[r]);
        }
        w::Max<float> max_lanes[tile_rows];
        w::Sum<float> sum_1_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          const auto iota = w::positions<int32_t>(n);
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto eq = w::eq(iota, w::vec(cast_1[r]));
            const auto where_2 = w::where(eq, cast, w::vec(0.0f));
            max_lanes[r].add(cast, lanes);
            sum_1_lanes[r].add(where_2, lanes);
          }
        });
        float max[tile_rows], sum_1[tile_rows], sub_1[tile_rows];
        int64_t sum_2_tile = int64_t(0);
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          max[r] = max_lanes[r].result();
          sum_1[r] = sum_1_lanes[r].result();
          sum_2_tile = sum_2_tile + cast_2[r];
          sub_1[r] = sum_1[r] - max[r];
        }
        sum_2_chunk[0] = sum_2_chunk[0] + sum_2_tile;
        w::Sum<float> sum_lanes[tile_rows];
        w::for_columns<n_size % w::W == 0>(0, n_size, [&](int64_t n, auto lanes) {
          #pragma GCC unroll 16
          for (int r = 0; r < tile_rows; ++r) {
            const int64_t m = tile + r;
            const auto x = w::load(x_data + m * 1024 + n, lanes);
            const auto cast = w::cast<float>(x);
            const auto sub = cast - w::vec(max[r]);
            const auto exp = w::exp(sub);
            sum_lanes[r].add(exp, lanes);
          }
        });
        float sum[tile_rows], log[tile_rows], sub_2[tile_rows], where_3[tile_rows], neg[tile_rows], where_4[tile_rows];
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          const int64_t m = tile + r;
          sum[r] = sum_lanes[r].result();
          out0_data[m] = max[r];
          log[r] = w::log(sum[r]);
          sub_2[r] = sub_1[r] - log[r];
          where_3[r] = w::where(logical_and_1[r], sub_2[r], 0.0f);
          neg[r] = -where_3[r];
          where_4[r] = w::where(ne[r], neg[r], 0.0f);
        }
        float sum_3_tile = 0.0f;
        #pragma GCC unroll 16
        for (int r = 0; r < tile_rows; ++r) {
          const int64_t m = tile + r;
          out1_data[m] = log[r];
          sum_3_tile = sum_3_tile + where_4[r];
        }
        sum_3_chunk[0] = sum_3_chunk[0] + sum_3_tile;
      });
    }
  }

  {
    auto sum_2_total = int64_t(int64_t(0));
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      sum_2_total = sum_2_total + w::cast<int64_t>(sum_2_partial[chunk]);
    }
    const auto sum_2 = w::cast<int64_t>(sum_2_total);
    auto sum_3_total = double(0.0);
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
      sum_3_total = sum_3_total + w::cast<double>(sum_3_partial[chunk]);
    }
    const auto sum_3 = w::cast<float>(sum_3_total);
    const auto cast_3 = w::cast<float>(sum_2);
    const auto div = sum_3 / cast_3;
    out2_data[0] = cast_3;
    out3_data[0] = div;
  }
}
