// Arithmetic of generated CUDA kernels: numbers, their casts, operations and reductions in one pass. NVRTC compiles it
// with -default-device, and with no header beside it.
//
// Floats behave as in torch where they are infinite, not a number or a zero with a sign. Only functions that end in
// _rounded, and sums of exponentials, take float32 below 2^-126 for zero. f8e4m3 and f8e5m2 are cast from compute
// capability 8.9 on, all else works from 8.0 on.

using int8_t = signed char;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;

namespace w {

// floats that are only loaded, cast and stored

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };
struct f8e4m3 { uint8_t bits; };
struct f8e5m2 { uint8_t bits; };

template <class A, class B> struct Same { enum { value = false }; };
template <class A> struct Same<A, A> { enum { value = true }; };
template <class A, class B> constexpr bool is_same() { return Same<A, B>::value; }
template <class T> constexpr bool is_float() { return is_same<T, float>() || is_same<T, double>(); }
template <class T> constexpr bool is_half() { return is_same<T, bf16>() || is_same<T, f16>(); }
template <class T> constexpr bool is_eight() { return is_same<T, f8e4m3>() || is_same<T, f8e5m2>(); }

template <class T> constexpr T infinity() { return static_cast<T>(__builtin_bit_cast(float, 0x7F800000)); }
template <class T> constexpr T nan() { return static_cast<T>(__builtin_bit_cast(float, 0x7FC00000)); }

// what leaves a maximum, and a minimum, unchanged
template <class T> constexpr T lowest() {
  if constexpr (is_float<T>()) return -infinity<T>();
  else if constexpr (is_same<T, bool>()) return false;
  else return static_cast<T>(uint64_t(1) << (8 * sizeof(T) - 1));
}
template <class T> constexpr T highest() {
  if constexpr (is_float<T>()) return infinity<T>();
  else if constexpr (is_same<T, bool>()) return true;
  else return static_cast<T>((uint64_t(1) << (8 * sizeof(T) - 1)) - 1);
}

// casts: floats are rounded to nearest even, and to integers towards zero

inline float to_float(bf16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
inline float to_float(f16 x) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(x.bits));
  return result;
}
template <class To> To rounded(float x) {
  static_assert(is_half<To>() || (is_eight<To>() && __CUDA_ARCH__ >= 890));
  uint16_t bits;
  if constexpr (is_same<To, bf16>()) {
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  } else if constexpr (is_same<To, f16>()) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  } else if constexpr (is_same<To, f8e4m3>()) {
#if !WEFT_F8E4M3_SATURATES
    if (::fabsf(x) > 464.0f) x = nan<float>();  // it would be more than 448
#endif
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(0.0f), "f"(x));
  } else {
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(bits) : "f"(0.0f), "f"(x));
    if (::fabsf(x) >= 61440.0f) bits = x < 0 ? 0xFC : 0x7C;  // it would be more than 57344
  }
  return {static_cast<decltype(To::bits)>(bits)};
}
inline float to_float(f8e4m3 x) {
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(uint16_t(x.bits)));
  return to_float(f16{uint16_t(halves)});
}
inline float to_float(f8e5m2 x) { return to_float(f16{uint16_t(x.bits << 8)}); }

template <class To, class From> To cast(From x) {
  if constexpr (is_same<To, From>()) return x;
  else if constexpr (is_half<From>() || is_eight<From>()) return cast<To>(to_float(x));
  else if constexpr (is_half<To>() || is_eight<To>()) return rounded<To>(static_cast<float>(x));
  else if constexpr (is_same<To, bool>()) return x != 0;
  else if constexpr (is_float<From>() && sizeof(To) == 1) return static_cast<To>(static_cast<int32_t>(x));
  else return static_cast<To>(x);
}

// two floats of 16 bits in a register, the first one in the lower half

template <class T> uint32_t pack(float first, float second) {
  static_assert(is_half<T>());
  uint32_t both;
  if constexpr (is_same<T, bf16>()) asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(both) : "f"(first), "f"(second));
  else asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(both) : "f"(first), "f"(second));
  return both;
}
template <class T> float first_of(uint32_t both) {
  static_assert(is_half<T>());
  return to_float(T{uint16_t(both)});
}
template <class T> float second_of(uint32_t both) {
  static_assert(is_half<T>());
  if constexpr (is_same<T, bf16>()) return __uint_as_float(both & 0xFFFF0000u);
  else return to_float(T{uint16_t(both >> 16)});
}

// Sums, differences and products of them, rounded once: of bfloat16 by fma alone, as compute capability 8.0 has it.
inline uint32_t fma_pairs(uint32_t x, uint32_t y, uint32_t z) {
  uint32_t both;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(both) : "r"(x), "r"(y), "r"(z));
  return both;
}
#define WEFT_HALVES(name, of_bf16)                                                                       \
  template <class T> uint32_t name##_pairs(uint32_t x, uint32_t y) {                                     \
    static_assert(is_half<T>());                                                                           \
    if constexpr (is_same<T, bf16>()) return of_bf16;                                                      \
    uint32_t both;                                                                                       \
    asm(#name ".rn.f16x2 %0, %1, %2;" : "=r"(both) : "r"(x), "r"(y));                                    \
    return both;                                                                                         \
  }                                                                                                      \
  inline bf16 name(bf16 x, bf16 y) { return {uint16_t(name##_pairs<bf16>(x.bits, y.bits))}; }            \
  inline f16 name(f16 x, f16 y) { return {uint16_t(name##_pairs<f16>(x.bits, y.bits))}; }
WEFT_HALVES(add, fma_pairs(x, 0x3F803F80u, y))
WEFT_HALVES(sub, fma_pairs(y, 0xBF80BF80u, x))
WEFT_HALVES(mul, fma_pairs(x, y, 0x80008000u))  // -0.0 changes no zero
#undef WEFT_HALVES

// arithmetic; integers wrap

#define WEFT_ARITHMETIC(name, op)                                                     \
  template <class T> T name(T x, T y) {                                               \
    if constexpr (is_float<T>()) return x op y;                                         \
    else return static_cast<T>(static_cast<uint64_t>(x) op static_cast<uint64_t>(y)); \
  }
WEFT_ARITHMETIC(add, +)
WEFT_ARITHMETIC(sub, -)
WEFT_ARITHMETIC(mul, *)
#undef WEFT_ARITHMETIC

template <class T> T neg(T x) {
  if constexpr (is_float<T>()) return -x;
  else return sub(T(0), x);
}
template <class T> T abs(T x) {
  if constexpr (is_float<T>()) return ::fabs(x);
  else return x < 0 ? neg(x) : x;
}
inline float div(float x, float y) { return __fdiv_rn(x, y); }
inline double div(double x, double y) { return x / y; }

// the larger and the smaller one; NaN if one is
template <class T> T maximum(T x, T y) { return x != x || x > y ? x : y; }
template <class T> T minimum(T x, T y) { return x != x || x < y ? x : y; }
inline float maximum(float x, float y) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}
inline float minimum(float x, float y) {
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(y));
  return result;
}

#define WEFT_BINARY(name, T, R, text) template <class T> R name(T x, T y) { return text; }
WEFT_BINARY(eq, T, bool, x == y)
WEFT_BINARY(ne, T, bool, x != y)
WEFT_BINARY(lt, T, bool, x < y)
WEFT_BINARY(le, T, bool, x <= y)
WEFT_BINARY(gt, T, bool, x > y)
WEFT_BINARY(ge, T, bool, x >= y)
WEFT_BINARY(bitwise_and, T, T, static_cast<T>(x & y))
WEFT_BINARY(bitwise_or, T, T, static_cast<T>(x | y))
WEFT_BINARY(bitwise_xor, T, T, static_cast<T>(x ^ y))
#undef WEFT_BINARY
template <class T> T bitwise_not(T x) { return static_cast<T>(~x); }
inline bool logical_and(bool x, bool y) { return x && y; }
inline bool logical_or(bool x, bool y) { return x || y; }
inline bool logical_not(bool x) { return !x; }
template <class T> T where(bool condition, T yes, T no) { return condition ? yes : no; }

// functions of floats

#define WEFT_FUNCTION(name, text)           \
  inline float name(float x) { return text; } \
  inline double name(double x) { return text; }
WEFT_FUNCTION(rsqrt, ::rsqrt(x))
WEFT_FUNCTION(exp, ::exp(x))
WEFT_FUNCTION(log, ::log(x))
WEFT_FUNCTION(tanh, ::tanh(x))
WEFT_FUNCTION(sigmoid, div(1, 1 + exp(-x)))
WEFT_FUNCTION(erf, ::erf(x))
WEFT_FUNCTION(erfc, ::erfc(x))
WEFT_FUNCTION(exp2, ::exp2(x))
WEFT_FUNCTION(expm1, ::expm1(x))
WEFT_FUNCTION(log1p, ::log1p(x))
WEFT_FUNCTION(log2, ::log2(x))
WEFT_FUNCTION(log10, ::log10(x))
WEFT_FUNCTION(sin, ::sin(x))
WEFT_FUNCTION(cos, ::cos(x))
WEFT_FUNCTION(tan, ::tan(x))
WEFT_FUNCTION(asin, ::asin(x))
WEFT_FUNCTION(acos, ::acos(x))
WEFT_FUNCTION(atan, ::atan(x))
WEFT_FUNCTION(sinh, ::sinh(x))
WEFT_FUNCTION(cosh, ::cosh(x))
WEFT_FUNCTION(floor, ::floor(x))
WEFT_FUNCTION(ceil, ::ceil(x))
WEFT_FUNCTION(trunc, ::trunc(x))
WEFT_FUNCTION(round, ::rint(x))  // takes the even one of two
#undef WEFT_FUNCTION
inline float sqrt(float x) { return __fsqrt_rn(x); }
inline double sqrt(double x) { return __dsqrt_rn(x); }
inline float reciprocal(float x) { return __frcp_rn(x); }
inline double reciprocal(double x) { return __drcp_rn(x); }
template <class T> T fma(T x, T y, T z) { return ::fma(x, y, z); }
template <class T> T pow(T x, T y) { return ::pow(x, y); }
template <class T> T atan2(T x, T y) { return ::atan2(x, y); }
template <class T> T copysign(T x, T y) { return ::copysign(x, y); }
template <class T> T fmod(T x, T y) { return ::fmod(x, y); }

// quotients rounded down, and what is left, as in torch; an integer divided by zero gives zero

template <class T> T remainder(T x, T y) {
  T rest;
  if constexpr (is_float<T>()) {
    rest = ::fmod(x, y);
  } else {
    if (y == 0 || y == -1) return 0;
    rest = x % y;
  }
  return rest != 0 && (rest < 0) != (y < 0) ? rest + y : rest;
}
template <class T> T floor_divide(T x, T y) {
  if constexpr (is_float<T>()) {
    if (y == 0) return div(x, y);
    const T rest = ::fmod(x, y);
    T quotient = div(x - rest, y);
    if (rest != 0 && (rest < 0) != (y < 0)) quotient -= 1;
    if (quotient == 0) return ::copysign(T(0), div(x, y));
    const T below = ::floor(quotient);
    return quotient - below > T(0.5) ? below + 1 : below;
  } else {
    if (y == 0) return 0;
    if (y == -1) return neg(x);
    const T quotient = x / y;
    return x % y != 0 && (x < 0) != (y < 0) ? quotient - 1 : quotient;
  }
}

// Faster, and off by a few units in the last place of float32: for what is rounded to 16 bits.

constexpr float log2_of_e() { return 1.44269504f; }  // e^x is two to the power of x times that
inline float exp2_rounded(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
inline float exp_rounded(float x) { return exp2_rounded(x * log2_of_e()); }  // e^x loses |x| / 2^24 of itself
inline float reciprocal_rounded(float x) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}
inline float div_rounded(float x, float y) {  // of a divisor that a loop has in common all but one product is done once
  const float scale = abs(y) > 0x1p126f ? 0.25f : 1.0f;  // whose reciprocal would be zero
  return x * (scale * reciprocal_rounded(y * scale));
}
inline float tanh_rounded(float x) {  // near zero the beginning of its series
  const float square = x * x;
  const float near = x * (1 - square * (0.33333334f - square * (0.13333334f - square * 0.053968254f)));
  return abs(x) < 0.25f ? near : 1 - 2 * reciprocal_rounded(exp_rounded(2 * x) + 1);
}
inline double exp_rounded(double x) { return exp(x); }
inline double reciprocal_rounded(double x) { return reciprocal(x); }
inline double div_rounded(double x, double y) { return div(x, y); }
inline double tanh_rounded(double x) { return tanh(x); }

}  // namespace w

// as texts of kernels name them
namespace std {
template <class T>
struct numeric_limits {
  static constexpr T infinity() { return w::infinity<T>(); }
  static constexpr T quiet_NaN() { return w::nan<T>(); }
  static constexpr T min() { return w::lowest<T>(); }
};
}  // namespace std
