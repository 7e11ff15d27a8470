// Where the ranks of a model exchange parts of activations: memory that they share.
//
// Each rank has two slots, used in turns. It writes its part into one, publishes the number of the exchange, and reads
// the slots of the others when they have published it too. It writes the same slot two exchanges later: by then every
// other rank has published the exchange in between, which it does after it has read this one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core_program.h"

namespace core {

constexpr int32_t kMostRanks = 64;

}  // namespace core

// Kernels call this, so nothing in it is inline.
struct CoreExchange {
 public:
  // memory: core_exchange_bytes(), which it unmaps.
  CoreExchange(const CoreExchangeOptions& options, std::byte* memory);
  ~CoreExchange();
  CoreExchange(const CoreExchange&) = delete;
  CoreExchange& operator=(const CoreExchange&) = delete;

  // Return where this rank writes its part of the next exchange.
  float* own() const;
  // Publish it, and wait until all ranks have published theirs, or lost(). One thread.
  void meet();
  // Return a rank's part of the last exchange.
  const float* part(int32_t rank) const;

  // End the exchanges of all ranks. Safe to call from any thread.
  void leave();
  // True if a rank has left, or did not come for an hour.
  bool lost() const;

  const int64_t part_bytes;
  const int32_t rank, ranks;

 private:
  bool wait_for(int32_t other) const;
  std::byte* slot(int32_t of, uint32_t number) const;

  std::byte* const memory_;
  uint32_t number_ = 0;  // of the last exchange; it wraps around
};
