// Reductions over a warp and over a block.
#pragma once

#include "cuda/device.h"

namespace core {

constexpr int kWarpSize = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// Sum over the warp, given to every lane.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAllLanes, value, distance);
  }
  return value;
}

// Sum over the block, given to every thread. blockDim.x is a multiple of the warp size, y and z are 1. Every warp
// reduces the warps' sums for itself, which saves handing the result around.
__device__ inline float block_sum(float value) {
  SHARED_ARRAY(float, warp_sums, kWarpSize);
  const unsigned lane = threadIdx.x % kWarpSize;
  const float of_warp = warp_sum(value);
  if (lane == 0) warp_sums[threadIdx.x / kWarpSize] = of_warp;
  __syncthreads();
  const float total = warp_sum(lane < blockDim.x / kWarpSize ? warp_sums[lane] : 0.0f);
  __syncthreads();  // the next call writes warp_sums again
  return total;
}

}  // namespace core
