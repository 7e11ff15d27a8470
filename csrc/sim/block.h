// The thread block that a worker runs: its threads, its shared memory, and how its threads synchronize.
#pragma once

#include <driver_types.h>
#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "sim/fiber.h"
#include "sim/watch.h"

namespace cusim {

constexpr int kWarpSize = 32;

// Print an error of the kernel and abort.
[[noreturn]] void fail(const std::string& what);

enum class State : uint8_t { kReady, kAtBarrier, kAtCollective, kDone };
enum class Collective : uint8_t { kShuffle, kVote, kSync, kMma, kLoadMatrices };

// A copy of 16 bytes to shared memory in flight.
struct Copy {
  static constexpr size_t kBytes = 16;

  void* shared;
  const void* global;  // null: zeros
  int group;
};

// One CUDA thread.
struct Thread {
  uint3 index;
  int warp;
  int lane;
  State state;
  bool begun;                // has called begin_kernel(), or need not
  std::vector<Copy> copies;  // in flight
  int groups;                // number of closed groups of copies
  Fiber fiber;
};

// The data that the lanes of a mask exchanged at a collective.
struct Exchanged {
  static constexpr size_t kBytes = 32;

  unsigned present = 0;  // lanes that took part
  alignas(16) unsigned char slots[kWarpSize][kBytes];

  template <typename T>
  T from(int lane) const {
    if ((present >> lane & 1u) == 0) fail("a lane reads from lane " + std::to_string(lane) + ", which takes no part");
    T value;
    memcpy(&value, slots[lane], sizeof value);
    return value;
  }
};

// The collectives of one mask, double-buffered: no lane reaches the collective after next before all have read this
// one.
struct Meeting {
  Collective what;
  unsigned arrived = 0;
  unsigned turn = 0;
  Exchanged exchanged[2];
};

// A lane's vector clocks of its warp: the clocks of the other lanes when they last met in any collective (met), and in
// a
// __syncwarp (synced). Only __syncwarp makes writes visible.
struct WarpClocks {
  uint32_t met[kWarpSize], synced[kWarpSize];
};

struct Warp {
  unsigned live = 0;                               // lanes that have not returned
  std::unordered_map<unsigned, Meeting> meetings;  // by mask
  WarpClocks clocks[kWarpSize] = {};
};

// An array of shared memory in the block's arena.
struct SharedArray {
  const void* declaration;
  unsigned char* start;
  size_t bytes;
};

struct Block {
  uint3 index;
  dim3 size;
  dim3 grid;
  std::function<void()> kernel;
  bool early = false;  // all threads must call begin_kernel()
  std::vector<Thread> threads;
  std::vector<Warp> warps;
  Thread* current = nullptr;
  int live = 0;  // threads that have not returned
  int at_barrier = 0;
  int votes = 0;
  int barrier_result = 0;
  uint32_t phase = 0;         // barriers that this worker's blocks have passed
  Touched* shadow = nullptr;  // of shared memory, where kernels are watched
  unsigned char* shared = nullptr;
  size_t shared_used = 0;
  std::vector<SharedArray> arrays;
};

// The block that the calling worker runs, and its current thread.
Block& block();
Thread& self();

// Wait for every thread of the block that has not returned; return how many of them voted non-zero.
int wait_at_barrier(int vote);

// Publish `bytes` of `mine` to the other lanes of `mask`, wait for all of them, and return the data of all.
const Exchanged& meet(unsigned mask, Collective what, const void* mine, size_t bytes);

// Return the memory of one declaration of a shared array in this block: the same for all threads, initially NaN bytes.
unsigned char* shared_array(const void* declaration, size_t bytes);
unsigned char* dynamic_shared();

// Fail unless these bytes lie in one array of the block's shared memory, aligned to their number.
void require_shared(const void* start, size_t bytes, const char* what);

// Run a grid with this kernel body, whose threads must call begin_kernel() if it is launched early. Return
// cudaErrorInvalidConfiguration or cudaErrorInvalidValue as CUDA would.
cudaError_t run_grid(dim3 grid, dim3 block, int dynamic_shared_bytes, const std::function<void()>& kernel,
                     bool early = false);

// Blocks that all grids of this process have run, and those of them that came to a barrier: work is done between
// barriers, so that the others found nothing to do, if their kernel has any.
struct Counts {
  int64_t run, at_barrier;
};
Counts counts();

}  // namespace cusim
