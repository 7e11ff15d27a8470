// CUDA's barriers, shuffles and votes, under their own names.
#pragma once

#include <atomic>

#include "sim/block.h"

namespace cusim {

template <typename T>
const Exchanged& exchange(unsigned mask, Collective what, const T& mine) {
  static_assert(sizeof(T) <= Exchanged::kBytes, "a lane leaves at most a slot's bytes at a collective");
  return meet(mask, what, &mine, sizeof mine);
}

// Return the value of lane `source` in a shuffle within segments of `width` lanes; the caller's own value if `source`
// is outside its segment, as in CUDA.
template <typename T>
T shuffle(unsigned mask, T mine, int source, int width) {
  const int lane = self().lane;
  const bool in_segment = source >= 0 && source / width == lane / width;
  return exchange(mask, Collective::kShuffle, mine).template from<T>(in_segment ? source : lane);
}

inline unsigned ballot(unsigned mask, int vote) {
  const Exchanged& votes = exchange(mask, Collective::kVote, int{vote != 0});
  unsigned result = 0;
  for (unsigned lanes = votes.present; lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    result |= static_cast<unsigned>(votes.from<int>(lane)) << lane;
  }
  return result;
}

}  // namespace cusim

inline void __syncthreads() {
  cusim::wait_at_barrier(0);
}

inline int __syncthreads_count(int vote) {
  return cusim::wait_at_barrier(vote);
}

inline int __syncthreads_or(int vote) {
  return cusim::wait_at_barrier(vote) != 0;
}

inline int __syncthreads_and(int vote) {
  return cusim::wait_at_barrier(vote == 0) == 0;
}

inline void __syncwarp(unsigned mask = 0xffffffffu) {
  cusim::exchange(mask, cusim::Collective::kSync, 0);
}

inline void __threadfence_block() {}

inline void __threadfence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
}

template <typename T>
T __shfl_sync(unsigned mask, T value, int source, int width = cusim::kWarpSize) {
  const int segment = cusim::self().lane / width * width;
  return cusim::shuffle(mask, value, segment + (source & (width - 1)), width);
}

template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int distance, int width = cusim::kWarpSize) {
  return cusim::shuffle(mask, value, cusim::self().lane ^ distance, width);
}

template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned distance, int width = cusim::kWarpSize) {
  return cusim::shuffle(mask, value, cusim::self().lane + static_cast<int>(distance), width);
}

template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned distance, int width = cusim::kWarpSize) {
  return cusim::shuffle(mask, value, cusim::self().lane - static_cast<int>(distance), width);
}

inline unsigned __ballot_sync(unsigned mask, int vote) {
  return cusim::ballot(mask, vote);
}

inline int __any_sync(unsigned mask, int vote) {
  return cusim::ballot(mask, vote) != 0;
}

inline int __all_sync(unsigned mask, int vote) {
  return cusim::ballot(mask, vote == 0) == 0;
}
