// Reductions over a warp and over a block.
#pragma once

#include "cuda/device.h"

namespace core {

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Of all lanes of the warp, in an order that is always the same; given to every lane. `join` takes two into one, in
// either order.
template <typename T, typename Join>
__device__ T warp_reduce(T value, Join join) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value = join(value, __shfl_xor_sync(kAllLanes, value, distance));
  }
  return value;
}

// The same of the block. blockDim.x is a multiple of the warp size, y and z are 1. `none` changes nothing that it is
// joined with. Every warp reduces the warps' results for itself, which saves handing the result around.
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

// The larger one; NaN if there is one, where fmaxf would pass over it.
__device__ inline float larger_or_nan(float a, float b) {
  return a > b || a != a ? a : b;
}

// The largest number of the block, none below 0; NaN if there is one.
__device__ inline float block_largest(float value) {
  return block_reduce(value, 0.0f, [](float a, float b) { return larger_or_nan(a, b); });
}

}  // namespace core
