// What a call is: the arguments of weft::launch, and how their tensors lie.

#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "shim.h"

namespace {

enum Argument { DIGEST, KERNEL, INPUTS, OUTPUTS, SIZES, OPTIONS, ARGUMENTS };

/// Where a tensor's elements lie, from its data pointer.
struct Layout {
  int32_t device = 0, index = 0, dtype = 0;
  int64_t dim = 0;
  const int64_t *sizes = nullptr, *strides = nullptr;

  explicit Layout(AtenTensorHandle tensor) {
    int64_t *size = nullptr, *stride = nullptr;
    require(aoti_torch_get_device_type(tensor, &device), "a tensor's device");
    require(aoti_torch_get_device_index(tensor, &index), "a tensor's device");
    require(aoti_torch_get_dtype(tensor, &dtype), "a tensor's dtype");
    require(aoti_torch_get_dim(tensor, &dim), "a tensor's shape");
    require(aoti_torch_get_sizes(tensor, &size), "a tensor's shape");
    require(aoti_torch_get_strides(tensor, &stride), "a tensor's strides");
    sizes = size, strides = stride;
  }

  /// The numbers that say all of it, behind each other.
  void append_to(std::vector<int64_t>& numbers) const {
    numbers.insert(numbers.end(), {device, index, dtype, dim});
    numbers.insert(numbers.end(), sizes, sizes + dim);
    numbers.insert(numbers.end(), strides, strides + dim);
  }

  /// Whether those numbers are at this place; moves the place behind them.
  bool equals(const int64_t*& place) const {
    const int64_t* given = place;
    if (given[0] != device || given[1] != index || given[2] != dtype || given[3] != dim) return false;
    place += 4 + 2 * dim;
    return std::equal(sizes, sizes + dim, given + 4) && std::equal(strides, strides + dim, given + 4 + dim);
  }
};

/// The arguments of a call. It owns the strings; the tensors are those of the lists, which somebody has to take or free.
struct Call {
  const StableIValue* stack;
  const char *digest, *kernel;
  std::string_view options, check, margin;  // all of them; the kind of check; the rest
  std::vector<AtenTensorHandle> tensors;  // inputs, then outputs
  std::vector<int64_t> parameters;
  size_t inputs = 0;

  explicit Call(const StableIValue* given)
      : stack(given), digest(text(stack[DIGEST])), kernel(text(stack[KERNEL])), options(text(stack[OPTIONS])) {
    check = options.substr(0, options.find(' '));
    margin = options.substr(check.size());
    tensors.reserve(16);
    append(stack[INPUTS], tensors);
    inputs = tensors.size();
    append(stack[OUTPUTS], tensors);
    append(stack[SIZES], parameters);
  }
  Call(const Call&) = delete;

  ~Call() {
    for (const auto string : {DIGEST, KERNEL, OPTIONS}) torch_delete_string(from<StringHandle>(stack[string]));
  }

  /// Of the tensors' elements.
  const std::vector<void*>& addresses() const {
    if (addresses_.empty()) {
      addresses_.resize(tensors.size());
      for (size_t i = 0; i < tensors.size(); ++i)
        require(aoti_torch_get_data_ptr(tensors[i], &addresses_[i]), "a tensor's memory");
    }
    return addresses_;
  }

  void free_lists() const {
    for (const auto tensor : tensors) aoti_torch_delete_tensor_object(tensor);
    for (const auto list : {INPUTS, OUTPUTS, SIZES}) torch_delete_list(from<StableListHandle>(stack[list]));
  }

 private:
  mutable std::vector<void*> addresses_;
};

}  // namespace
