// Hadamard rotation (common/hadamard.h) of heads that are distributed over the registers of several lanes.
#pragma once

#include <cstdint>

#include "common/hadamard.h"
#include "cuda/reduce.h"

namespace core {

constexpr int kMaxHadamardBlock = 256;  // entries of a block, at most

// One butterfly step between lanes `apart` apart: the sum in the lower lane, the difference in the upper one.
__device__ inline float meet(float mine, int apart) {
  const float other = __shfl_xor_sync(kAllLanes, mine, apart);
  return threadIdx.x & static_cast<unsigned>(apart) ? other - mine : mine + other;
}

// The same between registers.
template <int N>
__device__ void meet_registers(float (&x)[N], int apart) {
#pragma unroll
  for (int i = 0; i < N; i++) {
    if ((i & apart) != 0 || i + apart >= N) continue;
    const float first = x[i], second = x[i + apart];
    x[i] = first + second;
    x[i + apart] = first - second;
  }
}

// Lane l of kLanes has entries (i / kNear * kLanes + l) * kNear + i % kNear. All lanes of the warp take part.
template <int kNear, int kLanes, int N>
__device__ void hadamard(float (&x)[N], int block) {
#pragma unroll
  for (int apart = 1; apart < kMaxHadamardBlock; apart *= 2) {
    if (apart >= block) break;
    if (apart < kNear) {
      meet_registers(x, apart);
    } else if (apart < kNear * kLanes) {
#pragma unroll
      for (int i = 0; i < N; i++) x[i] = meet(x[i], apart / kNear);
    } else {
      meet_registers(x, apart / kLanes);
    }
  }
}

}  // namespace core
