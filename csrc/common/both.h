// CORE_BOTH marks functions that both CPU and device kernels use.
#pragma once

#ifdef __CUDACC__
#define CORE_BOTH __host__ __device__ __forceinline__
#else
#define CORE_BOTH [[gnu::always_inline]] inline
#endif
