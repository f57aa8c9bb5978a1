// Floats of 16 and 8 bits, by their kind: bfloat16, float16, float8_e4m3fn, float8_e5m2.

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace {
/// mantissa: bits of it. least: the exponent of the smallest normal number. saturates: what is too large is the largest.
struct Kind { int mantissa, exponent, least; double largest; bool saturates; unsigned infinity, nan; };
constexpr Kind KINDS[] = {
    {7, 8, -126, 0x1.FEp127, false, 0x7F80, 0x7FFF},
    {10, 5, -14, 65504, false, 0x7C00, 0x7FFF},
    {3, 4, -6, 448, true, 0, 0x7F},
    {2, 5, -14, 57344, true, 0x7C, 0x7F},
};
}  // namespace

extern "C" {

/// Rounded to nearest even.
unsigned host_narrow(double x, int kind) {
  const Kind& to = KINDS[kind];
  const unsigned sign = std::signbit(x) ? 1u << (to.mantissa + to.exponent) : 0;
  if (std::isnan(x)) return to.nan;
  x = std::fabs(x);
  if (x == 0) return sign;
  const int own = std::isinf(x) ? 1023 : std::ilogb(x), exponent = own < to.least ? to.least : own;
  const double unit = std::ldexp(1.0, exponent - to.mantissa), rounded = std::nearbyint(x / unit) * unit;
  const bool beyond = std::isinf(x) || rounded > to.largest;
  if (beyond && !to.saturates) return sign | to.infinity;
  const double found = beyond ? to.largest : rounded;
  // the bits of all numbers count on, from one exponent to the next
  const int last = found < std::ldexp(1.0, to.least) ? to.least : std::ilogb(found);
  const auto steps = static_cast<unsigned>(std::ldexp(found, to.mantissa - last));
  return sign | (steps + (static_cast<unsigned>(last - to.least) << to.mantissa));
}

double host_wide(unsigned bits, int kind) {
  const Kind& from = KINDS[kind];
  const unsigned mask = (1u << (from.mantissa + from.exponent)) - 1, number = bits & mask;
  const double sign = bits & (mask + 1) ? -1 : 1;
  const unsigned exponent = number >> from.mantissa, rest = number & ((1u << from.mantissa) - 1);
  if (from.infinity && number == from.infinity) return sign * std::numeric_limits<double>::infinity();
  if (from.infinity ? number > from.infinity : number == from.nan) return std::numeric_limits<double>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(rest, from.least - from.mantissa);
  return sign * std::ldexp(rest + (1u << from.mantissa), from.least - from.mantissa + static_cast<int>(exponent) - 1);
}

}  // extern "C"
