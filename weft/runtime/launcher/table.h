// The calls that can be repeated, of all kernels.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fitting.h"

namespace {

constexpr size_t MOST_FITTINGS = 16;  // of one kernel; tensors of other sizes make more

/// The fittings of all kernels by digest, newest first.
class Table {
 public:
  std::shared_ptr<const Fitting> find(const Call& call) const {
    const std::shared_lock lock(mutex_);
    const auto found = kernels_.find(std::string_view(call.digest));
    if (found == kernels_.end()) return nullptr;
    for (const auto& fitting : found->second)
      if (fitting->fits(call)) return fitting;
    return nullptr;
  }

  /// How often something was forgotten.
  uint64_t age() const { return age_.load(); }

  /// Keep a fitting, unless something was forgotten since that age: it may be what the fitting was made of.
  void add(const std::string& digest, std::shared_ptr<const Fitting> fitting, uint64_t age) {
    const std::unique_lock lock(mutex_);
    if (age != age_) return;
    auto& known = kernels_[digest];
    std::erase_if(known, [&](const auto& other) { return other->is_like(*fitting); });
    if (known.size() == MOST_FITTINGS) known.pop_back();
    known.insert(known.begin(), std::move(fitting));
  }

  void forget(const char* digest) {
    const std::unique_lock lock(mutex_);
    ++age_;
    if (digest == nullptr) kernels_.clear();
    else kernels_.erase(digest);
  }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view digest) const { return std::hash<std::string_view>{}(digest); }
  };

  mutable std::shared_mutex mutex_;
  std::atomic<uint64_t> age_ = 0;
  std::unordered_map<std::string, std::vector<std::shared_ptr<const Fitting>>, Hash, std::equal_to<>> kernels_;
};

Table& table() {
  static Table* const table = new Table;  // never destroyed: threads may launch while the process ends
  return *table;
}

}  // namespace
