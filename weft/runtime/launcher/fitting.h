// A call that can be repeated: what the calls are like that it stands for, and how they are made. Of its two kinds one is
// in cpu.h, one in gpu.h.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "call.h"

namespace {

int64_t* counts;  // launches and their bytes, in memory that Python reads

/// What calls are like that can be repeated.
struct Likeness {
  std::vector<int64_t> layouts;  // of all tensors behind each other
  std::vector<int64_t> parameters;
  size_t tensors = 0, inputs = 0;
  std::string margin;

  explicit Likeness(const Call& call)
      : parameters(call.parameters), tensors(call.tensors.size()), inputs(call.inputs), margin(call.margin) {
    for (const auto tensor : call.tensors) Layout(tensor).append_to(layouts);
  }

  /// The device of the first tensor: its type, and its index.
  std::pair<int32_t, int32_t> device() const {
    return {static_cast<int32_t>(layouts.at(0)), static_cast<int32_t>(layouts.at(1))};
  }

  bool has(const Call& call) const {
    if (call.tensors.size() != tensors || call.inputs != inputs || call.parameters != parameters) return false;
    const int64_t* place = layouts.data();
    return call.margin == margin && std::all_of(call.tensors.begin(), call.tensors.end(), [&](AtenTensorHandle tensor) {
             return Layout(tensor).equals(place);
           });
  }

  bool operator==(const Likeness& other) const = default;
};

/// Numbers that Python gives, one after the other.
class Numbers {
 public:
  explicit Numbers(std::vector<int64_t> numbers) : numbers_(std::move(numbers)) {}
  int64_t next() { return numbers_.at(at_++); }
  bool more() const { return at_ < numbers_.size(); }

 private:
  std::vector<int64_t> numbers_;
  size_t at_ = 0;
};

/// How calls like an earlier one are made.
struct Fitting {
  Likeness likeness;
  bool compared = false;  // with the reference, as the check "first" asks for
  int64_t bytes = 0;      // of all tensors

  Fitting(Likeness like, Numbers& numbers)
      : likeness(std::move(like)), compared(numbers.next() != 0), bytes(numbers.next()) {}
  virtual ~Fitting() = default;

  /// Whether its outputs are not to be compared with the reference, under a kind of check.
  bool unchecked(std::string_view check) const { return check == "off" || (check == "first" && compared); }

  bool fits(const Call& call) const {
    return unchecked(call.check) && likeness.has(call) && allows(call.addresses());
  }

  /// Whether tensors at these addresses can be had now.
  virtual bool allows(const std::vector<void*>&) const { return true; }

  /// Add the call to what Python reads.
  void count() const {
    __atomic_fetch_add(&counts[0], 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counts[1], bytes, __ATOMIC_RELAXED);
  }

  /// Whether it replaces another one.
  virtual bool is_like(const Fitting& other) const { return likeness == other.likeness; }

  /// Make a call with tensors at these addresses, inputs, then outputs; whether that was possible.
  virtual bool run(const std::vector<void*>& addresses) const = 0;
};

}  // namespace
