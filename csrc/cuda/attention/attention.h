// What both attention kernels do with scores. A quad is the four lanes that share a row of a product.
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

// The score of a product of query and key, times log2(e): weights are powers of two.
__device__ inline float score_of(float product, float scale, float soft_cap) {
  float score = product * scale;
  if (soft_cap > 0.0f) score = capped(score, soft_cap);
  return score * kLog2E;
}

// How weights and values are multiplied: codes, less the centre, are exact in Float16, and so are small steps in it.
template <typename Format>
using ValueNumber = std::conditional_t<kHasCodes<Format>, Float16, BFloat16>;

// What a token's value is multiplied by beside its weight. In formats with codes the step goes with the weight, as a
// power of two: products of both then have a largest one, as weights have, and all others are between 0 and 1.
struct ValueScale {
  float level = 0.0f;   // log2 of the step
  float middle = 0.0f;  // see CentredScale
};

template <typename Format>
__device__ ValueScale value_scale(CodeScale scale) {
  const CentredScale value = centred<Format>(scale);
  return {log2f(value.step), value.middle};
}

// Softmax of one row, as far as it has come.
template <typename Format>
struct Softmax {
  float most = -INFINITY;     // largest score
  float highest = -INFINITY;  // largest score plus level
  float sum = 0.0f;           // of the weights 2^(score - most)
  float middle = 0.0f;        // of the weights times the middles of their values

  // Takes new maxima; returns the factor of the products that were added so far.
  __device__ float raise(float score, float raised) {
    const float factor = step_to(most, score);
    sum *= factor;
    if constexpr (!kHasCodes<Format>) return factor;
    middle *= factor;
    return step_to(highest, raised);
  }

  // Adds a token; returns what its value, or code less the centre, is multiplied by.
  __device__ float add(float score, ValueScale value) {
    const float weight = exp2f(score - base_of(most));
    sum += weight;
    if constexpr (!kHasCodes<Format>) return weight;
    middle += weight * value.middle;
    return exp2f(score + value.level - base_of(highest));
  }

  // Products times this are of the scale of sum and middle.
  __device__ float product_factor() const { return kHasCodes<Format> ? exp2f(highest - base_of(most)) : 1.0f; }

  // What scores are compared with: a number, too, where all scores so far are -infinity.
  static __device__ float base_of(float largest) { return largest == -INFINITY ? 0.0f : largest; }

 private:
  static __device__ float step_to(float& largest, float candidate) {
    const float before = largest;
    largest = fmaxf(largest, candidate);
    return exp2f(before - base_of(largest));
  }
};

// Where the tokens of a sequence lie.
struct Table {
  const int32_t* blocks;
  Divisor block_size;

  template <typename Args>
  __device__ Table(const Args& args, int sequence)
      : blocks(args.tables + int64_t{sequence} * args.max_blocks), block_size(args.blocks.block_size) {}

  __device__ int block(int position) const { return blocks[block_size.quotient(position)]; }
  __device__ int slot(int position) const { return block_size.remainder(position); }
};

}  // namespace core
