// A row of logits that one block samples from, and the block's shared state.
#pragma once

#include <cstdint>

#include "common/sampling_math.h"
#include "core_device.h"
#include "cuda/number.h"
#include "cuda/reduce.h"

namespace core {

constexpr int kSampleThreads = 512;    // with many more, registers would spill
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

// Numbers of a row from `first` on; those outside of the row are undefined. The first is aligned as a pack is.
template <typename N>
__device__ Pack<N, kPackWidth<N>> load_pack(const N* row, int64_t first, int64_t count) {
  constexpr int kWidth = kPackWidth<N>;
  if (first >= 0 && first + kWidth <= count) return *reinterpret_cast<const Pack<N, kWidth>*>(row + first);
  Pack<N, kWidth> pack;
#pragma unroll
  for (int k = 0; k < kWidth; k++) {
    if (first + k >= 0 && first + k < count) pack.at[k] = row[first + k];
  }
  return pack;
}

// The logits of a row, original or changed.
template <typename T>
struct Logits {
  static constexpr int kWidth = kPackWidth<T>;  // logits that are loaded together

  const T* own;
  const float* changed;  // null: nothing changes
  int64_t count;

  __device__ float at(int64_t i) const { return changed == nullptr ? to_float(own[i]) : changed[i]; }

  // Number of logits, in front of the first, that packs begin with.
  __device__ int before() const { return changed == nullptr ? before_first(own) : before_first(changed); }

  __device__ void load(int64_t first, float (&logits)[kWidth]) const {
    if (changed == nullptr) {
      const Pack<T, kWidth> pack = load_pack(own, first, count);
#pragma unroll
      for (int k = 0; k < kWidth; k++) logits[k] = to_float(pack.at[k]);
    } else {
      constexpr int kFloats = kPackWidth<float>;
#pragma unroll
      for (int k = 0; k < kWidth; k += kFloats) {
        const Pack<float, kFloats> pack = load_pack(changed, first + k, count);
#pragma unroll
        for (int i = 0; i < kFloats; i++) logits[k + i] = pack.at[i];
      }
    }
  }

 private:
  template <typename N>
  static __device__ int before_first(const N* row) {
    return static_cast<int>(reinterpret_cast<uintptr_t>(row) % kPackBytes / sizeof(N));
  }
};

// Call use(id, logit) for this thread's share of a row, in ascending order.
template <typename T, typename Use>
__device__ void for_each(const Logits<T>& logits, Use use) {
  constexpr int kWidth = Logits<T>::kWidth;
  const int64_t before = logits.before();
  for (int64_t i = threadIdx.x; i * kWidth < before + logits.count; i += blockDim.x) {
    const int64_t first = i * kWidth - before;
    float loaded[kWidth];
    logits.load(first, loaded);
#pragma unroll
    for (int k = 0; k < kWidth; k++) {
      if (first + k >= 0 && first + k < logits.count) use(first + k, loaded[k]);
    }
  }
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

// Return the key of a rank, from 1 for the largest to the number of the block's threads, each of which has a key.
// Digits of four bits are counted by votes, from the highest on; each warp then adds up the counts of all.
__device__ inline uint32_t ranked_key(uint32_t key, int32_t rank) {
  constexpr int kBits = 4, kDigits = 1 << kBits, kCounts = kSampleThreads / kWarpSize * kDigits;
  SHARED_ARRAY(int32_t, counts, 2 * kCounts);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, warp = static_cast<int>(threadIdx.x) / kWarpSize;
  uint32_t prefix = 0;
  int32_t above = 0;   // keys that are larger than all that begin with the prefix
  bool begins = true;  // this thread's key begins with the prefix
  for (int shift = 32 - kBits; shift >= 0; shift -= kBits) {
    int32_t* of_digits = counts + shift / kBits % 2 * kCounts;  // in turns, so that one barrier is enough
    const int digit = static_cast<int>(key >> shift & (kDigits - 1));
    int32_t mine = 0;
#pragma unroll
    for (int other = 0; other < kDigits; other++) {
      const int count = __popc(__ballot_sync(kAllLanes, begins && digit == other));
      if (lane == other) mine = count;
    }
    if (lane < kDigits) of_digits[warp * kDigits + lane] = mine;
    __syncthreads();
    int32_t count = 0;  // of the digit kDigits - 1 - lane
    for (int i = kDigits - 1 - lane; i >= 0 && i < static_cast<int>(blockDim.x) / kWarpSize * kDigits; i += kDigits) {
      count += of_digits[i];
    }
    int32_t reached = count;
    for (int distance = 1; distance < kDigits; distance *= 2) {
      const int32_t others = __shfl_up_sync(kAllLanes, reached, distance);
      if (lane >= distance) reached += others;
    }
    const int first = __ffs(static_cast<int>(__ballot_sync(kAllLanes, above + reached >= rank))) - 1;
    above += __shfl_sync(kAllLanes, reached - count, first);
    begins = begins && digit == kDigits - 1 - first;
    prefix |= static_cast<uint32_t>(kDigits - 1 - first) << shift;
  }
  return prefix;
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
