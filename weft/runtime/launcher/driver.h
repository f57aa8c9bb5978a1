// What the CUDA driver's cuLaunchKernelEx is given: CUlaunchConfig and CUlaunchAttribute of cuda.h (sizes and places are
// those of CUDA 12.8 and 13.0), as far as they are used here. The header itself need not be there where this is compiled.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace {

/// CUlaunchAttribute.
struct LaunchAttribute {
  enum Kind : int32_t { COOPERATIVE = 2, CLUSTER_DIMENSION = 4 };  // of CUlaunchAttributeID

  Kind kind;
  union alignas(8) {
    char whole[64];
    int32_t cooperative;
    uint32_t cluster[3];  // programs along three axes
  } value;

  /// Programs wait for each other.
  static LaunchAttribute of_cooperative() {
    LaunchAttribute made{COOPERATIVE, {}};
    made.value.cooperative = 1;
    return made;
  }

  /// As many programs next to each other along the first axis are a cluster.
  static LaunchAttribute of_cluster(const uint32_t programs) {
    LaunchAttribute made{CLUSTER_DIMENSION, {}};
    const uint32_t extents[] = {programs, 1, 1};
    std::copy(std::begin(extents), std::end(extents), made.value.cluster);
    return made;
  }
};
static_assert(sizeof(LaunchAttribute) == 72 && offsetof(LaunchAttribute, value) == 8);

/// CUlaunchConfig.
struct LaunchConfig {
  uint32_t grid[3], block[3];  // programs, and threads of a program
  uint32_t shared_bytes;       // of a program
  void* stream;
  LaunchAttribute* attributes;
  uint32_t attribute_count;
};
static_assert(offsetof(LaunchConfig, block) == 12 && offsetof(LaunchConfig, shared_bytes) == 24);
static_assert(offsetof(LaunchConfig, stream) == 32 && offsetof(LaunchConfig, attributes) == 40);
static_assert(offsetof(LaunchConfig, attribute_count) == 48 && sizeof(LaunchConfig) == 56);

}  // namespace
