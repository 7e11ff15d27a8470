// Scores and softmax of both attention kernels. A quad is the four lanes that share a row of a product.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/kv/kv.h"
#include "cuda/mma.h"
#include "cuda/reduce.h"

namespace core {

constexpr float kLog2E = 1.4426950408889634f;

__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(kAllLanes, value, 1);
  return value + __shfl_xor_sync(kAllLanes, value, 2);
}

__device__ inline float quad_max(float value) {
  value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, 1));
  return fmaxf(value, __shfl_xor_sync(kAllLanes, value, 2));
}

__device__ inline float capped(float score, float soft_cap) {
  return soft_cap * tanhf(score / soft_cap);
}

// Return the score of a product of query and key, times log2(e): weights are computed as powers of two.
__device__ inline float score_of(float product, float scale, float soft_cap) {
  float score = product * scale;
  if (soft_cap > 0.0f) score = capped(score, soft_cap);
  return score * kLog2E;
}

// Return the weight of a head's sink, if there is one, relative to that of the largest score of its keys.
__device__ inline float sink_weight(const void* sinks, int head, float most) {
  return sinks == nullptr ? 0.0f : exp2f(to_float(static_cast<const BFloat16*>(sinks)[head]) * kLog2E - most);
}

// Type in which weights and values are multiplied: codes less the centre are exact in Float16.
template <typename Format>
using ValueNumber = std::conditional_t<kHasCodes<Format>, Float16, BFloat16>;

// The scale of a token's value. In quantized formats the step is folded into the weight, as a power of two: relative to
// their maximum, the products of both are between 0 and 1, like weights.
struct ValueScale {
  float level = 0.0f;   // log2 of the step
  float middle = 0.0f;  // see CentredScale
};

template <typename Format>
__device__ ValueScale value_scale(CodeScale scale) {
  const CentredScale value = centred<Format>(scale);
  return {log2f(value.step), value.middle};
}

// Running softmax of one row.
template <typename Format>
struct Softmax {
  float most = -INFINITY;     // largest score
  float highest = -INFINITY;  // largest score plus level
  float sum = 0.0f;           // of the weights 2^(score - most)
  float middle = 0.0f;        // of the weights times the middles of their values

  // Set new maxima; return the factor that rescales the products added so far.
  __device__ float raise(float score, float raised) {
    const float factor = step_to(most, score);
    sum *= factor;
    if constexpr (!kHasCodes<Format>) return factor;
    middle *= factor;
    return step_to(highest, raised);
  }

  // Add a token; return the factor of its value, or of its code less the centre.
  __device__ float add(float score, ValueScale value) {
    const float weight = exp2f(score - base_of(most));
    sum += weight;
    if constexpr (!kHasCodes<Format>) return weight;
    middle += weight * value.middle;
    return exp2f(score + value.level - base_of(highest));
  }

  // The factor that brings products to the scale of sum and middle.
  __device__ float product_factor() const { return kHasCodes<Format> ? exp2f(highest - base_of(most)) : 1.0f; }

  // The maximum to subtract from scores; finite even if all scores so far are -infinity.
  static __device__ float base_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

 private:
  static __device__ float step_to(float& largest, float candidate) {
    const float before = largest;
    largest = fmaxf(largest, candidate);
    return exp2f(before - base_of(largest));
  }
};

// The blocks of a sequence's tokens: a row of the block tables.
struct Table {
  const int32_t* blocks;
  Divisor block_size;

  template <typename Args>
  __device__ Table(const Args& args, int row)
      : blocks(args.tables + int64_t{row} * args.max_blocks), block_size(args.blocks.block_size) {}

  __device__ int block(int position) const { return blocks[block_size.quotient(position)]; }
  __device__ int slot(int position) const { return block_size.remainder(position); }
};

}  // namespace core
