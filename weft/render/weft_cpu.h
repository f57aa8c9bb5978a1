// Vector vocabulary of generated CPU kernels: W columns at a time, whatever their type.
#pragma once
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <omp.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <type_traits>

namespace w {

using bf16 = c10::BFloat16;
using f16 = c10::Half;
using at::vec::Vectorized;
using at::vec::VectorizedN;

constexpr int W = 2 * Vectorized<float>::size();

template <class T>
constexpr int registers = W / Vectorized<T>::size();
template <class T>
using Vec = VectorizedN<T, registers<T>>;
using Mask = at::vec::VecMask<float, registers<float>>;

// How many lanes of a vector hold columns: all of them, or the rest of a row.
struct Full {
  static constexpr int count = W;
};
struct Tail {
  int count;
};

template <class Body>
inline __attribute__((always_inline)) void for_columns(int64_t begin, int64_t end, const Body& body) {
  int64_t column = begin;
  for (; column + W <= end; column += W) body(column, Full{});
  if (column < end) body(column, Tail{static_cast<int>(end - column)});
}

// loads and stores

template <class T>
inline Vec<T> load(const T* p, Full) { return Vec<T>::loadu(p); }
template <class T>
inline Vec<T> load(const T* p, Tail lanes) { return Vec<T>::loadu(p, lanes.count); }
inline Mask load(const bool* p, Full) { return Mask::from(p); }
inline Mask load(const bool* p, Tail lanes) { return Mask::from(p, lanes.count); }

template <class T, class Lanes>
inline auto load_strided(const T* p, int64_t stride, Lanes lanes) {
  T elements[W] = {};
  for (int i = 0; i < lanes.count; ++i) elements[i] = p[i * stride];
  return load(static_cast<const T*>(elements), Full{});
}

template <class T>
inline void store(T* p, const Vec<T>& v, Full) { v.store(p); }
template <class T>
inline void store(T* p, const Vec<T>& v, Tail lanes) { v.store(p, lanes.count); }
template <class Lanes>
inline void store(bool* p, Mask v, Lanes lanes) { v.store(p, lanes.count); }

template <class T, class V, class Lanes>
inline void store_strided(T* p, int64_t stride, const V& v, Lanes lanes) {
  T elements[W];
  store(elements, v, Full{});
  for (int i = 0; i < lanes.count; ++i) p[i * stride] = elements[i];
}

// the first lane, which stands for all where a value does not vary along the fastest column
template <class T, int N>
inline T first_lane(const VectorizedN<T, N>& v) {
  T elements[W];
  v.store(elements);
  return elements[0];
}
inline bool first_lane(const Mask& v) {
  bool elements[W];
  store(static_cast<bool*>(elements), v, Full{});
  return elements[0];
}

// one number in every lane; the position of every lane
template <class T>
inline Vec<T> vec(T x) { return Vec<T>(x); }
inline Mask vec(bool x) { return Mask::from(x); }
template <class T>
inline Vec<T> positions(int64_t first) { return Vec<T>::arange(static_cast<T>(first), static_cast<T>(1)); }

// casts

template <class To, class From, std::enable_if_t<std::is_arithmetic_v<From> || std::is_same_v<From, bf16> || std::is_same_v<From, f16>, int> = 0>
inline To cast(From x) { return static_cast<To>(x); }

template <class To, class From, int N>
inline auto cast(const VectorizedN<From, N>& v) {
  if constexpr (std::is_same_v<To, bool>) {
    return Mask(at::vec::VecMask<From, N>(v != Vec<From>(From(0))).template cast<float, registers<float>>());
  } else if constexpr ((std::is_same_v<From, bf16> || std::is_same_v<From, f16>) && !std::is_same_v<To, float>) {
    return cast<To>(cast<float>(v));
  } else if constexpr ((std::is_same_v<To, bf16> || std::is_same_v<To, f16>) && !std::is_same_v<From, float>) {
    return cast<To>(cast<float>(v));
  } else {
    return Vec<To>(at::vec::convert<To, registers<To>, From, N>(v));
  }
}
template <class To>
inline auto cast(const Mask& m) {
  if constexpr (std::is_same_v<To, bool>) return m;
  else return Vec<To>(cast<To>(Vec<float>(m.template to<float, registers<float>>())));
}

// pointwise functions, on numbers and on vectors

#define WEFT_UNARY(name, scalar)                                     \
  inline float name(float x) { return static_cast<float>(scalar); }  \
  inline double name(double x) { return scalar; }                    \
  template <class T, int N>                                          \
  inline VectorizedN<T, N> name(const VectorizedN<T, N>& v) { return v.name(); }

WEFT_UNARY(sqrt, std::sqrt(x))
WEFT_UNARY(rsqrt, 1 / std::sqrt(x))
WEFT_UNARY(reciprocal, 1 / x)
WEFT_UNARY(exp, std::exp(x))
WEFT_UNARY(log, std::log(x))
WEFT_UNARY(tanh, std::tanh(x))
WEFT_UNARY(erf, std::erf(x))
#undef WEFT_UNARY

template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
inline T abs(T x) { return x < 0 ? -x : x; }
inline float abs(float x) { return std::fabs(x); }
inline double abs(double x) { return std::fabs(x); }
template <class T, int N>
inline VectorizedN<T, N> abs(const VectorizedN<T, N>& v) { return v.abs(); }

template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
inline T sigmoid(T x) { return 1 / (1 + std::exp(-x)); }
template <class T, int N>
inline VectorizedN<T, N> sigmoid(const VectorizedN<T, N>& v) {
  const VectorizedN<T, N> one(T(1));
  return one / (one + v.neg().exp());
}

template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
inline T pow(T x, T y) { return std::pow(x, y); }
template <class T, int N>
inline VectorizedN<T, N> pow(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) { return x.pow(y); }

template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
inline T fma(T x, T y, T z) { return std::fma(x, y, z); }
template <class T, int N>
inline VectorizedN<T, N> fma(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y, const VectorizedN<T, N>& z) {
  return at::vec::fmadd(x, y, z);
}

// NaN wins, as in torch.maximum
template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
inline T maximum(T x, T y) { return x != x || x > y ? x : y; }
template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
inline T minimum(T x, T y) { return x != x || x < y ? x : y; }
template <class T, int N>
inline VectorizedN<T, N> maximum(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) { return at::vec::maximum(x, y); }
template <class T, int N>
inline VectorizedN<T, N> minimum(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) { return at::vec::minimum(x, y); }

template <class T, int N>
inline VectorizedN<T, N> operator-(const VectorizedN<T, N>& v) { return v.neg(); }

#define WEFT_COMPARE(name, op)                                                                     \
  template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>                           \
  inline bool name(T x, T y) { return x op y; }                                                    \
  template <class T, int N>                                                                        \
  inline Mask name(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) {                       \
    return at::vec::VecMask<T, N>(x op y).template cast<float, registers<float>>();                \
  }

WEFT_COMPARE(eq, ==)
WEFT_COMPARE(ne, !=)
WEFT_COMPARE(lt, <)
WEFT_COMPARE(le, <=)
WEFT_COMPARE(gt, >)
WEFT_COMPARE(ge, >=)
#undef WEFT_COMPARE

inline bool logical_and(bool x, bool y) { return x && y; }
inline bool logical_or(bool x, bool y) { return x || y; }
inline bool logical_not(bool x) { return !x; }
inline Mask logical_and(const Mask& x, const Mask& y) { return x & y; }
inline Mask logical_or(const Mask& x, const Mask& y) { return x | y; }
inline Mask logical_not(const Mask& x) { return ~x; }

// booleans compare as zero and one
inline Mask ne(const Mask& x, const Mask& y) { return (x & ~y) | (~x & y); }
inline Mask eq(const Mask& x, const Mask& y) { return ~ne(x, y); }
inline Mask lt(const Mask& x, const Mask& y) { return ~x & y; }
inline Mask le(const Mask& x, const Mask& y) { return ~x | y; }
inline Mask gt(const Mask& x, const Mask& y) { return x & ~y; }
inline Mask ge(const Mask& x, const Mask& y) { return x | ~y; }

template <class T, std::enable_if_t<!std::is_same_v<T, Mask>, int> = 0>
inline T where(bool condition, T yes, T no) { return condition ? yes : no; }
template <class T, int N>
inline VectorizedN<T, N> where(const Mask& condition, const VectorizedN<T, N>& yes, const VectorizedN<T, N>& no) {
  return VectorizedN<T, N>::blendv(no, yes, VectorizedN<T, N>(condition.template cast<T, N>()));
}
inline Mask where(const Mask& condition, const Mask& yes, const Mask& no) {
  return (condition & yes) | (~condition & no);
}

// Reductions along a row, lane by lane, then across lanes as a tree. Lanes that hold no column keep what they have.
// A sum is a cascade of three levels of sixteen additions, so that its error grows with the logarithm of the row.

template <class T>
inline Vec<T> keep(const Vec<T>&, const Vec<T>& fresh, Full) { return fresh; }
template <class T>
inline Vec<T> keep(const Vec<T>& old, const Vec<T>& fresh, Tail lanes) { return Vec<T>::set(old, fresh, lanes.count); }

template <class T, class Combine>
inline T across_lanes(const Vec<T>& v, Combine combine) {
  T lanes[W];
  v.store(lanes);
  for (int width = W / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = combine(lanes[i], lanes[i + width]);
  return lanes[0];
}

template <class T>
class Sum {
 public:
  template <class Lanes>
  void add(const Vec<T>& v, Lanes lanes) {
    low_ = keep<T>(low_, low_ + v, lanes);
    if (++count_ % 16 == 0) {
      middle_ = middle_ + low_;
      low_ = Vec<T>(T(0));
      if (count_ % 256 == 0) {
        high_ = high_ + middle_;
        middle_ = Vec<T>(T(0));
      }
    }
  }
  T result() const {
    return across_lanes<T>(high_ + (middle_ + low_), [](T x, T y) { return x + y; });
  }

 private:
  Vec<T> low_ = Vec<T>(T(0)), middle_ = Vec<T>(T(0)), high_ = Vec<T>(T(0));
  unsigned count_ = 0;
};

template <class T>
class Max {
 public:
  template <class Lanes>
  void add(const Vec<T>& v, Lanes lanes) { value_ = keep<T>(value_, w::maximum(value_, v), lanes); }
  T result() const { return across_lanes<T>(value_, [](T x, T y) { return w::maximum(x, y); }); }

 private:
  using Limits = std::numeric_limits<T>;
  Vec<T> value_ = Vec<T>(Limits::has_infinity ? -Limits::infinity() : Limits::min());
};

template <class T>
class Min {
 public:
  template <class Lanes>
  void add(const Vec<T>& v, Lanes lanes) { value_ = keep<T>(value_, w::minimum(value_, v), lanes); }
  T result() const { return across_lanes<T>(value_, [](T x, T y) { return w::minimum(x, y); }); }

 private:
  using Limits = std::numeric_limits<T>;
  Vec<T> value_ = Vec<T>(Limits::has_infinity ? Limits::infinity() : Limits::max());
};

template <class T>
inline void fill(T* p, int64_t count, T x) {
  for (int64_t i = 0; i < count; ++i) p[i] = x;
}

template <class T>
inline std::unique_ptr<T[]> scratch(int64_t count) { return std::unique_ptr<T[]>(new T[count > 0 ? count : 1]); }

// Memory that stays with the calling thread from call to call, one piece a slot: a fresh allocation of this size would
// cost a page fault for every 4 KB.
template <class T, int slot>
inline T* workspace(int64_t count) {
  static thread_local std::unique_ptr<T[]> kept;
  static thread_local int64_t size = 0;
  if (count > size) {
    kept = scratch<T>(count);
    size = count;
  }
  return kept.get();
}

inline int64_t chunks_of(int64_t rows, int64_t rows_per_chunk) { return (rows + rows_per_chunk - 1) / rows_per_chunk; }

}  // namespace w

using w::operator-;
