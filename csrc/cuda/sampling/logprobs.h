// Logprobs of the unmodified logits: of the token, and of the most likely ids.
#pragma once

#include "cuda/sampling/row.h"

namespace core {

// log(sum of e^logit).
template <typename T>
__device__ double log_sum(const Logits<T>& own, float top) {
  float share = 0.0f;
  for_each(own, [&](int64_t, float logit) { share += expf(logit - top); });
  return static_cast<double>(top) + log(block_sum(static_cast<double>(share)));
}

// The output for a row's top logprobs.
struct TopList {
  int32_t* ids;
  double* logprobs;
  int32_t count;  // at most the vocabulary
  double total;   // log(sum of e^logit)

  __device__ void put(int32_t place, int32_t id, float logit) const {
    ids[place] = id;
    logprobs[place] = static_cast<double>(logit) - total;
  }
};

// From the list: an entry's rank is the number of entries that order before it.
__device__ inline void put_listed(const SampleShared& shared, const TopList& top) {
  for_each(shared, [&](int64_t id, float logit) {
    const uint64_t mine = order_of(id, logit);
    int32_t place = 0;
    for (int32_t i = 0; i < shared.listed; i++) place += order_of(shared.ids[i], shared.logits[i]) > mine;
    if (place < top.count) top.put(place, static_cast<int32_t>(id), logit);
  });
}

// One after the other, each by a scan of the whole row: for rows with so many equal logits that they overflow the list.
template <typename T>
__device__ void put_one_by_one(const Logits<T>& own, const TopList& top) {
  uint64_t last = ~uint64_t{0};
  for (int32_t place = 0; place < top.count; place++) {
    uint64_t best = 0;
    for_each(own, [&](int64_t id, float logit) {
      const uint64_t order = order_of(id, logit);
      if (order < last && order > best) best = order;
    });
    last = block_reduce(best, uint64_t{0}, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
    if (threadIdx.x == 0) top.put(place, id_of(last), logit_of(last));
  }
}

// mine: the key of the largest logit of this thread's share.
template <typename T>
__device__ void put_top(const Logits<T>& own, const TopList& top, uint32_t mine, SampleShared& shared) {
  static_assert(CORE_TOP_LOGPROBS <= kWarpSize, "every block has as many threads");
  const uint32_t bound = ranked_key(mine, top.count);
  if (list_from(own, bound, shared)) {
    put_listed(shared, top);
  } else {
    put_one_by_one(own, top);
  }
}

}  // namespace core
