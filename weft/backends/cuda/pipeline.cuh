// What CUDA C++ kernels of weft are made of beside arithmetic: copies to shared memory that run ahead, reductions across
// the threads of a cluster, vectors in memory, waiting for all programs. Instructions are those of the PTX ISA.

namespace std {
template <class T>
struct numeric_limits {
  static constexpr T infinity() { return w::infinity<T>(); }
  static constexpr T quiet_NaN() { return w::nan<T>(); }
  static constexpr T min() { return w::lowest<T>(); }
};
}  // namespace std

namespace w {

enum : int { WARP = 32, GRANULE = 16 };

// addresses

/// In shared memory, as instructions take them.
inline uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

inline uint64_t address(const void* p) { return reinterpret_cast<uint64_t>(p); }

/// The number of elements between the last vector before a row, and the row.
template <int lanes, class T>
inline int elements_early(const T* row) { return static_cast<int>(address(row) / sizeof(T) % lanes); }

// vectors

/// So many elements that lie next to each other.
template <class T, int lanes>
struct alignas(sizeof(T) * lanes > GRANULE ? GRANULE : sizeof(T) * lanes) Vector {
  T elements[lanes];
  T& operator[](int i) { return elements[i]; }
  T operator[](int i) const {
    if constexpr (sizeof(T) == 2 && lanes % 2 == 0) {  // of a word, as arithmetic that is seen through
      struct Packed { uint32_t words[lanes / 2]; };
      return __builtin_bit_cast(T, static_cast<uint16_t>(__builtin_bit_cast(Packed, *this).words[i / 2] >> (i % 2 * 16)));
    }
    return elements[i];
  }
};

/// Those of an array.
template <class T, int lanes>
inline Vector<T, lanes> vector(const T (&numbers)[lanes]) {
  Vector<T, lanes> found;
#pragma unroll
  for (int i = 0; i < lanes; ++i) found[i] = numbers[i];
  return found;
}
/// So that all numbers of the vectors of a thread are the same.
template <class T, int vectors, int lanes>
inline void fill(T (&numbers)[vectors][lanes], T number) {
#pragma unroll
  for (int k = 0; k < vectors; ++k)
#pragma unroll
    for (int i = 0; i < lanes; ++i) numbers[k][i] = number;
}

/// Whether a row has a column, or all those of a vector.
inline bool inside(int column, int columns) { return static_cast<unsigned>(column) < static_cast<unsigned>(columns); }
template <int lanes>
inline bool whole(int column, int columns) { return column >= 0 && column + lanes <= columns; }

/// The same as words of 32 bits, of which a register is full: otherwise each element of 16 bits has one while it waits,
/// and the second one of a word takes two instructions to become a float instead of one.
template <class V>
inline V in_words(const V& found) {
  if constexpr (sizeof(V) % 4 == 0) {
    struct Packed { uint32_t words[sizeof(V) / 4]; } packed = __builtin_bit_cast(Packed, found);
#pragma unroll
    for (uint32_t& word : packed.words) asm("" : "+r"(word));
    return __builtin_bit_cast(V, packed);
  }
  return found;
}

/// What waits in registers, as it is: not as floats, which take two of them for each.
template <class V>
inline V kept(const V& found) {
  if constexpr (sizeof(V) % 4 == 0) {
    struct Packed { uint32_t words[sizeof(V) / 4]; } packed = __builtin_bit_cast(Packed, found);
#pragma unroll
    for (uint32_t& word : packed.words) asm volatile("" : "+r"(word));
    return __builtin_bit_cast(V, packed);
  }
  return found;
}
/// Those of a row from a column on, one by one; zeros before and behind the row, if they are not all of it.
template <int lanes, class T>
inline Vector<T, lanes> load_each(const T* row, int column, int columns, bool all) {
  Vector<T, lanes> found = {};
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    if (all || inside(column + i, columns)) found[i] = row[column + i];
  return in_words(found);
}

/// The same. inner: they and as many behind them are of the row. together: they lie at a multiple of their size; else
/// they are taken from the granules of 16 bytes that they lie in.
template <int lanes, bool together, class T>
inline Vector<T, lanes> load_row(const T* row, int column, int columns, bool inner) {
  using Found = Vector<T, lanes>;
  const T* const from = row + column;
  if (inner) {
    if constexpr (together) {
      return in_words(*reinterpret_cast<const Found*>(from));
    } else if constexpr (sizeof(Found) % GRANULE == 0) {
      constexpr int granules = sizeof(Found) / GRANULE, words = GRANULE / 4 * granules;
      const int early = static_cast<int>(address(from) % GRANULE);
      const uint4* const first = reinterpret_cast<const uint4*>(address(from) - early);
      uint32_t some[words + GRANULE / 4];
#pragma unroll
      for (int i = 0; i <= granules; ++i)
        reinterpret_cast<uint4*>(some)[i] = i < granules || early ? __ldg(first + i) : uint4{};
#pragma unroll
      for (int by = 2; by > 0; by /= 2)
#pragma unroll
        for (int i = 0; i + by < words + GRANULE / 4; ++i)
          if (early & 4 * by) some[i] = some[i + by];
      struct Packed { uint32_t words[words]; } packed;
#pragma unroll
      for (int i = 0; i < words; ++i) packed.words[i] = __funnelshift_r(some[i], some[i + 1], early % 4 * 8);
      return in_words(__builtin_bit_cast(Found, packed));
    }
  }
  return load_each<lanes>(row, column, columns, inner);
}

/// The same of a row in shared memory, where what was copied with it lies around it: elements before and behind the row
/// may be any.
template <int lanes, bool together, class T>
inline Vector<T, lanes> load_copied(const T* row, int column, int columns, bool all) {
  if (together) return in_words(*reinterpret_cast<const Vector<T, lanes>*>(row + column));
  return load_each<lanes>(row, column, columns, all);
}
/// What lies before or behind a row is replaced by what a reduction is of nothing.
template <class Op, class T, int lanes>
inline void keep_inside(T (&numbers)[lanes], int column, int columns) {
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    if (!inside(column + i, columns)) numbers[i] = Op::template nothing<T>();
}

/// What nobody reads soon.
template <class T, int lanes>
inline void store(T* to, const Vector<T, lanes>& found) {
  constexpr int bytes = sizeof(found);
  if constexpr (bytes % 16 == 0) {
#pragma unroll
    for (int i = 0; i < bytes / 16; ++i)
      __stcs(reinterpret_cast<uint4*>(to) + i, reinterpret_cast<const uint4*>(&found)[i]);
  } else if constexpr (bytes == 8) {
    __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&found));
  } else {
    *reinterpret_cast<Vector<T, lanes>*>(to) = found;
  }
}
/// To a row, but for elements that lie before or behind it.
template <bool together, class T, int lanes>
inline void store_row(T* row, const Vector<T, lanes>& found, int column, int columns, bool all) {
  if (together && all) {
    store(row + column, found);
  } else {
#pragma unroll
    for (int i = 0; i < lanes; ++i)
      if (all || inside(column + i, columns)) row[column + i] = found[i];
  }
}

/// Floats as they are stored, in 16 bits, two at a time.
template <class T, int lanes>
inline Vector<T, lanes> rounded(const float (&numbers)[lanes]) {
  struct alignas(Vector<T, lanes>) { uint32_t pairs[lanes / 2]; } found;
#pragma unroll
  for (int i = 0; i < lanes / 2; ++i) found.pairs[i] = pack<T>(numbers[2 * i], numbers[2 * i + 1]);
  return __builtin_bit_cast(Vector<T, lanes>, found);
}

/// The element of a row with an index, zero where there is none. stride: from one element to the next.
template <class T, class I>
inline T pick(const T* row, I index, int columns, int64_t stride = 1) {
  return index >= 0 && index < columns ? row[index * stride] : T();
}

// barriers in shared memory, which count arrivals and bytes

inline void start_barrier(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
/// Before other threads, and copies, use what was started.
inline void started_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
inline void expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
inline void arrive_and_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
/// Until the phase of that parity is over. cluster: what other blocks have written is to be read.
template <bool cluster = false>
inline void wait(uint32_t barrier, uint32_t parity) {
  if constexpr (cluster)
    asm volatile(
        "{\n.reg .pred done;\nWAIT_%=:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT_%=;\n}" ::"r"(barrier), "r"(parity) : "memory");
  else
    asm volatile(
        "{\n.reg .pred done;\nWAIT_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra WAIT_%=;\n}" ::"r"(barrier), "r"(parity) : "memory");
}
/// Of some threads of a block.
template <int threads>
inline void wait_for_threads() {
  asm volatile("bar.sync 1, %0;" ::"n"(threads) : "memory");
}

// clusters

template <int cluster>
inline int rank_in_cluster() {
  if constexpr (cluster == 1) return 0;
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
}
/// Until all threads of all blocks of a cluster are here.
template <int cluster>
inline void wait_for_cluster() {
  if constexpr (cluster == 1)
    __syncthreads();
  else
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// The same place in the shared memory of another block of the cluster.
inline uint32_t in_block(uint32_t place, int rank) {
  uint32_t found;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(found) : "r"(place), "r"(rank));
  return found;
}
inline void send_word(uint32_t to, uint32_t word, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(word), "r"(barrier) : "memory");
}
inline void send_word(uint32_t to, uint64_t word, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(to), "l"(word), "r"(barrier) : "memory");
}

// copies that run ahead

/// Whether each thread says that it has read a stage, not one for its warp. compute-sanitizer's racecheck follows no
/// __syncwarp to that one thread (2025.3), and takes copies to stages that are free for races.
#ifndef WEFT_EVERY_LANE
#define WEFT_EVERY_LANE 0
#endif

/// How many threads of so many warps say so, and what a thread does for its warp.
constexpr int arrivals(int warps) { return WEFT_EVERY_LANE ? warps * WARP : warps; }
inline void arrive_for_warp(uint32_t barrier) {
  __syncwarp();
  if (WEFT_EVERY_LANE || threadIdx.x % WARP == 0) arrive(barrier);
}

/// What the second cache does with what is copied. A kernel that only reads leaves what was there before, most of which
/// would have to be written to memory first; one that writes as much as it reads is faster if its reads stay and others
/// go.
enum class Eviction { first, last };
template <Eviction eviction>
inline uint64_t cache_policy() {
  uint64_t policy;
  if constexpr (eviction == Eviction::first)
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  else
    asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

/// Stages of shared memory that one warp fills and the others read, in turn.
template <int stages, int stage_bytes, int warps, Eviction eviction>
struct Ring {
  uint8_t* memory;
  uint32_t filled, free;  // barriers of the first stage
  int stage = 0, oldest = 0;  // to be filled or read next, and to be released next
  uint32_t parity = 0;

  Ring(uint8_t* memory, uint64_t* barriers) : memory(memory) {
    filled = shared_address(barriers);
    free = filled + 8 * stages;
  }
  void start() const {
    for (int i = 0; i < stages; ++i) start_barrier(filled + 8 * i, 1), start_barrier(free + 8 * i, arrivals(warps));
  }
  void wait_until_free() const { wait(free + 8 * stage, parity ^ 1); }
  void wait_until_filled() const { wait(filled + 8 * stage, parity); }
  /// Of one thread, which has said what is copied.
  void copied() { arrive(filled + 8 * stage), next(); }
  /// Of all threads of a warp that reads.
  void release() {
    arrive_for_warp(free + 8 * oldest);
    if (++oldest == stages) oldest = 0;
  }
  void next() {
    if (++stage == stages) stage = 0, parity ^= 1;
  }
  uint8_t* slot(int offset) const { return memory + stage * stage_bytes + offset; }

  /// Begin to copy elements of a row, and what lies around them in the same granules; what does not end with a granule
  /// that the tensor has whole is copied by this thread. end: of the tensor.
  template <class T>
  void copy(int offset, const T* from, const T* to, const T* end) const {
    if (from >= to) return;
    const uint64_t first = address(from) / GRANULE * GRANULE;
    uint64_t last = (address(to) + GRANULE - 1) / GRANULE * GRANULE;
    uint8_t* const into = slot(offset);
    if (last > address(end)) {
      last = address(to) / GRANULE * GRANULE;
      const T* each = reinterpret_cast<const T*>(last);
      for (each = each < from ? from : each; each < to; ++each)
        *reinterpret_cast<T*>(into + (address(each) - first)) = *each;
    }
    if (first >= last) return;
    const uint32_t barrier = filled + 8 * stage, bytes = static_cast<uint32_t>(last - first);
    expect(barrier, bytes);
    for (uint32_t done = 0; done < bytes; done += PART)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
              shared_address(into) + done),
          "l"(first + done), "r"(min(PART, bytes - done)), "r"(barrier), "l"(cache_policy<eviction>())
          : "memory");
  }
  /// Where the first element of a row would be of which this block has those from ``begin`` on.
  template <class T>
  const T* row(int offset, const T* row, int begin) const {
    return reinterpret_cast<const T*>(slot(offset) + address(row + begin) % GRANULE) - begin;
  }

  static constexpr uint32_t PART = 16384;  // bytes of one instruction
};

// the rows of a chunk

/// Where a thread keeps something of its columns, rows that begin at one place between two vectors, which are `apart`
/// from each other, follow one another, first those of row 0. Chunks are equal shares of them; a chunk has a part for
/// each place where rows of it begin, maybe an empty one, so that the parts of all are numbered by chunk + place.
struct Rows { int64_t first, end; };
template <int apart>
inline int64_t first_part(int64_t chunk, int64_t chunks) { return chunk + apart * chunk / chunks; }
template <int apart>
inline int64_t last_part(int64_t chunk, int64_t chunks) { return chunk + min(apart * (chunk + 1) / chunks, apart - 1ll); }
template <int apart>
inline Rows rows_of(int64_t part, int64_t chunk, int64_t rows, int64_t chunks) {
  const int64_t place = part - chunk, each = (rows + apart - 1) / apart, before = place * each;
  const int64_t from = max(apart * each * chunk / chunks - before, 0ll);
  const int64_t to = min(apart * each * (chunk + 1) / chunks - before, each);
  return {from * apart + place, min(rows, to * apart + place)};
}
/// A row that begins as those of a part do.
template <int apart>
inline int first_row(int part, int chunks) { return apart * (part + 1) / (apart + chunks); }

// row reductions

struct Sum {
  template <class T> static T nothing() { return T(0); }
  template <class T> static T both(T a, T b) { return a + b; }
};
struct Max {
  template <class T> static T nothing() { return lowest<T>(); }
  template <class T> static T both(T a, T b) { return maximum(a, b); }
};
struct Min {
  template <class T> static T nothing() { return highest<T>(); }
  template <class T> static T both(T a, T b) { return minimum(a, b); }
};
/// Of states with a centre that moves.
struct Merge {
  template <class T> static T nothing() { return T(); }
  template <class T> static T both(T a, const T& b) { return a.merge(b), a; }
};

/// A row reduction of a thread: of every so many elements of its vectors, so that none waits for the one before it.
template <class Op, class T, int chains = 4>
struct Parts {
  T each[chains];
  Parts() {
#pragma unroll
    for (int i = 0; i < chains; ++i) each[i] = Op::template nothing<T>();
  }
  template <int lanes>
  void add(const T (&numbers)[lanes]) {
#pragma unroll
    for (int i = 0; i < lanes; ++i) each[i % chains] = Op::both(each[i % chains], numbers[i]);
  }
  T total() const {
    T all = each[0];
#pragma unroll
    for (int i = 1; i < chains; ++i) all = Op::both(all, each[i]);
    return all;
  }
};

/// Of another thread of the warp.
template <class T> inline T from_mask(T x, int mask) { return __shfl_xor_sync(~0u, x, mask); }
template <class T> inline Sumexp<T> from_mask(const Sumexp<T>& x, int mask) {
  return {from_mask(x.centre, mask), from_mask(x.sum, mask)};
}
template <class T> inline T from_lane(T x, int lane) { return __shfl_sync(~0u, x, lane); }
template <class T> inline Sumexp<T> from_lane(const Sumexp<T>& x, int lane) {
  return {from_lane(x.centre, lane), from_lane(x.sum, lane)};
}

/// Of so many threads of the warp next to each other, by each of them.
template <class Op, int threads = WARP, class T>
inline T of_warp(T x) {
#pragma unroll
  for (int mask = threads / 2; mask > 0; mask /= 2) x = Op::both(x, from_mask(x, mask));
  return x;
}

/// A number, or a state of several, as it is sent and as it lies in shared memory.
template <int bytes> struct Word { using type = uint64_t; };
template <> struct Word<4> { using type = uint32_t; };
template <class T> struct alignas(typename Word<sizeof(T)>::type) Words {
  using Each = typename Word<sizeof(T)>::type;
  static constexpr int count = sizeof(T) / sizeof(Each);
  static_assert(count * sizeof(Each) == sizeof(T));
  Each each[count];
};

template <class T> struct Numbers { using type = T; static constexpr int count = 1; static T& get(T& x, int) { return x; } };
template <class T, int n> struct Numbers<T[n]> { using type = T; static constexpr int count = n; static T& get(T (&x)[n], int i) { return x[i]; } };

/// Reductions across the threads of a cluster that compute. Each has a place in shared memory, in turn: whoever writes
/// there knows that all have read what was there before, since they have sent something in between. So there are two
/// places where what was sent is received before the next is sent, four where one more may be sent before.
template <int cluster, int warps, int most, int places>
struct Exchange {
  static constexpr int parts = cluster * warps;
  uint8_t* memory;    // 8 bytes for each part of each of the most words, in each place
  uint32_t barriers;  // one for each place
  int rank;
  unsigned sent = 0;

  Exchange(uint8_t* memory, uint64_t* barriers, int rank)
      : memory(memory), barriers(shared_address(barriers)), rank(rank) {}
  void start() const {
    for (int i = 0; i < places; ++i) start_barrier(barriers + 8 * i, cluster > 1 ? 1 : arrivals(warps));
  }

  /// What each thread has is replaced by what all have together. Numbers or states, or arrays of them, of one type.
  template <class Op, class... A>
  void reduce(A&... each) { receive<Op>(send<Op>(each...), each...); }

  /// What each thread has, to all others. The number is that by which it is received.
  template <class Op, class... A>
  unsigned send(A&... each) {
    using T = typename Numbers<typename First<A...>::type>::type;
    constexpr int count = (Numbers<A>::count + ...);
    static_assert(count * ((sizeof(T) + 7) / 8) <= most);
    T found[count];
    int at = 0;
    (read(each, found, at), ...);
    const uint32_t barrier = barrier_of(sent);
    if (cluster > 1 && threadIdx.x == 0) arrive_and_expect(barrier, parts * count * sizeof(T));
    Some<Op, T, count, 0>::send_all(*this, found, place_of<T>(sent), barrier);
    if (cluster == 1) arrive_for_warp(barrier);
    return sent++;
  }

  /// What all threads have together of what they have sent.
  template <class Op, class... A>
  void receive(unsigned number, A&... each) {
    using T = typename Numbers<typename First<A...>::type>::type;
    constexpr int count = (Numbers<A>::count + ...);
    T found[count];
    wait<(cluster > 1)>(barrier_of(number), number / places % 2);
    Some<Op, T, count, 0>::receive_all(found, place_of<T>(number));
    int at = 0;
    (write(each, found, at), ...);
  }

 private:
  template <class T>
  Words<T>* place_of(unsigned number) const { return reinterpret_cast<Words<T>*>(memory + number % places * 8 * parts * most); }
  uint32_t barrier_of(unsigned number) const { return barriers + 8 * (number % places); }
  template <class F, class...> struct First { using type = F; };
  static constexpr int power(int n) { int p = 1; while (p < n) p *= 2; return p; }

  /// Of so many numbers, those from one on: up to eight at a time, for each of which a group of neighbouring lanes is
  /// responsible.
  template <class Op, class T, int count, int first>
  struct Some {
    static constexpr int own = count - first < 8 ? count - first : 8, groups = power(own), width = WARP / groups;

    static void send_all(const Exchange& exchange, const T (&found)[count], Words<T>* place, uint32_t barrier) {
      const int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP, group = lane / width, within = lane % width;
      T some[groups];
#pragma unroll
      for (int i = 0; i < groups; ++i) some[i] = i < own ? found[first + (i < own ? i : 0)] : Op::template nothing<T>();
      // each half of the lanes goes on with half of the numbers
#pragma unroll
      for (int half = groups / 2; half > 0; half /= 2) {
        const int mask = WARP / 2 / (groups / 2 / half);
        const bool upper = lane & mask;
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const T kept = upper ? some[i + half] : some[i], given = upper ? some[i] : some[i + half];
          some[i] = Op::both(kept, from_mask(given, mask));
        }
      }
      const T all = of_warp<Op, width>(some[0]);
      const auto words = __builtin_bit_cast(Words<T>, all);
      Words<T>* const mine = place + (first + group) * parts + exchange.rank * warps + warp;
      if (group < own) {
        if constexpr (cluster == 1) {
          if (within == 0) *mine = words;
        } else {
#pragma unroll
          for (int block = 0; block < cluster; block += width)
            if (cluster - block >= width || within < cluster - block) {
              const uint32_t to = in_block(shared_address(mine), block + within), arrived = in_block(barrier, block + within);
#pragma unroll
              for (int k = 0; k < words.count; ++k) send_word(to + k * sizeof(words.each[k]), words.each[k], arrived);
            }
        }
      }
      if constexpr (first + 8 < count) Some<Op, T, count, first + 8>::send_all(exchange, found, place, barrier);
    }

    static void receive_all(T (&found)[count], const Words<T>* place) {
      const int lane = threadIdx.x % WARP, group = lane / width, within = lane % width;
      T all = Op::template nothing<T>();
      const Words<T>* const from = place + (first + group) * parts;
#pragma unroll
      for (int part = 0; part < parts; part += width)
        if (group < own && (parts - part >= width || within < parts - part))
          all = Op::both(all, __builtin_bit_cast(T, from[part + within]));
      all = of_warp<Op, width>(all);
#pragma unroll
      for (int i = 0; i < own; ++i) found[first + i] = from_lane(all, i * width);
      if constexpr (first + 8 < count) Some<Op, T, count, first + 8>::receive_all(found, place);
    }
  };

  template <class A, class T> static void read(A& each, T* found, int& at) {
#pragma unroll
    for (int i = 0; i < Numbers<A>::count; ++i) found[at++] = Numbers<A>::get(each, i);
  }
  template <class A, class T> static void write(A& each, const T* found, int& at) {
#pragma unroll
    for (int i = 0; i < Numbers<A>::count; ++i) Numbers<A>::get(each, i) = found[at++];
  }
};

// the finish

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
