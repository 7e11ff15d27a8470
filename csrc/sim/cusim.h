// CUDA on the CPU, for tests: a .cu file that includes cuda/device.h compiles with g++ against this header and runs.
//
// Every CUDA thread is a fiber. Fibers switch only at barriers and warp collectives, in an order that the environment
// variable CUSIM_ORDER sets at each launch: forward (the default), reverse, or random:SEED. Results that depend on the
// order indicate races: run a kernel at least in forward and in reverse order. Shared memory starts as NaN bytes, and
// the target of cp.async is NaN bytes until its thread has waited, so that reads before writes show.
//
// These errors end the process with a message that begins with "cusim:": deadlocks, lanes that meet in different
// collectives or under a wrong mask, tensor cores without the whole warp, writes past a shared array, and cp.async or
// ldmatrix at a wrong address, and threads of a kernel launched early that meet others or return before begin_kernel().
// If kernels are compiled to be watched (sim/watch.h), so do misaligned accesses and data
// races on shared memory: two threads of a block access the same byte, at least one writes, not both atomically, and no
// barrier, or within a warp __syncwarp, orders them.
//
// The simulator checks results and synchronization. It does not model speed, bank conflicts, registers, or the order in
// which one block sees another's writes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <vector_functions.h>

#include <algorithm>
#include <cmath>

#include "sim/atomics.h"
#include "sim/block.h"
#include "sim/collectives.h"

#undef __device__
#undef __forceinline__
#undef __global__
#undef __grid_constant__
#undef __host__
#undef __launch_bounds__
#undef __shared__
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __host__
#define __launch_bounds__(...)

// The lambda's type differs for each declaration, which distinguishes declarations.
#define SHARED_ARRAY(Type, name, count) Type(&name)[count] = ::cusim::declared_array<Type, count>([] {})
#define DYNAMIC_SHARED(Type, name) Type* name = reinterpret_cast<Type*>(::cusim::dynamic_shared())

#define threadIdx (::cusim::self().index)
#define blockIdx (::cusim::block().index)
#define blockDim (::cusim::block().size)
#define gridDim (::cusim::block().grid)

using Stream = void*;
using std::max;
using std::min;

namespace cusim {

template <typename T, size_t N, typename Declaration>
T (&declared_array(Declaration))
[N] {
  static char key = 0;
  return *reinterpret_cast<T(*)[N]>(shared_array(&key, sizeof(T[N])));
}

}  // namespace cusim

// Run the whole grid, then return; the stream is ignored. Arguments are copied as in a real launch. Return the error
// number that CUDA would return for this configuration, 0 = none.
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, Stream, Args&&... args) {
  return cusim::run_grid(grid, block, shared_bytes, [&] { kernel(static_cast<Params>(args)...); });
}

// Likewise, with all threads held to begin_kernel().
template <typename... Params, typename... Args>
int launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, Stream, Args&&... args) {
  return cusim::run_grid(grid, block, shared_bytes, [&] { kernel(static_cast<Params>(args)...); }, true);
}

inline void begin_kernel() {
  cusim::self().begun = true;
}

// Return a number of blocks that run at once on a multiprocessor, of which the simulator has none.
template <auto kernel>
int blocks_together(int, int) {
  return 2;
}

inline const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidValue:
      return "invalid argument";
    default:
      return "unrecognized error code";
  }
}
