// Reductions over a warp and over a block.
#pragma once

#include "cuda/device.h"

namespace core {

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Reduce over the lanes of the warp, in a fixed order; every lane gets the result. `join` must be commutative.
template <typename T, typename Join>
__device__ T warp_reduce(T value, Join join) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = join(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// Reduce over the block; every thread gets the result. blockDim.x is a multiple of the warp size, y and z are 1. `none`
// is the identity of `join`. Each warp reduces the warps' results itself, which saves broadcasting the result.
template <typename T, typename Join>
__device__ T block_reduce(T value, T none, Join join) {
  SHARED_ARRAY(T, of_warps, kWarpSize);
  const unsigned lane = threadIdx.x % kWarpSize;
  const T of_warp = warp_reduce(value, join);
  if (lane == 0) of_warps[threadIdx.x / kWarpSize] = of_warp;
  __syncthreads();
  const T result = warp_reduce(lane < blockDim.x / kWarpSize ? of_warps[lane] : none, join);
  __syncthreads();  // the next call writes of_warps again
  return result;
}

// Sum over the block.
template <typename T>
__device__ T block_sum(T value) {
  return block_reduce(value, T{0}, [](T a, T b) { return a + b; });
}

// Return the larger number, or NaN if one is NaN, which fmaxf would ignore.
__device__ inline float larger_or_nan(float a, float b) {
  return a > b || a != a ? a : b;
}

// Return the largest of the block's numbers, all >= 0; NaN if any is.
__device__ inline float block_largest(float value) {
  return block_reduce(value, 0.0f, [](float a, float b) { return larger_or_nan(a, b); });
}

}  // namespace core
