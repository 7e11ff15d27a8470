// Changes of logits by requests (CoreLogitChanges).
#pragma once

#include "cuda/sampling/row.h"

namespace core {

// Apply a change to the logits of ids that may still be sampled. Each id occurs once, so threads do not conflict.
template <typename Change>
__device__ void change_each(const int32_t* ids, int32_t count, int64_t vocab, float* logits, Change change) {
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += static_cast<int32_t>(blockDim.x)) {
    const int64_t id = ids[i];
    if (id >= 0 && id < vocab && logits[id] != kNothing) logits[id] = change(logits[id], i);
  }
  __syncthreads();
}

__device__ inline bool allows(const CoreLogitChanges& changes, int64_t id) {
  if (changes.allowed == nullptr) return true;
  return id / 32 < changes.allowed_words && (changes.allowed[id / 32] >> (id % 32) & 1) != 0;
}

// Write the changed logits to `scratch`; ids that may not be sampled become -inf.
template <typename T>
__device__ void change_logits(const CoreLogitChanges& changes, const T* own, int64_t vocab, float* scratch) {
  for (int64_t id = threadIdx.x; id < vocab; id += blockDim.x) {
    scratch[id] = allows(changes, id) ? to_float(own[id]) : kNothing;
  }
  __syncthreads();
  change_each(changes.penalized, changes.penalized_count, vocab, scratch,
              [&](float logit, int32_t i) { return penalized_logit(logit, changes.repetition, changes.penalties[i]); });
  change_each(changes.biased, changes.biased_count, vocab, scratch,
              [&](float logit, int32_t i) { return finite_float(logit + changes.biases[i]); });
  // An id may occur twice: both threads write the same.
  change_each(changes.masked, changes.masked_count, vocab, scratch, [](float, int32_t) { return kNothing; });
}

}  // namespace core
