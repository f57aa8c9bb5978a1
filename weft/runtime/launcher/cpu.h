// Calls of kernels in C++, as weft/backends/cpp/calls.py makes them.

#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "fitting.h"

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace {

using Function = void (*)(void** buffers, const int64_t* parameters, int threads);

constexpr uintptr_t LARGE_PAGE_BYTES = uintptr_t{2} << 20;

/// As weft/backends/cpp/pages.py does.
void prefer_large_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#ifdef __linux__
  const auto start = reinterpret_cast<uintptr_t>(data);
  const auto first = (start + LARGE_PAGE_BYTES - 1) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
  const auto last = (start + bytes) / LARGE_PAGE_BYTES * LARGE_PAGE_BYTES;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
#endif
}

/// A function in C++, as weft/backends/cpp/calls.py calls it.
struct CpuFitting : Fitting {
  Function function = nullptr;
  int threads = 1;             // more are not worth it
  std::vector<int64_t> large;  // bytes of each output that is worth large pages, 0 for the others

  CpuFitting(Likeness like, Numbers numbers) : Fitting(std::move(like), numbers) {
    function = reinterpret_cast<Function>(numbers.next());
    threads = static_cast<int>(numbers.next());
    while (numbers.more()) large.push_back(numbers.next());
  }

  bool run(const std::vector<void*>& addresses) const override {
    std::vector<void*> buffers = addresses;
    for (size_t i = 0; i < large.size(); ++i)
      if (large[i] > 0) prefer_large_pages(buffers[likeness.inputs + i], large[i]);
    uint32_t most = 1;
    require(torch_get_num_threads(&most), "the number of threads");
    function(buffers.data(), likeness.parameters.data(), std::min(static_cast<int>(most), threads));
    return true;
  }
};

}  // namespace
