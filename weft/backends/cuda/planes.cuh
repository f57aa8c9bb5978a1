// What all threads of a block have in shared memory of columns: weights, and column sums of groups of warps.

namespace w {

/// Elements of two weights of 16 bits at a column, in one word.
template <class T>
struct Pair {
  uint32_t word;
  T first() const { return __builtin_bit_cast(T, static_cast<uint16_t>(word)); }
  T second() const { return __builtin_bit_cast(T, static_cast<uint16_t>(word >> 16)); }
};
template <class T, int lanes>
inline Vector<Pair<T>, lanes> pairs(const Vector<T, lanes>& first, const Vector<T, lanes>& second) {
  Vector<Pair<T>, lanes> found;
#pragma unroll
  for (int i = 0; i < lanes; ++i)
    found[i] = {__builtin_bit_cast(uint16_t, T(first[i])) | uint32_t(__builtin_bit_cast(uint16_t, T(second[i]))) << 16};
  return found;
}

/// Weights in shared memory. A vector is in pieces of so many elements: the first pieces of all vectors lie next to each
/// other, so do the second ones, and so on, so that neighbouring lanes load from neighbouring places. Pieces of one
/// element let a lane take as many elements from any one on.
template <class T, int lanes, int piece>
struct Planes {
  T* memory;
  int vectors;

  template <class From>
  void set(int vector, const Vector<From, lanes>& found) const {
#pragma unroll
    for (int i = 0; i < lanes; i += piece) {
      Vector<T, piece> part;
#pragma unroll
      for (int j = 0; j < piece; ++j) part[j] = cast<T>(found[i + j]);
      *place(i / piece, vector) = part;
    }
  }
  Vector<T, lanes> at(int vector) const {
    struct alignas(Vector<T, lanes>) { Vector<T, piece> parts[lanes / piece]; } found;
#pragma unroll
    for (int i = 0; i < lanes / piece; ++i) found.parts[i] = *place(i, vector);
    return in_words(__builtin_bit_cast(Vector<T, lanes>, found));
  }
  /// From so many elements before a vector on.
  Vector<T, lanes> before(int vector, int early) const {
    static_assert(piece == 1);
    Vector<T, lanes> found;
#pragma unroll
    for (int i = 0; i < lanes; ++i) {
      const int at = lanes + i - early;
      found[i] = memory[at % lanes * vectors + at / lanes + vector - 1];
    }
    return found;
  }

 private:
  Vector<T, piece>* place(int plane, int vector) const {
    return reinterpret_cast<Vector<T, piece>*>(memory) + plane * vectors + vector;
  }
};
/// Column sums in shared memory, which groups of warps add to one after the other: as weights in pieces of one element,
/// since groups have vectors that begin elsewhere.
template <class T, int lanes>
struct Columns {
  T* memory;
  int vectors;

  /// Of the vector from a column on. first: whether nothing was added before.
  template <class Op>
  void add(const T (&numbers)[lanes], int column, int columns, bool first) const {
#pragma unroll
    for (int i = 0; i < lanes; ++i)
      if (inside(column + i, columns)) {
        T& all = memory[(column + i) % lanes * vectors + (column + i) / lanes];
        all = first ? numbers[i] : Op::both(all, numbers[i]);
      }
  }
  Vector<T, lanes> at(int vector) const {
    Vector<T, lanes> found;
#pragma unroll
    for (int i = 0; i < lanes; ++i) found[i] = memory[i * vectors + vector];
    return found;
  }
};

/// One weight, or a pair of them, from a vector on, for all threads of a block. Loads of a thread are on their way
/// together, but for those of vectors that do not lie within a row: these come first, element by element.
template <int threads, bool together, class T, int lanes, class From, int rows>
inline void keep_weights(const Planes<T, lanes, 1>& tile, int thread, int first, int columns, const From* const (&from)[rows]) {
  constexpr int words = rows * lanes * sizeof(From) / 4, many = words < 32 ? 32 / words : 1;
  using Vectors = Vector<From, lanes>[rows];
  const auto is_inner = [&](int vector) { return whole<2 * lanes>((first + vector) * lanes, columns); };
  const auto load = [&](Vectors& found, int vector, bool inner) {
#pragma unroll
    for (int i = 0; i < rows; ++i) found[i] = load_row<lanes, together>(from[i], (first + vector) * lanes, columns, inner);
  };
  const auto keep = [&](const Vectors& found, int vector) {
    if constexpr (rows == 2) tile.set(vector, pairs(found[0], found[1]));
    else tile.set(vector, found[0]);
  };
#pragma unroll 1
  for (int vector = thread; vector < tile.vectors; vector += threads) {
    if (is_inner(vector)) continue;
    Vectors found;
    load(found, vector, false), keep(found, vector);
  }
  for (int begin = thread; begin < tile.vectors; begin += many * threads) {
    Vectors found[many];
    const auto has = [&](int vector) { return vector < tile.vectors && is_inner(vector); };
#pragma unroll
    for (int k = 0; k < many; ++k)
      if (const int vector = begin + k * threads; has(vector)) load(found[k], vector, true);
#pragma unroll
    for (int k = 0; k < many; ++k)
      if (const int vector = begin + k * threads; has(vector)) keep(found[k], vector);
  }
}

}  // namespace w
