// Calls of kernels of a GPU, as weft/runtime/gpu/function.py makes them.

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "driver.h"
#include "fitting.h"

namespace {

/// What GPUs are used through: a function of PyTorch's, and of the CUDA driver. They return 0 if all went well.
struct Gpu {
  int (*current_stream)(int32_t device, void** stream);
  int (*current_device)(int* device);
  int (*is_capturing)(void* stream, int* status);
  int (*start)(const LaunchConfig* config, void* function, void** arguments, void** extra);
};
Gpu gpu;

/// Memory of a GPU that is given back to PyTorch's allocator, for what comes later on the same stream only.
class Workspace {
 public:
  /// On a device, by its type and index; without memory if there is none.
  Workspace(std::pair<int32_t, int32_t> device, int64_t bytes) {
    const int64_t stride = 1;
    if (aoti_torch_empty_strided(1, &bytes, &stride, aoti_torch_dtype_uint8(), device.first, device.second, &tensor_) != 0)
      tensor_ = nullptr;
    else if (aoti_torch_get_data_ptr(tensor_, &data) != 0)
      data = nullptr;
  }
  Workspace(const Workspace&) = delete;
  ~Workspace() {
    if (tensor_ != nullptr) aoti_torch_delete_tensor_object(tensor_);
  }

  void* data = nullptr;

 private:
  AtenTensorHandle tensor_ = nullptr;
};

/// Functions of a GPU, as weft/runtime/gpu/function.py starts them.
struct GpuFitting : Fitting {
  struct Start {
    void* function;
    unsigned x, y, threads, shared_bytes;
    unsigned cluster;  // programs of one, along x
    bool together;     // programs wait for each other

    /// Whether the driver did it.
    bool operator()(void* const stream, void** const arguments) const {
      std::array<LaunchAttribute, 2> attributes{};
      LaunchConfig config{{x, y, 1}, {threads, 1, 1}, shared_bytes, stream, attributes.data(), 0};
      if (together) attributes[config.attribute_count++] = LaunchAttribute::of_cooperative();
      if (cluster > 1) attributes[config.attribute_count++] = LaunchAttribute::of_cluster(cluster);
      return gpu.start(&config, function, arguments, nullptr) == 0;
    }
  };

  int32_t device;
  uintptr_t alignment_bytes;
  std::vector<char> aligned;  // of each tensor, whether it starts at a multiple of that
  uintptr_t counter;  // of what programs count together, 0 without one: for launches of one stream, in no graph
  void* stream;       // that stream
  size_t arguments;   // of each function; behind those that have values are null pointers
  int64_t workspace_bytes;
  std::vector<int64_t> slices;  // where in the workspace partial results are
  std::vector<Start> starts;

  GpuFitting(Likeness like, Numbers numbers) : Fitting(std::move(like), numbers) {
    device = static_cast<int32_t>(numbers.next());
    alignment_bytes = static_cast<uintptr_t>(numbers.next());
    aligned.resize(static_cast<size_t>(numbers.next()));
    for (auto& each : aligned) each = numbers.next() != 0;
    counter = static_cast<uintptr_t>(numbers.next());
    stream = reinterpret_cast<void*>(numbers.next());
    arguments = static_cast<size_t>(numbers.next());
    workspace_bytes = numbers.next();
    slices.resize(static_cast<size_t>(numbers.next()));
    for (auto& slice : slices) slice = numbers.next();
    while (numbers.more()) {
      auto& start = starts.emplace_back();
      start.function = reinterpret_cast<void*>(numbers.next());
      for (unsigned* const number : {&start.x, &start.y, &start.threads, &start.shared_bytes, &start.cluster})
        *number = static_cast<unsigned>(numbers.next());
      start.together = numbers.next() != 0;
    }
  }

  bool is_like(const Fitting& other) const override {
    const auto* const same = dynamic_cast<const GpuFitting*>(&other);
    return same != nullptr && Fitting::is_like(other) && same->aligned == aligned && same->stream == stream;
  }

  bool allows(const std::vector<void*>& addresses) const override {
    const auto is_as_known = [&](void* const address, const char known) {
      return (reinterpret_cast<uintptr_t>(address) % alignment_bytes == 0) == (known != 0);
    };
    if (!std::equal(addresses.begin(), addresses.end(), aligned.begin(), aligned.end(), is_as_known)) return false;
    int current = -1;
    if (gpu.current_device(&current) != 0 || current != device) return false;
    if (counter == 0) return true;
    int capturing = 0;
    return current_stream() == stream && gpu.is_capturing(stream, &capturing) == 0 && capturing == 0;
  }

  bool run(const std::vector<void*>& addresses) const override {
    std::vector<void*> values = addresses;
    values.reserve(arguments);
    std::optional<Workspace> workspace;
    if (!slices.empty()) {
      workspace.emplace(likeness.device(), workspace_bytes);
      if (workspace->data == nullptr) return false;
      for (const auto slice : slices) values.push_back(static_cast<char*>(workspace->data) + slice);
    }
    if (counter != 0) values.push_back(reinterpret_cast<void*>(counter));
    for (const auto parameter : likeness.parameters) values.push_back(reinterpret_cast<void*>(parameter));
    values.resize(arguments, nullptr);
    std::vector<void*> places(arguments);
    std::transform(values.begin(), values.end(), places.begin(), [](void*& value) { return &value; });
    void* const now = current_stream();
    return std::all_of(starts.begin(), starts.end(), [&](const Start& start) { return start(now, places.data()); });
  }

 private:
  void* current_stream() const {
    void* found = nullptr;
    require(gpu.current_stream(device, &found), "the current stream");
    return found;
  }
};

}  // namespace
