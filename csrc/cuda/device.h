// Included by every kernel: CUDA when compiled by nvcc, the simulator when compiled by g++. Kernels are launched with
// launch() and declare shared memory with the two macros, so that the same source works for both.
#pragma once

#ifdef __CUDACC__

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#define SHARED_ARRAY(Type, name, count) __shared__ Type name[count]
#define DYNAMIC_SHARED(Type, name)                                      \
  extern __shared__ __align__(128) unsigned char core_dynamic_shared[]; \
  Type* name = reinterpret_cast<Type*>(core_dynamic_shared)

using Stream = cudaStream_t;

// Enqueue kernel<<<grid, block, shared_bytes, stream>>>(args...); return the runtime's error number, 0 = none.
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, Stream stream, Args&&... args) {
  constexpr int kBytesWithoutAsking = 48 * 1024;
  if (shared_bytes > kBytesWithoutAsking) {
    const auto error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

// Return how many blocks of a kernel a multiprocessor runs at once, at least 1; found once, as the cards of a process
// are alike.
template <auto kernel>
int blocks_together(int threads, int shared_bytes) {
  static const int found = [&] {
    int blocks = 0;
    const auto error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared_bytes);
    return error == cudaSuccess && blocks > 0 ? blocks : 1;
  }();
  return found;
}

#else

#include "sim/cusim.h"

#endif
