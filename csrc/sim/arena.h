// The memory that a worker lends to its blocks, one after the other: stacks of the threads, and shared memory.
#pragma once

#include <cstddef>

#include "sim/block.h"

namespace cusim {

constexpr size_t kMaxSharedBytes = 99 << 10;  // what a block may have on every card that kernels are built for

class Arena {
 public:
  static constexpr size_t kStackBytes = 64 << 10;

  Arena();
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Makes room for this many threads. A page below each stack faults, so that an overflow cannot go unseen.
  void reserve_stacks(size_t threads);
  unsigned char* stack(size_t thread) const;
  unsigned char* shared() const { return shared_; }
  // Of the shared memory, where kernels are watched; null: they are not.
  Touched* shadow();

  uint32_t phase = 0;  // of the last block

 private:
  unsigned char* stacks_ = nullptr;
  size_t threads_ = 0;
  unsigned char* shared_;
  Shadow shadow_;
};

// Gives the block its shared memory, with the dynamic array in front.
void begin_shared(Block& block, const Arena& arena, size_t dynamic_bytes);

// Lays out one more array: NaN bytes, and a guard behind them.
unsigned char* add_shared_array(Block& block, const void* declaration, size_t bytes);

// Fails if the kernel wrote past the end of a shared array.
void check_shared(const Block& block);

}  // namespace cusim
