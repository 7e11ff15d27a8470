// CUDA on the CPU, for tests: a .cu file that includes cuda/device.h compiles with g++ against this header and runs.
//
// Every CUDA thread is a fiber; fibers change places only at barriers and warp collectives, in an order that the
// environment variable CUSIM_ORDER sets at each launch: forward (the default), reverse, or random:SEED. Results that
// depend on the order are races: run a kernel in forward and in reverse at least. Shared memory starts as NaN bytes,
// so a read before the write shows. Threads that wait for what never comes, lanes that meet in different collectives
// or under a wrong mask, writes past a shared array, and cp.async or ldmatrix at a wrong address end the process with a
// message that begins with "cusim:". Where kernels are compiled to be watched (sim/watch.h), so do threads of a block
// that touch the same shared memory, one of them writing other than by an atomic, with neither a barrier nor, within a
// warp, a __syncwarp between, and values at addresses that are not aligned to their type. What cp.async copies is NaN
// bytes until its thread has waited for it.
//
// The simulator tells what a kernel computes and how it synchronises. It tells nothing about speed, bank conflicts,
// registers, or the order in which one block sees another's writes.
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

// The lambda's type is another for each declaration, which tells declarations apart.
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

// Runs the whole grid before it returns; the stream does not matter. Arguments are copied as a real launch copies
// them. Returns the error number that CUDA would return for this configuration, 0 = none.
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, Stream, Args&&... args) {
  return cusim::run_grid(grid, block, shared_bytes, [&] { kernel(static_cast<Params>(args)...); });
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
