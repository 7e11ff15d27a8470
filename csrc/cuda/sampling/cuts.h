// Thresholds of top-k, top-p and min-p without sorting. All sums are of integers, so that the result does not depend on
// the order of threads.
#pragma once

#include "cuda/sampling/row.h"

namespace core {

// exp((logit - top) / temperature) in units of 2^-40: a row's sum stays below 2^64.
struct Masses {
  float top;
  float rate;

  __device__ Weight operator()(float logit) const { return static_cast<Weight>(expf((logit - top) * rate) * 0x1p40f); }
};

// The first warp scans the bins from the last one down: it extends the prefix by the digit at which the weights reach
// `wanted`, and adds the weights above it to `above`.
__device__ inline void choose_bin(SampleShared& shared, int digits, int shift, Weight wanted) {
  if (threadIdx.x >= kWarpSize) return;
  const int lane = static_cast<int>(threadIdx.x), each = digits / kWarpSize, first = digits - 1 - lane * each;
  Weight mine = 0;
  for (int i = 0; i < each; i++) mine += shared.bins[first - i];
  Weight reached = shared.above + mine;
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const Weight others = __shfl_up_sync(kAllLanes, reached - shared.above, distance);
    if (lane >= distance) reached += others;
  }
  const unsigned there = __ballot_sync(kAllLanes, reached >= wanted);
  if (lane != __ffs(static_cast<int>(there)) - 1) return;
  Weight above = reached - mine;
  int bin = first;
  for (; above + shared.bins[bin] < wanted; bin--) above += shared.bins[bin];
  shared.above = above;
  shared.prefix |= static_cast<uint32_t>(bin) << shift;
}

// Return the largest key such that the weights of logits with keys >= it sum to at least `wanted`, which must not
// exceed the sum of all. Logits with keys below `floor` do not count.
template <typename T, typename WeightOf>
__device__ uint32_t threshold(const Logits<T>& logits, uint32_t floor, WeightOf weight_of, Weight wanted,
                              SampleShared& shared) {
  if (threadIdx.x == 0) {
    shared.above = 0;
    shared.prefix = 0;
  }
  for (int shift = 21, bits = 11; bits > 0; bits = shift < 11 ? shift : 11, shift -= bits) {
    const int digits = 1 << bits;
    for (int bin = static_cast<int>(threadIdx.x); bin < digits; bin += static_cast<int>(blockDim.x)) {
      shared.bins[bin] = 0;
    }
    __syncthreads();
    const uint32_t known = shift + bits == 32 ? 0 : ~0u << (shift + bits), prefix = shared.prefix;
    for_each(logits, [&](int64_t, float logit) {
      const uint32_t key = key_of(logit);
      if (key < floor || (key & known) != prefix) return;
      const Weight weight = weight_of(logit);
      if (weight != 0) atomicAdd(&shared.bins[key >> shift & static_cast<uint32_t>(digits - 1)], weight);
    });
    __syncthreads();
    choose_bin(shared, digits, shift, wanted);
    __syncthreads();
  }
  const uint32_t found = shared.prefix;
  __syncthreads();  // the next call overwrites the prefix
  return found;
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

// Return the weight that top-p keeps of this sum; at least 1.
__device__ inline Weight wanted_of(double top_p, Weight total) {
  const auto wanted = static_cast<Weight>(ceil(top_p * static_cast<double>(total)));
  return wanted < 1 ? 1 : wanted > total ? total : wanted;
}

// The logits that the cuts keep: those with keys >= a floor, of the list or of the whole row.
struct Cut {
  uint32_t floor;
  bool listed;
};

// Find the k-th largest logit. The threads' own largest logits give a close lower bound; for small k, the logits above
// that fit the list, which then decides.
template <typename T>
__device__ Cut cut_to_top_k(const Logits<T>& logits, int32_t top_k, uint32_t mine, uint32_t floor,
                            SampleShared& shared) {
  const auto k = static_cast<Weight>(top_k);
  if (k < blockDim.x) {
    const uint32_t bound = max(ranked_key(mine, top_k), floor);
    if (list_from(logits, bound, shared)) {
      uint32_t key = 0;
      for_each(shared, [&](int64_t, float logit) { key = key_of(logit); });
      return {max(ranked_key(key, top_k), bound), true};
    }
  }
  const auto one = [](float) { return Weight{1}; };
  Weight count = 0;
  for_each(logits, [&](int64_t, float logit) { count += key_of(logit) >= floor; });
  if (block_sum(count) <= k) return {floor, false};
  return {threshold(logits, floor, one, k, shared), false};
}

template <typename T>
__device__ uint32_t floor_of_top_p(const Logits<T>& logits, Cut cut, double top_p, Masses masses,
                                   SampleShared& shared) {
  Weight share = 0;
  uint32_t key = 0;
  const auto add = [&](int64_t, float logit) {
    key = key_of(logit);
    if (key >= cut.floor) share += masses(logit);
  };
  if (!cut.listed) {
    for_each(logits, add);
    return threshold(logits, cut.floor, masses, wanted_of(top_p, block_sum(share)), shared);
  }
  for_each(shared, add);
  return key_reached(key, share, wanted_of(top_p, block_sum(share)));
}

// Apply all cuts to a row whose largest logit is `peak`.
template <typename T>
__device__ Cut cut_of(const Logits<T>& logits, const CoreSampling& sampling, const Peak& peak, SampleShared& shared) {
  Cut cut = {key_of(-kLargestFloat), false};  // excludes masked ids, which are -inf
  if (sampling.top_k > 0 && sampling.top_k < logits.count) {
    cut = cut_to_top_k(logits, sampling.top_k, peak.mine, cut.floor, shared);
  }
  if (sampling.top_p < 1) {
    const Masses masses = {peak.logit, rate_of(sampling.temperature)};
    cut.floor = max(cut.floor, floor_of_top_p(logits, cut, sampling.top_p, masses, shared));
  }
  if (sampling.min_p > 0) {
    const float edge = lowest_of_min_p(peak.logit, sampling.temperature, sampling.min_p);
    cut.floor = max(cut.floor, key_of(edge));
  }
  cut.floor = min(cut.floor, key_of(peak.logit));
  return cut;
}

}  // namespace core
