// What the compiler tells of each access to memory where kernels are compiled with -fsanitize=thread: threads of a
// block that touch the same shared memory, one of them writing, without a barrier between end the process, as accesses
// at addresses that are not aligned to their type do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace cusim {

enum class Access : uint8_t { kRead, kWrite, kAtomic };

// Who touched a byte last, and when. Phases are counted on and on, so that nothing need be forgotten between blocks.
struct Touch {
  uint32_t phase;  // barriers of the worker's blocks so far; 0: nobody
  uint32_t clock;  // of the lane's own in its warp
  uint16_t thread;
  bool atomic;
};

// Touches of a byte of shared memory: of two readers, the first since the last barrier and the last one.
struct Touched {
  Touch written, read_first, read_last;
};

// What a worker knows of the shared memory of its blocks.
using Shadow = std::unique_ptr<Touched[]>;

// The current thread touches these bytes; says nothing where no block runs.
void touch(const void* start, size_t bytes, Access access);

// The same by what the simulator does for a thread, where kernels are watched.
inline void told_touch([[maybe_unused]] const void* start, [[maybe_unused]] size_t bytes,
                       [[maybe_unused]] Access access) {
#ifdef __SANITIZE_THREAD__
  touch(start, bytes, access);
#endif
}

}  // namespace cusim
