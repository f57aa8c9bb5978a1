// Addresses, and vectors of rows in memory: how they are loaded, kept in registers, rounded and stored.

namespace w {

enum : int { WARP = 32, GRANULE = 16, LINE = 128 };  // LINE: bytes of one of the second cache

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
      constexpr int granules = sizeof(Found) / GRANULE, count = GRANULE / 4 * granules;
      const int early = static_cast<int>(address(from) % GRANULE);
      const uint4* const first = reinterpret_cast<const uint4*>(address(from) - early);
      uint32_t some[count + GRANULE / 4];
#pragma unroll
      for (int i = 0; i <= granules; ++i)
        reinterpret_cast<uint4*>(some)[i] = i < granules || early ? __ldg(first + i) : uint4{};
#pragma unroll
      for (int by = 2; by > 0; by /= 2)
#pragma unroll
        for (int i = 0; i + by < count + GRANULE / 4; ++i)
          if (early & 4 * by) some[i] = some[i + by];
      struct Packed { uint32_t words[count]; } packed;
#pragma unroll
      for (int i = 0; i < count; ++i) packed.words[i] = __funnelshift_r(some[i], some[i + 1], early % 4 * 8);
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
/// Which elements of a vector are of a row: those have the sign of a byte. There are no branches.
template <int lanes>
struct Inside {
  uint32_t signs[(lanes + 3) / 4];

  Inside() = default;
  Inside(int column, int columns) {
#pragma unroll
    for (uint32_t& some : signs) some = 0;
#pragma unroll
    for (int i = 0; i < lanes; ++i)
      if (inside(column + i, columns)) signs[i / 4] |= 0x80u << i % 4 * 8;
  }
  /// Zeros in place of the others, if there may be any.
  template <class T>
  Vector<T, lanes> of(const Vector<T, lanes>& found, bool at_edge) const {
    if (!at_edge) return found;
    if constexpr (sizeof(found) % 4 == 0) {
      constexpr int count = sizeof(found) / 4, size = sizeof(T);
      struct Packed { uint32_t words[count]; } packed = __builtin_bit_cast(Packed, found);
#pragma unroll
      for (int word = 0; word < count; ++word) {
        const int first = word * 4 / size;  // the lane of its first byte
        uint32_t bytes = 0, kept;
#pragma unroll
        for (int i = 0; i < 4; ++i) bytes |= uint32_t(8 | (first + i / size) % 4) << 4 * i;
        asm("prmt.b32 %0, %1, %2, %3;" : "=r"(kept) : "r"(signs[first / 4]), "r"(0), "r"(bytes));
        packed.words[word] &= kept;
      }
      return in_words(__builtin_bit_cast(Vector<T, lanes>, packed));
    } else {
      Vector<T, lanes> kept = {};
#pragma unroll
      for (int i = 0; i < lanes; ++i)
        if (signs[i / 4] >> (i % 4 * 8 + 7) & 1) kept[i] = found[i];
      return kept;
    }
  }
};
/// What lies before or behind a row is replaced by what a reduction is of nothing.
template <class Op, class T, int lanes>
inline void keep_inside(T (&numbers)[lanes], int column, int columns) {
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    if (!inside(column + i, columns)) numbers[i] = Op::template nothing<T>();
}

/// What the second cache does with what is copied. A kernel that only reads leaves what was there before, most of which
/// would have to be written to memory first; one that writes as much as it reads is faster if its rows stay and others
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
/// A granule, or an element, that stays in the second cache, as the rest of its line comes there.
template <class T>
inline void store_last(T* to, const T& found) {
  const uint64_t into = address(to), policy = cache_policy<Eviction::last>();
  if constexpr (sizeof(T) == 16) {
    const auto word = __builtin_bit_cast(uint4, found);
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(into), "r"(word.x), "r"(word.y), "r"(word.z),
                 "r"(word.w), "l"(policy)
                 : "memory");
  } else if constexpr (sizeof(T) == 8) {
    asm volatile("st.global.L2::cache_hint.b64 [%0], %1, %2;" ::"l"(into), "l"(__builtin_bit_cast(uint64_t, found)), "l"(policy) : "memory");
  } else if constexpr (sizeof(T) == 4) {
    asm volatile("st.global.L2::cache_hint.b32 [%0], %1, %2;" ::"l"(into), "r"(__builtin_bit_cast(uint32_t, found)), "l"(policy) : "memory");
  } else {
    static_assert(sizeof(T) == 2);  // eight smaller ones are no granule
    asm volatile("st.global.L2::cache_hint.b16 [%0], %1, %2;" ::"l"(into), "h"(__builtin_bit_cast(uint16_t, found)), "l"(policy) : "memory");
  }
}
/// Vectors of granules stay in the second cache. Shorter ones go first: then it takes less time if they begin between
/// two sectors.
template <class T, int lanes>
inline void store(T* to, const Vector<T, lanes>& found) {
  constexpr int bytes = sizeof(found);
  if constexpr (bytes % GRANULE == 0) {
#pragma unroll
    for (int i = 0; i < bytes / GRANULE; ++i)
      store_last(reinterpret_cast<uint4*>(to) + i, reinterpret_cast<const uint4*>(&found)[i]);
  } else if constexpr (bytes == 8) {
    __stcs(reinterpret_cast<uint2*>(to), *reinterpret_cast<const uint2*>(&found));
  } else if constexpr (bytes == 4) {
    __stcs(reinterpret_cast<uint32_t*>(to), *reinterpret_cast<const uint32_t*>(&found));
  } else {
    *reinterpret_cast<Vector<T, lanes>*>(to) = found;
  }
}
/// What is computed once, here, and not anew wherever it is used: addresses of vectors that are so far from another one,
/// and where rows begin between two vectors; nor before: what follows from numbers of rows.
template <class T>
inline T* once(T* p) {
  asm volatile("" : "+l"(p));
  return p;
}
inline int once(int x) {
  asm volatile("" : "+r"(x));
  return x;
}
inline int64_t once(int64_t x) {
  asm volatile("" : "+l"(x));
  return x;
}
/// To a row, from a column on, but for elements that lie before or behind it.
template <bool together, class T, int lanes>
inline void store_row(T* to, const Vector<T, lanes>& found, int column, int columns, bool all) {
  if (together && all) {
    store(to, found);
  } else {
#pragma unroll
    for (int i = 0; i < lanes; ++i)
      if (all || inside(column + i, columns)) {
        if constexpr (sizeof(found) % GRANULE == 0) store_last(to + i, found[i]);
        else to[i] = found[i];
      }
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

}  // namespace w
