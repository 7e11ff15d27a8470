// A row of logits that one block samples from, and the block's shared state.
#pragma once

#include <cstdint>

#include "common/sampling_math.h"
#include "core_device.h"
#include "cuda/number.h"
#include "cuda/reduce.h"

namespace core {

constexpr int kSampleThreads = 768;    // with more, registers would spill
constexpr float kNothing = -INFINITY;  // the logit of an id that may not be sampled

using Weight = unsigned long long;  // integers, whose sums do not depend on the order

// Shared memory of a block.
struct SampleShared {
  static constexpr int kBins = 1 << 11;

  Weight bins[kBins];
  Weight above;
  uint32_t prefix;
  int32_t listed;  // may exceed the list's capacity
  int32_t ids[kSampleThreads];
  float logits[kSampleThreads];
};

// The logits of a row, original or changed.
template <typename T>
struct Logits {
  const T* own;
  const float* changed;  // null: nothing changes
  int64_t count;

  __device__ float at(int64_t i) const { return changed == nullptr ? to_float(own[i]) : changed[i]; }
  __device__ Logits unchanged() const { return {own, nullptr, count}; }
};

// Call use(id, logit) for this thread's share of a row.
template <typename T, typename Use>
__device__ void for_each(const Logits<T>& logits, Use use) {
#pragma unroll 4
  for (int64_t i = threadIdx.x; i < logits.count; i += blockDim.x) use(i, logits.at(i));
}

// Likewise for the list, which holds at most one entry per thread.
template <typename Use>
__device__ void for_each(const SampleShared& shared, Use use) {
  const auto i = static_cast<int32_t>(threadIdx.x);
  if (i < shared.listed) use(shared.ids[i], shared.logits[i]);
}

// Return a key, above 0, that orders by logit, then by descending id.
__device__ inline uint64_t order_of(int64_t id, float logit) {
  return static_cast<uint64_t>(key_of(logit)) << 32 | (0xffffffffu - static_cast<uint32_t>(id));
}

__device__ inline int32_t id_of(uint64_t order) {
  return static_cast<int32_t>(0xffffffffu - static_cast<uint32_t>(order));
}

__device__ inline float logit_of(uint64_t order) {
  return number_of(static_cast<uint32_t>(order >> 32));
}

// The largest logit of a row.
struct Peak {
  float logit;
  int32_t id;     // the lowest that has it
  uint32_t mine;  // the key of the largest of this thread's share; 0: the share is empty
  bool finite;    // no infinity, no NaN in the row
};

template <typename T>
__device__ Peak peak_of(const Logits<T>& logits) {
  float top = kNothing, zeros = 0.0f;
  int64_t place = -1;
  for_each(logits, [&](int64_t id, float logit) {
    zeros += logit * 0.0f;
    if (logit > top || place < 0) {
      top = logit;
      place = id;
    }
  });
  const uint64_t mine = place < 0 ? 0 : order_of(place, top);
  const uint64_t best = block_reduce(mine, uint64_t{0}, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  const bool finite = __syncthreads_or(zeros != 0.0f) == 0;
  return {logit_of(best), id_of(best), static_cast<uint32_t>(mine >> 32), finite};
}

// Return the largest key such that the weights of threads with keys >= it sum to at least `wanted`; 0 if all weights
// together do not. Each thread holds one key.
__device__ inline uint32_t key_reached(uint32_t key, Weight weight, Weight wanted) {
  uint32_t reached = 0;
  for (int bit = 31; bit >= 0; bit--) {
    const uint32_t next = reached | 1u << bit;
    if (block_sum(key >= next ? weight : 0) >= wanted) reached = next;
  }
  return reached;
}

// List the logits with keys >= a floor. False if there are more than the block has threads.
template <typename T>
__device__ bool list_from(const Logits<T>& logits, uint32_t floor, SampleShared& shared) {
  if (threadIdx.x == 0) shared.listed = 0;
  __syncthreads();
  for_each(logits, [&](int64_t id, float logit) {
    if (key_of(logit) < floor) return;
    const int32_t place = atomicAdd(&shared.listed, 1);
    if (place >= static_cast<int32_t>(blockDim.x)) return;
    shared.ids[place] = static_cast<int32_t>(id);
    shared.logits[place] = logit;
  });
  __syncthreads();
  return shared.listed <= static_cast<int32_t>(blockDim.x);
}

}  // namespace core
