// The storage formats of the CUDA library, and packs of them that move in one load or store.
#pragma once

#include <cmath>
#include <type_traits>

#include "cuda/device.h"

namespace core {

using BFloat16 = __nv_bfloat16;
using Float16 = __half;

__device__ inline float to_float(float value) {
  return value;
}

__device__ inline float to_float(BFloat16 value) {
  return __bfloat162float(value);
}

__device__ inline float to_float(Float16 value) {
  return __half2float(value);
}

template <typename T>
__device__ T from_float(float value) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return value;
  } else if constexpr (std::is_same_v<T, BFloat16>) {
    return __float2bfloat16_rn(value);
  } else {
    return __float2half_rn(value);
  }
}

__device__ inline float inverse_sqrt(float value) {
#ifdef __CUDACC__
  return rsqrtf(value);
#else
  return 1.0f / std::sqrt(value);
#endif
}

constexpr int kPackBytes = 16;

// Elements that fill the widest load.
template <typename T>
constexpr int kPackWidth = kPackBytes / sizeof(T);

// Width neighbouring elements, aligned so that they move together.
template <typename T, int Width>
struct alignas(sizeof(T) * Width) Pack {
  T at[Width];
};

}  // namespace core
