// The memory of a worker, which owns it and lends it to its blocks one after the other: stacks of threads, and shared
// memory.
#pragma once

#include <cstddef>

#include "sim/block.h"

namespace cusim {

constexpr size_t kMaxSharedBytes = 99 << 10;  // per block; the minimum over all supported cards

class Arena {
 public:
  static constexpr size_t kStackBytes = 64 << 10;

  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Allocate stacks for this many threads. A guard page below each stack faults on overflow.
  void reserve_stacks(size_t threads);
  unsigned char* stack(size_t thread) const;
  unsigned char* shared() const { return shared_; }
  // The shadow of the shared memory, if kernels are compiled to be watched (sim/watch.h); else null.
  Touched* shadow();

  uint32_t phase = 0;  // of the last block

 private:
  unsigned char* stacks_ = nullptr;
  size_t threads_ = 0;
  unsigned char* shared_;
  Shadow shadow_;
};

// Give the block its shared memory, with the dynamic array in front.
void begin_shared(Block& block, const Arena& arena, size_t dynamic_bytes);

// Append an array: NaN bytes, followed by a guard.
unsigned char* add_shared_array(Block& block, const void* declaration, size_t bytes);

// Fail if the kernel wrote past the end of a shared array.
void check_shared(const Block& block);

}  // namespace cusim
