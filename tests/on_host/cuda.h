// What CUDA C++ and PTX have, for texts of kernels that are compiled for this machine: each thread is a fiber of
// launch.cpp. No header of the C++ library stands before the text, which defines the integers of <cstdint> itself.

#define __global__
#define __launch_bounds__(...)
#define __CUDA_ARCH__ 900

struct Index { unsigned x, y, z; };
struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };

extern "C" {
extern Index threadIdx, blockIdx, gridDim, blockDim;

unsigned char* host_shared_memory(unsigned bytes);
unsigned host_shared_address(const void* place);
unsigned host_in_block(unsigned place, unsigned rank);
unsigned host_cluster_rank();
void host_start_barrier(unsigned barrier, int arrivals);
void host_arrive(unsigned barrier, unsigned bytes, int arrivals);
void host_fence_barriers();
void host_fence_copies();
void host_wait(unsigned barrier, unsigned parity, int acquires);
void host_wait_for_threads(unsigned number, unsigned threads);
void host_wait_for_cluster(unsigned threads);
unsigned long long host_shuffle(unsigned long long word, int lane, int operation);
void host_copy(unsigned to, unsigned long long from, unsigned bytes, unsigned barrier);
void host_copy_element(unsigned to, unsigned long long from, unsigned bytes);
void host_arrive_behind_elements(unsigned barrier);
void host_send(unsigned to, unsigned long long word, unsigned bytes, unsigned barrier);
unsigned long long host_add(unsigned long long* to, unsigned long long more);
void host_sleep();

unsigned host_narrow(double x, int kind);
double host_wide(unsigned bits, int kind);

double exp(double); double log(double); double tanh(double); double erf(double); double erfc(double);
double exp2(double); double expm1(double); double log1p(double); double log2(double); double log10(double);
double sin(double); double cos(double); double tan(double); double asin(double); double acos(double);
double atan(double); double sinh(double); double cosh(double); double floor(double); double ceil(double);
double trunc(double); double rint(double); double sqrt(double); double fabs(double);
double pow(double, double); double atan2(double, double); double copysign(double, double);
double fmod(double, double); double fma(double, double, double);
float exp2f(float); float sqrtf(float); float fabsf(float); float fmaf(float, float, float);
}

// functions of CUDA

#define ON_HOST(name) inline float name(float x) { return static_cast<float>(name(static_cast<double>(x))); }
ON_HOST(exp) ON_HOST(log) ON_HOST(tanh) ON_HOST(erf) ON_HOST(erfc) ON_HOST(exp2) ON_HOST(expm1) ON_HOST(log1p)
ON_HOST(log2) ON_HOST(log10) ON_HOST(sin) ON_HOST(cos) ON_HOST(tan) ON_HOST(asin) ON_HOST(acos) ON_HOST(atan)
ON_HOST(sinh) ON_HOST(cosh) ON_HOST(floor) ON_HOST(ceil) ON_HOST(trunc) ON_HOST(rint) ON_HOST(fabs)
inline double rsqrt(double x) { return 1 / sqrt(x); }
ON_HOST(rsqrt)
#undef ON_HOST
#define ON_HOST(name) inline float name(float x, float y) { return static_cast<float>(name(double(x), double(y))); }
ON_HOST(pow) ON_HOST(atan2) ON_HOST(copysign) ON_HOST(fmod)
#undef ON_HOST
inline float fma(float x, float y, float z) { return fmaf(x, y, z); }

template <class A, class B> constexpr auto min(A a, B b) -> decltype(a + b) { return b < a ? b : a; }
template <class A, class B> constexpr auto max(A a, B b) -> decltype(a + b) { return a < b ? b : a; }

inline float __uint_as_float(unsigned bits) { return __builtin_bit_cast(float, bits); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline double __dsqrt_rn(double x) { return sqrt(x); }
inline float __frcp_rn(float x) { return 1 / x; }
inline double __drcp_rn(double x) { return 1 / x; }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return static_cast<unsigned>((static_cast<unsigned long long>(high) << 32 | low) >> (by & 31));
}

template <class T> inline T __ldg(const T* from) { return *from; }
template <class T> inline T __ldcg(const T* from) { return *from; }
template <class T> inline void __stcs(T* to, const T& found) { *to = found; }

inline unsigned long long __cvta_generic_to_shared(const void* place) { return host_shared_address(place); }
inline void __syncthreads() { host_wait_for_threads(0, blockDim.x); }
inline void __threadfence() {}
inline void __nanosleep(unsigned) { host_sleep(); }
inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long more) { return host_add(to, more); }

enum : int { SYNCWARP = 1, SHUFFLE_XOR = 2, SHUFFLE = 3 };
inline void __syncwarp() { host_shuffle(0, 0, SYNCWARP); }
template <class T> inline T host_shuffled(T x, int lane, int operation) {
  unsigned long long word = 0;
  __builtin_memcpy(&word, &x, sizeof(T));
  word = host_shuffle(word, lane, operation);
  __builtin_memcpy(&x, &word, sizeof(T));
  return x;
}
template <class T> inline T __shfl_xor_sync(unsigned, T x, int mask) {
  return host_shuffled(x, static_cast<int>(threadIdx.x % 32) ^ mask, SHUFFLE_XOR);
}
template <class T> inline T __shfl_sync(unsigned, T x, int lane, int width = 32) {
  return host_shuffled(x, static_cast<int>(threadIdx.x % 32) / width * width + lane % width, SHUFFLE);
}

// instructions of PTX, with their operands in order; dots are underscores

namespace ptx {

using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long long;

inline void mbarrier_init_shared_cta_b64(u32 barrier, int arrivals) { host_start_barrier(barrier, arrivals); }
inline void fence_mbarrier_init_release_cluster() { host_fence_barriers(); }
inline void fence_proxy_async_shared_cta() { host_fence_copies(); }
inline void mbarrier_arrive_shared_cta_b64(u32 barrier) { host_arrive(barrier, 0, 1); }
inline void mbarrier_expect_tx_relaxed_cta_shared_cta_b64(u32 barrier, u32 bytes) { host_arrive(barrier, bytes, 0); }
inline void mbarrier_arrive_expect_tx_shared_cta_b64(u32 barrier, u32 bytes) { host_arrive(barrier, bytes, 1); }
inline void mbarrier_try_wait_parity_shared_cta_b64(bool& done, u32 barrier, u32 parity) {
  host_wait(barrier, parity, 0), done = true;
}
inline void mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(bool& done, u32 barrier, u32 parity) {
  host_wait(barrier, parity, 1), done = true;
}
inline void bar_sync(u32 number, u32 threads) { host_wait_for_threads(number, threads); }
inline u32 cluster_ctarank() { return host_cluster_rank(); }
inline void mov_u32(u32& to, u32 from) { to = from; }
inline void barrier_cluster_arrive_relaxed_aligned() {}  // the wait, which follows at once, arrives
inline void barrier_cluster_wait_aligned() { host_wait_for_cluster(blockDim.x); }
inline void mapa_shared_cluster_u32(u32& to, u32 place, int rank) { to = host_in_block(place, rank); }
inline void st_async_shared_cluster_mbarrier_complete_tx_bytes_b32(u32 to, u32 word, u32 barrier) {
  host_send(to, word, 4, barrier);
}
inline void st_async_shared_cluster_mbarrier_complete_tx_bytes_b64(u32 to, u64 word, u32 barrier) {
  host_send(to, word, 8, barrier);
}
inline void createpolicy_fractional_L2_evict_first_b64(u64& policy, double) { policy = 1; }
inline void createpolicy_fractional_L2_evict_last_b64(u64& policy, double) { policy = 2; }
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes_L2_cache_hint(
    u32 to, u64 from, u32 bytes, u32 barrier, u64) {
  host_copy(to, from, bytes, barrier);
}
template <class T> inline void stored(u64 to, T found) { *reinterpret_cast<T*>(to) = found; }
inline void st_global_L2_cache_hint_v4_b32(u64 to, u32 x, u32 y, u32 z, u32 w, u64) { stored(to, uint4{x, y, z, w}); }
inline void st_global_L2_cache_hint_b64(u64 to, u64 x, u64) { stored(to, x); }
inline void st_global_L2_cache_hint_b32(u64 to, u32 x, u64) { stored(to, x); }
inline void st_global_L2_cache_hint_b16(u64 to, u16 x, u64) { stored(to, x); }

inline void cp_async_ca_shared_global(u32 to, u64 from, u32 bytes) { host_copy_element(to, from, bytes); }
inline void cp_async_mbarrier_arrive_noinc_shared_cta_b64(u32 barrier) { host_arrive_behind_elements(barrier); }

enum : int { BF16, F16, E4M3, E5M2 };  // kinds of narrow floats
inline double wide(u32 bits, int kind) { return host_wide(bits, kind); }
inline u32 two(double upper, double lower, int kind) {
  return host_narrow(upper, kind) << (kind < E4M3 ? 16 : 8) | host_narrow(lower, kind);
}
inline void cvt_f32_f16(float& to, u16 x) { to = static_cast<float>(wide(x, F16)); }
inline void cvt_rn_bf16_f32(u16& to, float x) { to = static_cast<u16>(host_narrow(x, BF16)); }
inline void cvt_rn_f16_f32(u16& to, float x) { to = static_cast<u16>(host_narrow(x, F16)); }
inline void cvt_rn_bf16x2_f32(u32& to, float upper, float lower) { to = two(upper, lower, BF16); }
inline void cvt_rn_f16x2_f32(u32& to, float upper, float lower) { to = two(upper, lower, F16); }
inline void cvt_rn_satfinite_e4m3x2_f32(u16& to, float upper, float lower) { to = static_cast<u16>(two(upper, lower, E4M3)); }
inline void cvt_rn_satfinite_e5m2x2_f32(u16& to, float upper, float lower) { to = static_cast<u16>(two(upper, lower, E5M2)); }
inline void cvt_rn_f16x2_e4m3x2(u32& to, u16 x) { to = two(wide(x >> 8, E4M3), wide(x & 255, E4M3), F16); }

inline void fma_rn_bf16x2(u32& to, u32 x, u32 y, u32 z) {  // products are exact in double
  const auto half = [&](int by) {
    return wide(x >> by & 0xFFFF, BF16) * wide(y >> by & 0xFFFF, BF16) + wide(z >> by & 0xFFFF, BF16);
  };
  to = two(half(16), half(0), BF16);
}
#define ON_HOST(name, op)                                                                       \
  inline void name##_rn_f16x2(u32& to, u32 x, u32 y) {                                          \
    to = two(wide(x >> 16, F16) op wide(y >> 16, F16), wide(x & 0xFFFF, F16) op wide(y & 0xFFFF, F16), F16); \
  }
ON_HOST(add, +) ON_HOST(sub, -) ON_HOST(mul, *)
#undef ON_HOST

inline void prmt_b32(u32& to, u32 x, u32 y, u32 bytes) {  // or only signs of these
  const u64 from = u64(y) << 32 | x;
  to = 0;
  for (int i = 0; i < 4; ++i) {
    const u32 which = bytes >> 4 * i & 15, byte = static_cast<u32>(from >> 8 * (which & 7)) & 255;
    to |= (which < 8 ? byte : byte < 128 ? 0 : 255) << 8 * i;
  }
}
inline void max_NaN_f32(float& to, float x, float y) { to = x != x ? x : y != y ? y : x > y ? x : y; }
inline void min_NaN_f32(float& to, float x, float y) { to = x != x ? x : y != y ? y : x < y ? x : y; }
inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? x * 0 : x; }
inline void ex2_approx_ftz_f32(float& to, float x) { to = flushed(exp2f(flushed(x))); }
inline void rcp_approx_ftz_f32(float& to, float x) { to = flushed(1 / flushed(x)); }

}  // namespace ptx

/// A kernel with its arguments as words. Those of a braced list are taken in order.
struct Call {
  template <class... A> Call(void (*kernel)(A...), A... arguments) { kernel(arguments...); }
};
template <class... A> inline void host_call(void (*kernel)(A...), const unsigned long long* words) {
  Call{kernel, (A)(*words++)...};
}
