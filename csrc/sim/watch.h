// Race detection: kernels compiled with -fsanitize=thread report each memory access here. Threads of a block that
// access the same shared memory, one of them writing, without a barrier between them end the process, as do misaligned
// accesses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cusim {

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// The last access to a byte. Phases are never reset, so that the shadow need not be cleared between blocks.
struct Touch {
  uint32_t phase;  // barriers of the worker's blocks so far; 0: no access
  uint32_t clock;  // the lane's own clock
  uint16_t thread;
  bool atomic;
};

// Accesses to a byte of shared memory: the last write, and the first and the last reader since the last barrier.
struct Touched {
  Touch written, read_first, read_last;
};

// A worker's record of accesses, one entry per byte of shared memory.
using Shadow = std::unique_ptr<Touched[]>;

// Record an access of the current thread; no-op if no block runs.
void touch(const void* start, size_t bytes, Access access);

// Likewise for accesses that the simulator performs on behalf of a thread; no-op unless kernels are watched.
inline void told_touch([[maybe_unused]] const void* start, [[maybe_unused]] size_t bytes,
                       [[maybe_unused]] Access access) {
#ifdef __SANITIZE_THREAD__
  touch(start, bytes, access);
#endif
}

}  // namespace cusim
