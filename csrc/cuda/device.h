// Included by every kernel: CUDA when compiled by nvcc, the simulator when compiled by g++. Kernels are launched with
// launch() or launch_early() and declare shared memory with the two macros, so that the same source works for both.
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

// Wait until all kernels before this one have ended and what they wrote is visible; from then on the next one may be
// set up (programmatic dependent launch). What launch_early() launches begins with it, in every thread: even one that
// has nothing to do, since the kernel after the next counts on this one to have waited.
__device__ inline void begin_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// True if begin_kernel() waits in a kernel's code, as in that for compute capability 9.0 and later. Found once, as all
// kernels are compiled for the same cards, and those of a process are alike.
template <typename Kernel>
bool waits_at_begin(Kernel kernel) {
  static const bool found = [&] {
    cudaFuncAttributes attributes{};
    return cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return found;
}

template <typename... Params, typename... Args>
int launch_with(bool early, void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, Stream stream,
                Args&&... args) {
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
  cudaLaunchAttribute beside_the_last{};
  beside_the_last.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  beside_the_last.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &beside_the_last;
  config.numAttrs = early ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, static_cast<Params>(args)...);
}

// Enqueue kernel<<<grid, block, shared_bytes, stream>>>(args...); return the runtime's error number, 0 = none.
template <typename... Params, typename... Args>
int launch(void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, Stream stream, Args&&... args) {
  return launch_with(false, kernel, grid, block, shared_bytes, stream, args...);
}

// Likewise for a kernel that begins with begin_kernel(): it is set up while the one before it ends, where the card can.
template <typename... Params, typename... Args>
int launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, int shared_bytes, Stream stream, Args&&... args) {
  return launch_with(waits_at_begin(kernel), kernel, grid, block, shared_bytes, stream, args...);
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
