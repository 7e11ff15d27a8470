// Functions that both the CPU's kernels and the device's are made of.
#pragma once

#ifdef __CUDACC__
#define CORE_BOTH __host__ __device__ __forceinline__
#else
#define CORE_BOTH [[gnu::always_inline]] inline
#endif
