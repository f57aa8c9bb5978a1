// Sums of exponentials in one pass, by a centre that moves (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018).

namespace w {

/// The sum of exponentials of differences from the largest.
template <class T> struct Sumexp {
  T centre = -infinity<T>(), sum = 0;

  void add(T x) { merge({x, 1}); }
  /// several elements, whose exponentials have one centre
  template <int count> void add(const T (&block)[count]) {
    T largest = centre;
#pragma unroll
    for (int i = 0; i < count; ++i) largest = maximum(largest, block[i]);
    const T base = largest == -infinity<T>() ? 0 : largest;
    sum *= exp_rounded(centre - base);
#pragma unroll
    for (int i = 0; i < count; ++i) sum += exp_rounded(block[i] - base);
    centre = largest;
  }
  void merge(const Sumexp& more) {
    const T difference = more.centre - centre;
    // nothing comes from minus infinity; what it is from minus infinity is not a number
    const T smaller = more.centre == -infinity<T>() ? 0 : exp_rounded(-abs(difference));
    const bool grows = difference > 0;
    sum = fma(grows ? sum : more.sum, smaller, grows ? more.sum : sum);  // the same of both in either order
    centre = maximum(centre, more.centre);
  }
  /// NaN if the largest is infinite
  T total() const { return abs(centre) == infinity<T>() ? nan<T>() : sum; }
};

/// The sum of exponentials of the elements that a thread has, which are kept, and of which the largest is known before:
/// an exponential is of one fused multiply-add. What is lost as the largest is rounded, all terms lose, and it is made
/// good when they get another centre.
template <class T> struct Exponentials {
  T largest = -infinity<T>(), offset = 0, sum = 0;

  Exponentials() {}
  explicit Exponentials(T largest) : largest(largest), offset(largest == -infinity<T>() ? 0 : largest * factor()) {}
  template <int count> void add(T (&block)[count]) {
    const T by = factor();
#pragma unroll
    for (int i = 0; i < count; ++i) sum += block[i] = power(fma(block[i], by, -offset));
  }
  /// what terms are multiplied by, so that they are of differences from another element, which is no smaller
  T about(T other) const {
    if constexpr (is_same<T, float>())
      if (is_plain(largest) && is_plain(other)) return exp2_rounded(fma(other, -log2_of_e(), offset));
    return largest == other ? 1 : exp_rounded(largest - other);
  }
  Sumexp<T> state() const { return {largest, sum * about(largest)}; }

 private:
  /// times the logarithm of e it is off by so little that terms are finite
  static bool is_plain(T x) { return abs(x) <= 0x1p29f; }
  static T power(T x) {
    if constexpr (is_same<T, float>()) return exp2_rounded(x);
    else return exp(x);
  }
  /// larger ones that differ do so by 64 and more, so that a power of two will do for an exponential that makes nothing
  T factor() const {
    if constexpr (is_same<T, float>()) return is_plain(largest) ? log2_of_e() : 1;
    else return 1;
  }
};

}  // namespace w
