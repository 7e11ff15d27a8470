// Helpers for launchers to choose a kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "core.h"
#include "cuda/number.h"
#include "cuda/reduce.h"

namespace core {

constexpr int kMostSharedBytes = 99 << 10;  // per thread block, on the RTX 50 family, which has the least

// Return the block size for `needed` threads: whole warps, at most `most` threads.
inline dim3 whole_warps(int64_t needed, int64_t most) {
  const int64_t warps = std::max<int64_t>(1, (needed + kWarpSize - 1) / kWarpSize);
  return dim3(static_cast<unsigned>(std::min(warps * kWarpSize, most)));
}

// True if every buffer is aligned to a pack; null buffers are ignored.
inline bool in_packs(std::initializer_list<const void*> buffers) {
  uintptr_t addresses = 0;
  for (const void* buffer : buffers) addresses |= reinterpret_cast<uintptr_t>(buffer);
  return addresses % kPackBytes == 0;
}

// Call `chosen` with a number of the C++ type of a CoreDtype; return its result.
template <typename Chosen>
auto by_dtype(int32_t dtype, Chosen chosen) {
  switch (dtype) {
    case CORE_FLOAT32:
      return chosen(float{});
    case CORE_BFLOAT16:
      return chosen(BFloat16{});
    default:
      return chosen(Float16{});
  }
}

}  // namespace core
