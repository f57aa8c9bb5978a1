// PyTorch's C interface, whose types and functions stay the same from release to release: what it refuses, and the
// words in which it hands over arguments.

#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void require(AOTITorchError error, const char* what) {
  if (error != 0) throw std::runtime_error(std::string("weft: PyTorch refused ") + what);
}

template <class T>
T from(StableIValue value) {
  static_assert(sizeof(T) == sizeof(value));
  T result;
  std::memcpy(&result, &value, sizeof(result));
  return result;
}

const char* text(StableIValue value) {
  const char* data = nullptr;
  require(torch_string_c_str(from<StringHandle>(value), &data), "a string");
  return data;
}

template <class T>
void append(StableIValue list, std::vector<T>& to) {
  const auto handle = from<StableListHandle>(list);
  size_t size = 0;
  require(torch_list_size(handle, &size), "a list");
  for (size_t i = 0; i < size; ++i) {
    StableIValue item;
    require(torch_list_get_item(handle, i, &item), "a list");
    to.push_back(from<T>(item));
  }
}

}  // namespace
