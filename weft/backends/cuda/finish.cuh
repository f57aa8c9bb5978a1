// The finish: waiting for all programs, and outer reductions of their partial results.

namespace w {

/// Until all programs of the launch are here; what they wrote before can be read then. All of them have to be resident.
/// counter: a multiple of their number before the launch and after it.
template <int threads>
inline void wait_for_all(unsigned long long* counter) {
  wait_for_threads<threads>();
  if (threadIdx.x == 0) {
    const unsigned long long programs = gridDim.x;
    __threadfence();
    const unsigned long long before = atomicAdd(counter, 1ull), target = (before / programs + 1) * programs;
    while (*static_cast<volatile unsigned long long*>(counter) < target) __nanosleep(64);
    __threadfence();
  }
  wait_for_threads<threads>();
}

/// What other programs have written next to each other, at a multiple of its size.
template <int lanes, class T>
inline Vector<T, lanes> load_written(const T* from) {
  Vector<T, lanes> found;
  constexpr int bytes = sizeof(found);
  if constexpr (bytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < bytes / 16; ++i) reinterpret_cast<uint4*>(&found)[i] = __ldcg(reinterpret_cast<const uint4*>(from) + i);
  } else if constexpr (bytes == 8 && lanes > 1) {
    *reinterpret_cast<uint2*>(&found) = __ldcg(reinterpret_cast<const uint2*>(from));
  } else {
#pragma unroll
    for (int i = 0; i < lanes; ++i) found[i] = __ldcg(from + i);
  }
  return found;
}

/// Column sums, or other outer reductions, from the partial results of all chunks, in order: of as many neighbouring
/// columns as a warp has lanes, times ``wide``. Warps have every so many of the chunks. The result of a thread is that of
/// the column with its number behind ``first``; threads beyond have nothing. together: a lane has neighbouring columns,
/// which parts have at a multiple of their size, and of which rows have a multiple; else those of a lane are a warp's
/// lanes apart. padded: elements from one part to the next. begins: where the first column is in a part.
template <class Op, int warps, int wide, bool together, class T, class F>
inline T gathered_columns(uint8_t* memory, const T* partial, int parts, int padded, const F& begins, int first, int columns) {
  static_assert(wide <= warps);
  using Some = Vector<T, wide>;
  constexpr int ahead = sizeof(Some) > GRANULE ? 4 : 8;  // loads that wait together
  const int thread = threadIdx.x, warp = thread / WARP, lane = thread % WARP, own = together ? lane * wide : lane;
  Some all;
#pragma unroll
  for (int i = 0; i < wide; ++i) all[i] = Op::template nothing<T>();
  const Some nothing = all;
  if (first + own < columns) {
    for (int next = warp; next < parts; next += ahead * warps) {
      Some some[ahead];
#pragma unroll
      for (int k = 0; k < ahead; ++k) {
        const int part = next + k * warps;
        some[k] = nothing;
        if (part >= parts) continue;
        const T* const from = partial + static_cast<int64_t>(part) * padded + begins(part) + first + own;
        if constexpr (together) {
          some[k] = load_written<wide>(from);
        } else {
#pragma unroll
          for (int i = 0; i < wide; ++i)
            if (first + own + i * WARP < columns) some[k][i] = __ldcg(from + i * WARP);
        }
      }
#pragma unroll
      for (int k = 0; k < ahead; ++k)
#pragma unroll
        for (int i = 0; i < wide; ++i) all[i] = Op::both(all[i], some[k][i]);
    }
  }
  constexpr int width = WARP * wide;
  T* const found = reinterpret_cast<T*>(memory);
  if constexpr (together) {
    *reinterpret_cast<Some*>(found + warp * width + own) = all;
  } else {
#pragma unroll
    for (int i = 0; i < wide; ++i) found[warp * width + own + i * WARP] = all[i];
  }
  wait_for_threads<warps * WARP>();
  T total = Op::template nothing<T>();
  if (thread < width) {
#pragma unroll
    for (int i = 0; i < warps; ++i) total = Op::both(total, found[i * width + thread]);
  }
  wait_for_threads<warps * WARP>();
  return total;
}

/// An outer reduction without columns, by all threads and for all of them.
template <class Op, int warps, class T>
inline T gathered_number(uint8_t* memory, const T* partial, int64_t parts) {
  T all = Op::template nothing<T>();
  for (int64_t part = threadIdx.x; part < parts; part += warps * WARP) all = Op::both(all, __ldcg(partial + part));
  all = of_warp<Op>(all);
  T* const found = reinterpret_cast<T*>(memory);
  if (threadIdx.x % WARP == 0) found[threadIdx.x / WARP] = all;
  wait_for_threads<warps * WARP>();
  all = found[0];
#pragma unroll
  for (int i = 1; i < warps; ++i) all = Op::both(all, found[i]);
  wait_for_threads<warps * WARP>();
  return all;
}

}  // namespace w
