// Vector vocabulary of generated CPU kernels: W columns at a time, whatever their type.
#pragma once
#include <ATen/cpu/vec/functional.h>
#include <ATen/cpu/vec/vec.h>
#include <c10/util/generic_math.h>
#include <omp.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <type_traits>

namespace w {

using bf16 = c10::BFloat16;
using f16 = c10::Half;
using f8e4m3 = c10::Float8_e4m3fn;
using f8e5m2 = c10::Float8_e5m2;
using at::vec::Vectorized;
using at::vec::VectorizedN;

constexpr int W = 2 * Vectorized<float>::size();

template <class T>
constexpr int registers = W / Vectorized<T>::size();
template <class T>
using Vec = VectorizedN<T, registers<T>>;
using Mask = at::vec::VecMask<float, registers<float>>;

// Types of one byte have no vectors of W lanes in ATen: they are loaded, cast lane by lane, and stored.
template <class T>
constexpr bool is_byte = sizeof(T) == 1 && !std::is_same_v<T, bool>;
template <class T>
struct Bytes {
  T lanes[W];
};
template <class T>
constexpr bool is_narrow_float =
    std::is_same_v<T, bf16> || std::is_same_v<T, f16> || std::is_same_v<T, f8e4m3> || std::is_same_v<T, f8e5m2>;

// How many lanes of a vector hold columns: all of them, or the rest of a row.
struct Full {
  static constexpr int count = W;
};
struct Tail {
  int count;
};

template <bool even = false, class Body>
inline __attribute__((always_inline)) void for_columns(int64_t begin, int64_t end, const Body& body) {
  int64_t column = begin;
  for (; column + W <= end; column += W) body(column, Full{});
  if constexpr (!even)
    if (column < end) body(column, Tail{static_cast<int>(end - column)});
}

// Tiles of rows from begin to end that do not cross a multiple of size; what is left over goes row by row.
template <int rows>
struct Tile {
  static constexpr int count = rows;
};

template <int rows, class Body>
inline __attribute__((always_inline)) void for_tiles(int64_t begin, int64_t end, int64_t size, const Body& body) {
  for (int64_t row = begin; row < end;) {
    const int64_t border = std::min(end, (row / size + 1) * size);
    for (; row + rows <= border; row += rows) body(row, Tile<rows>{});
    for (; row < border; ++row) body(row, Tile<1>{});
  }
}

// loads and stores

template <class T, std::enable_if_t<!is_byte<T>, int> = 0>
inline Vec<T> load(const T* p, Full) { return Vec<T>::loadu(p); }
template <class T, std::enable_if_t<!is_byte<T>, int> = 0>
inline Vec<T> load(const T* p, Tail lanes) { return Vec<T>::loadu(p, lanes.count); }
template <class T, class Lanes, std::enable_if_t<is_byte<T>, int> = 0>
inline Bytes<T> load(const T* p, Lanes lanes) {
  Bytes<T> v = {};
  for (int i = 0; i < lanes.count; ++i) v.lanes[i] = p[i];
  return v;
}
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
template <class T, class Lanes>
inline void store(T* p, const Bytes<T>& v, Lanes lanes) {
  for (int i = 0; i < lanes.count; ++i) p[i] = v.lanes[i];
}
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
inline auto vec(T x) {
  if constexpr (is_byte<T>) {
    Bytes<T> v;
    for (T& lane : v.lanes) lane = x;
    return v;
  } else {
    return Vec<T>(x);
  }
}
inline Mask vec(bool x) { return Mask::from(x); }
template <class T>
inline Vec<T> positions(int64_t first) { return Vec<T>::arange(static_cast<T>(first), static_cast<T>(1)); }

// casts

template <class To, class From, std::enable_if_t<std::is_arithmetic_v<From> || is_narrow_float<From>, int> = 0>
inline To cast(From x) {
  if constexpr (is_narrow_float<From> && !std::is_same_v<To, From>) return static_cast<To>(static_cast<float>(x));
  else if constexpr (is_narrow_float<To> && !std::is_same_v<To, From>) return To(static_cast<float>(x));
  else return static_cast<To>(x);
}

// Floats of eight bits, without branches, so that the compiler makes vectors of it: rounded to nearest even. Normal numbers
// are rounded in their bits, small ones by an addition that leaves them in the last bits. What is too large is infinite in
// e5m2, and in e4m3 what PyTorch makes of it: NaN, or since 2.13 the largest number.
static const uint32_t f8e4m3_beyond = f8e4m3(1e30f).x;
using Floats = float __attribute__((vector_size(sizeof(Vectorized<float>))));
using Bits = uint32_t __attribute__((vector_size(sizeof(Vectorized<float>))));
using Octets = uint8_t __attribute__((vector_size(sizeof(Vectorized<float>) / 4)));
template <class To>
inline Octets eight_bits(const Vectorized<float>& x) {
  constexpr bool e4m3 = std::is_same_v<To, f8e4m3>;
  constexpr uint32_t mantissa = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15, dropped = 23 - mantissa;
  constexpr uint32_t smallest_normal = (128 - bias) << 23, too_large = e4m3 ? 1087u << 20 : 143u << 23;
  constexpr float magic = e4m3 ? 16384.0f : 128.0f;
  const uint32_t beyond = e4m3 ? f8e4m3_beyond : 0x7Cu;
  const Bits bits = std::bit_cast<Bits>(x), magnitude = bits & 0x7FFFFFFFu;
  const Bits odd = (magnitude >> dropped) & 1;
  const Bits normal = (magnitude + (((bias - 127u) << 23) + ((1u << (dropped - 1)) - 1)) + odd) >> dropped;
  const Bits small = std::bit_cast<Bits>(std::bit_cast<Floats>(magnitude) + magic) - std::bit_cast<uint32_t>(magic);
  const Bits inside = magnitude < smallest_normal ? small : normal;
  const Bits finite = magnitude >= too_large || inside > beyond ? Bits{} + beyond : inside;
  const Bits value = magnitude > 0x7F800000u ? Bits{} + 0x7Fu : finite;
  return __builtin_convertvector(value | ((bits >> 24) & 0x80u), Octets);
}

template <class To, class From, int N>
inline auto cast(const VectorizedN<From, N>& v) {
  if constexpr (std::is_same_v<To, bool>) {
    return Mask(at::vec::VecMask<From, N>(v != Vec<From>(From(0))).template cast<float, registers<float>>());
  } else if constexpr (is_narrow_float<From> && !std::is_same_v<To, float>) {
    return cast<To>(cast<float>(v));
  } else if constexpr (is_narrow_float<To> && !std::is_same_v<From, float>) {
    return cast<To>(cast<float>(v));
  } else if constexpr (is_byte<To>) {
    Bytes<To> result;
    if constexpr (is_narrow_float<To>) {
      for (int i = 0; i < N; ++i) {
        const Octets part = eight_bits<To>(v[i]);
        std::memcpy(&result.lanes[i * Vectorized<float>::size()], &part, sizeof(part));
      }
    } else {
      From wide[W];
      v.store(wide);
      for (int i = 0; i < W; ++i) result.lanes[i] = cast<To>(wide[i]);
    }
    return result;
  } else {
    return Vec<To>(at::vec::convert<To, registers<To>, From, N>(v));
  }
}
template <class To, class From>
inline auto cast(const Bytes<From>& v) {
  using Wide = std::conditional_t<is_narrow_float<From>, float, int32_t>;
  Wide wide[W];
  for (int i = 0; i < W; ++i) wide[i] = cast<Wide>(v.lanes[i]);
  if constexpr (std::is_same_v<To, Wide>) return Vec<Wide>::loadu(wide);
  else return cast<To>(Vec<Wide>::loadu(wide));
}
template <class To>
inline auto cast(const Mask& m) {
  if constexpr (std::is_same_v<To, bool>) return m;
  else if constexpr (is_byte<To>) return cast<To>(cast<int32_t>(m));
  else return Vec<To>(cast<To>(Vec<float>(m.template to<float, registers<float>>())));
}

// pointwise functions, on numbers and on vectors

#define WEFT_UNARY(name, scalar)                                     \
  inline float name(float x) { return static_cast<float>(scalar); }  \
  inline double name(double x) { return scalar; }                    \
  template <class T, int N>                                          \
  inline VectorizedN<T, N> name(const VectorizedN<T, N>& v) { return v.name(); }

WEFT_UNARY(sqrt, std::sqrt(x))
WEFT_UNARY(rsqrt, 1 / std::sqrt(static_cast<double>(x)))  // of a row's statistic: one rounding
WEFT_UNARY(reciprocal, 1 / x)
WEFT_UNARY(log, std::log(x))
WEFT_UNARY(tanh, std::tanh(x))
WEFT_UNARY(erfc, std::erfc(x))
WEFT_UNARY(exp2, std::exp2(x))
WEFT_UNARY(expm1, std::expm1(x))
WEFT_UNARY(log1p, std::log1p(x))
WEFT_UNARY(log2, std::log2(x))
WEFT_UNARY(log10, std::log10(x))
WEFT_UNARY(sin, std::sin(x))
WEFT_UNARY(cos, std::cos(x))
WEFT_UNARY(tan, std::tan(x))
WEFT_UNARY(asin, std::asin(x))
WEFT_UNARY(acos, std::acos(x))
WEFT_UNARY(atan, std::atan(x))
WEFT_UNARY(sinh, std::sinh(x))
WEFT_UNARY(cosh, std::cosh(x))
WEFT_UNARY(floor, std::floor(x))
WEFT_UNARY(ceil, std::ceil(x))
WEFT_UNARY(trunc, std::trunc(x))
WEFT_UNARY(round, std::nearbyint(x))
#undef WEFT_UNARY

// exp and erf of float vectors, without the call that ATen's take into SLEEF: a call saves all vector registers. Both are
// within one unit in the last place; the coefficients are minimax fits, see docs/notes/cpu_backend.md. ATen's own erf is
// good to 1.5e-7, which is not a digit near zero.

template <int degree>
inline Vectorized<float> polynomial(const Vectorized<float>& x, const float (&coefficients)[degree + 1]) {
  Vectorized<float> value(coefficients[degree]);
  for (int i = degree - 1; i >= 0; --i) value = at::vec::fmadd(value, x, Vectorized<float>(coefficients[i]));
  return value;
}

#if defined(CPU_CAPABILITY_AVX512) || defined(CPU_CAPABILITY_AVX2)
inline Vectorized<float> smaller(const Vectorized<float>& bound, const Vectorized<float>& x) {  // keeps the NaN of x
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_min_ps(bound, x);
#else
  return _mm256_min_ps(bound, x);
#endif
}
inline Vectorized<float> larger(const Vectorized<float>& bound, const Vectorized<float>& x) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_max_ps(bound, x);
#else
  return _mm256_max_ps(bound, x);
#endif
}
inline Vectorized<float> times_power_of_two(const Vectorized<float>& x, const Vectorized<float>& exponent) {
#if defined(CPU_CAPABILITY_AVX512)
  return _mm512_scalef_ps(x, exponent);
#else
  const __m256i whole = _mm256_cvtps_epi32(exponent), half = _mm256_srai_epi32(whole, 1);  // each half is in range
  const auto power = [](__m256i n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
  };
  return _mm256_mul_ps(_mm256_mul_ps(x, power(half)), power(_mm256_sub_epi32(whole, half)));
#endif
}
inline Vectorized<float> exp_of(const Vectorized<float>& x) {
  // e^x = 2^n * e^r, with n whole and |r| at most half of log 2; e^r = 1 + r + r^2 * q(r), where 1 + r is rounded and
  // what that loses is put back, so that there is one rounding of the result's own size
  const auto inside = smaller(Vectorized<float>(90.0f), larger(Vectorized<float>(-105.0f), x));
  const auto n = (inside * Vectorized<float>(1.44269504f)).round();
  const Vectorized<float> one(1.0f), low(-1.4286068e-6f);
  const auto exact = at::vec::fmadd(n, Vectorized<float>(-0.693145751953125f), inside);
  const auto r = at::vec::fmadd(n, low, exact);
  const auto q = polynomial<4>(r, {0.49999994f, 0.1666652f, 0.041668393f, 0.008368781f, 0.0013814465f});
  const auto sum = one + r;
  const auto lost = at::vec::fmadd(n, low, exact - (sum - one));
  return times_power_of_two(sum + at::vec::fmadd(r * r, q, lost), n);
}
inline Vectorized<float> erf_of(const Vectorized<float>& x) {
  // x + x * p(x^2) up to one; beyond, 1 - 2^-q(|x|), which is 1 from four on and where the power is at most a sixth
  const auto t = smaller(Vectorized<float>(4.0f), x.abs());
  const auto p = polynomial<6>(
      t * t,
      {0.12837917f, -0.37612626f, 0.112835854f, -0.026853811f, 0.0051883277f, -0.00080101925f, 7.853858e-5f});
  const auto q = polynomial<6>(
      t, {0.0003530471f, 1.6266025f, 0.91974264f, 0.14952138f, -0.03186573f, 0.004340402f, -0.00027761215f});
  const auto n = q.round();
  const auto power = polynomial<5>(
      q - n, {1.0000001f, -0.69314694f, 0.24022116f, -0.055507157f, 0.00967577f, -0.0013276238f});
  const auto large = (Vectorized<float>(1.0f) - times_power_of_two(power, n.neg())).copysign(x);
  return Vectorized<float>::blendv(at::vec::fmadd(p, x, x), large, t >= Vectorized<float>(1.0f));
}
#else
inline Vectorized<float> exp_of(const Vectorized<float>& x) { return x.exp(); }
inline Vectorized<float> erf_of(const Vectorized<float>& x) { return x.erf(); }
#endif
inline Vectorized<double> exp_of(const Vectorized<double>& x) { return x.exp(); }
inline Vectorized<double> erf_of(const Vectorized<double>& x) { return x.erf(); }

template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
inline T exp(T x) { return std::exp(x); }
template <class T, int N>
inline VectorizedN<T, N> exp(const VectorizedN<T, N>& v) {
  VectorizedN<T, N> result;
  for (int i = 0; i < N; ++i) result[i] = exp_of(v[i]);
  return result;
}
template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>
inline T erf(T x) { return std::erf(x); }
template <class T, int N>
inline VectorizedN<T, N> erf(const VectorizedN<T, N>& v) {
  VectorizedN<T, N> result;
  for (int i = 0; i < N; ++i) result[i] = erf_of(v[i]);
  return result;
}

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
  return one / (one + w::exp(v.neg()));
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

#define WEFT_BINARY(name, scalar)                                                                \
  template <class T, std::enable_if_t<std::is_floating_point_v<T>, int> = 0>                     \
  inline T name(T x, T y) { return scalar; }                                                     \
  template <class T, int N>                                                                      \
  inline VectorizedN<T, N> name(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) { return x.name(y); }

WEFT_BINARY(atan2, std::atan2(x, y))
WEFT_BINARY(copysign, std::copysign(x, y))
WEFT_BINARY(fmod, std::fmod(x, y))
#undef WEFT_BINARY

// Quotient rounded down and what is left, as in torch; an integer divided by zero gives zero.
template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
inline T remainder(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    const T rest = std::fmod(x, y);
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
  } else {
    if (y == 0 || y == -1) return 0;
    const T rest = x % y;
    return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
  }
}
template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
inline T floor_divide(T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    return c10::div_floor_floating(x, y);
  } else {
    if (y == 0) return 0;
    if (y == -1) return static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(x));
    const T quotient = x / y;
    return x % y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient;
  }
}
template <class T, int N, class Function>
inline VectorizedN<T, N> lane_by_lane(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y, Function function) {
  T a[W], b[W];
  x.store(a);
  y.store(b);
  for (int i = 0; i < W; ++i) a[i] = function(a[i], b[i]);
  return VectorizedN<T, N>::loadu(a);
}
template <class T, int N>
inline VectorizedN<T, N> remainder(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) {
  return lane_by_lane(x, y, [](T a, T b) { return remainder(a, b); });
}
template <class T, int N>
inline VectorizedN<T, N> floor_divide(const VectorizedN<T, N>& x, const VectorizedN<T, N>& y) {
  return lane_by_lane(x, y, [](T a, T b) { return floor_divide(a, b); });
}

// NaN wins, as in torch.maximum
template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
inline T maximum(T x, T y) { return x != x || x > y ? x : y; }
template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
inline T minimum(T x, T y) { return x != x || x < y ? x : y; }
template <class T>
inline Vectorized<T> maximum(const Vectorized<T>& x, const Vectorized<T>& y) { return at::vec::maximum(x, y); }
template <class T>
inline Vectorized<T> minimum(const Vectorized<T>& x, const Vectorized<T>& y) { return at::vec::minimum(x, y); }
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

#if defined(CPU_CAPABILITY_AVX512)
inline double add_lanes(const Vectorized<float>& v) {
  const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(v)), high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
  return _mm512_reduce_add_pd(_mm512_add_pd(low, high));
}
template <class Combine>
inline float across_register(Vectorized<float> v, Combine combine) {
  v = combine(v, Vectorized<float>(_mm512_shuffle_f32x4(v, v, 0x4E)));
  v = combine(v, Vectorized<float>(_mm512_shuffle_f32x4(v, v, 0xB1)));
  v = combine(v, Vectorized<float>(_mm512_permute_ps(v, 0x4E)));
  v = combine(v, Vectorized<float>(_mm512_permute_ps(v, 0xB1)));
  return _mm512_cvtss_f32(v);
}
#else
inline double add_lanes(const Vectorized<float>& v) {
  constexpr int count = Vectorized<float>::size();
  float lanes[count];
  v.store(lanes);
  double total[count];
  for (int i = 0; i < count; ++i) total[i] = lanes[i];
  for (int width = count / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) total[i] += total[i + width];
  return total[0];
}
template <class Combine>
inline float across_register(const Vectorized<float>& v, Combine combine) {
  constexpr int count = Vectorized<float>::size();
  float lanes[count];
  v.store(lanes);
  for (int width = count / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) lanes[i] = combine(lanes[i], lanes[i + width]);
  return lanes[0];
}
#endif
template <class T, class Combine>
inline T across_lanes(const Vec<T>& v, Combine combine) {
  if constexpr (std::is_same_v<T, float>) {
    return across_register(combine(v[0], v[1]), combine);
  } else {
    T lanes[W];
    v.store(lanes);
    for (int width = W / 2; width > 0; width /= 2)
      for (int i = 0; i < width; ++i) lanes[i] = combine(lanes[i], lanes[i + width]);
    return lanes[0];
  }
}
struct Larger {
  template <class T>
  T operator()(const T& x, const T& y) const { return w::maximum(x, y); }
};
struct Smaller {
  template <class T>
  T operator()(const T& x, const T& y) const { return w::minimum(x, y); }
};

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
  T result() const {  // all parts meet in double precision: there is one rounding
    if constexpr (std::is_same_v<T, float>) {
      const double low = add_lanes(low_[0]) + add_lanes(low_[1]);
      const double middle = add_lanes(middle_[0]) + add_lanes(middle_[1]);
      return static_cast<float>(low + (middle + (add_lanes(high_[0]) + add_lanes(high_[1]))));
    } else {
      return across_lanes<T>(high_ + (middle_ + low_), [](T x, T y) { return static_cast<T>(x + y); });
    }
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
  T result() const { return across_lanes<T>(value_, Larger{}); }

 private:
  using Limits = std::numeric_limits<T>;
  Vec<T> value_ = Vec<T>(Limits::has_infinity ? -Limits::infinity() : Limits::min());
};

template <class T>
class Min {
 public:
  template <class Lanes>
  void add(const Vec<T>& v, Lanes lanes) { value_ = keep<T>(value_, w::minimum(value_, v), lanes); }
  T result() const { return across_lanes<T>(value_, Smaller{}); }

 private:
  using Limits = std::numeric_limits<T>;
  Vec<T> value_ = Vec<T>(Limits::has_infinity ? Limits::infinity() : Limits::max());
};

// Column statistics in one pass. A chunk keeps a few numbers a column, which lie width apart; all chunks meet, in double
// precision, in a centre and a total relative to it.

struct Total {
  Vec<double> centre, sum;
};

// Sum of squared differences from the mean. A chunk takes differences from its first row, which are exact or nearly so.
template <class T>
struct M2 {
  Vec<T> pivot, sum, squares;
  Vec<T> tile_sum = Vec<T>(T(0)), tile_squares = Vec<T>(T(0));  // of a few rows first: fewer additions follow each other
  static constexpr double start = 0;

  template <class Lanes>
  static M2 load(const T* p, int64_t width, Lanes lanes) {
    return {w::load(p, lanes), w::load(p + width, lanes), w::load(p + 2 * width, lanes)};
  }
  template <class Lanes>
  void store(T* p, int64_t width, Lanes lanes) const {
    w::store(p, pivot, lanes);
    w::store(p + width, sum + tile_sum, lanes);
    w::store(p + 2 * width, squares + tile_squares, lanes);
  }
  void add(const Vec<T>& x, bool first) {
    if (first) pivot = x;
    const auto difference = x - pivot;
    tile_sum = tile_sum + difference;
    tile_squares = tile_squares + difference * difference;
  }
  static void merge(Total& all, const M2& chunk, int64_t before, int64_t more) {
    const auto count = Vec<double>(more);
    const auto offset = cast<double>(chunk.sum) / count;
    const auto own = cast<double>(chunk.squares) - offset * offset * count;
    const auto difference = cast<double>(chunk.pivot) + offset - all.centre;
    const double share = static_cast<double>(more) / static_cast<double>(before + more);
    all.centre = all.centre + difference * Vec<double>(share);
    all.sum = all.sum + w::maximum(own, Vec<double>(0.0)) + difference * difference * Vec<double>(share * before);
  }
  static Vec<double> result(const Total& all) { return all.sum; }
};

// Sum of exponentials of the differences from the largest.
template <class T>
struct Sumexp {
  Vec<T> largest, sum;
  static constexpr double start = -std::numeric_limits<double>::infinity();

  template <class Lanes>
  static Sumexp load(const T* p, int64_t width, Lanes lanes) {
    return {w::load(p, lanes), w::load(p + width, lanes)};
  }
  template <class Lanes>
  void store(T* p, int64_t width, Lanes lanes) const {
    w::store(p, largest, lanes);
    w::store(p + width, sum, lanes);
  }
  template <class U>
  static Vec<U> weight(const Vec<U>& x, const Vec<U>& top) {
    return where(eq(x, Vec<U>(static_cast<U>(start))), Vec<U>(U(0)), w::exp(x - top));
  }
  void add(const Vec<T>& x, bool first) {
    const auto top = first ? x : w::maximum(largest, x);
    sum = first ? weight<T>(x, top) : sum * weight<T>(largest, top) + weight<T>(x, top);
    largest = top;
  }
  static void merge(Total& all, const Sumexp& chunk, int64_t, int64_t) {
    const auto other = cast<double>(chunk.largest);
    const auto top = w::maximum(all.centre, other);
    all.sum = all.sum * weight<double>(all.centre, top) + cast<double>(chunk.sum) * weight<double>(other, top);
    all.centre = top;
  }
  static Vec<double> result(const Total& all) {
    return where(eq(all.centre, Vec<double>(start)), Vec<double>(std::numeric_limits<double>::quiet_NaN()), all.sum);
  }
};

template <class T>
inline void fill(T* p, int64_t count, T x) {
  for (int64_t i = 0; i < count; ++i) p[i] = x;
}

template <class T>
inline std::unique_ptr<T[]> scratch(int64_t count) { return std::unique_ptr<T[]>(new T[count > 0 ? count : 1]); }

// Memory that stays from call to call, one piece a slot: a fresh allocation of this size would cost a page fault for
// every 4 KB. A call has it to itself; one that finds it taken has memory of its own. It is no thread_local variable:
// glibc ends a process that loads too many libraries with such variables while it starts a thread (2.36: "dl-tls.c:
// Assertion `listp != NULL' failed").
template <class T, int slot>
class Workspace {
 public:
  explicit Workspace(int64_t count) : memory(kept.exchange(nullptr)) {
    if (memory == nullptr || memory->count < count) memory.reset(new Memory{scratch<T>(count), count});
  }
  ~Workspace() { memory.reset(kept.exchange(memory.release())); }
  T* data() const { return memory->elements.get(); }

 private:
  struct Memory {
    std::unique_ptr<T[]> elements;
    int64_t count;
  };
  std::unique_ptr<Memory> memory;
  static inline std::atomic<Memory*> kept{nullptr};
};

inline int64_t chunks_of(int64_t rows, int64_t rows_per_chunk) { return (rows + rows_per_chunk - 1) / rows_per_chunk; }

}  // namespace w

using w::operator-;
