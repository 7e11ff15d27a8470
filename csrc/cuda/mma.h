// Tensor cores and asynchronous copies. The only file with PTX; sim/tensor.h and sim/copies.h are its twins.
//
// Fragments are those of PTX: of the lane 4 g + t, a register holds neighbouring elements of one row or column, the
// first in the low bits.
//   mma of 16-bit elements, A [16, 16] and B [16, 8]:
//     a[i]: A at row g + i % 2 * 8, columns i / 2 * 8 + 2 t and the next     b[i]: B at column g, rows i * 8 + 2 t ...
//   mma of bytes, A [16, 32] and B [32, 8]:
//     a[i]: A at row g + i % 2 * 8, columns i / 2 * 16 + 4 t ... + 3         b[i]: B at column g, rows i * 16 + 4 t ...
//   sums of both, C [16, 8]:
//     c[i]: row g + i / 2 * 8, column 2 t + i % 2
#pragma once

#include <cstdint>
#include <type_traits>

#include "cuda/number.h"

#ifndef __CUDACC__
#include "sim/copies.h"
#include "sim/tensor.h"
#endif

namespace core {

// c += A B in float32, of BFloat16 or Float16. Every lane of the warp calls it.
template <typename T>
__device__ void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>);
#ifndef __CUDACC__
  cusim::mma<T, 16>(c, a, b);
#else
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#endif
}

// c += A B in int32, of int8. Every lane of the warp calls it.
__device__ inline void mma_int8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#ifndef __CUDACC__
  cusim::mma<int8_t, 32>(c, a, b);
#else
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Four matrices [8, 8] of 16-bit elements from shared memory (ldmatrix): `row` of lane 8 j + i is the address of row i
// of matrix j, aligned to 16 bytes. m[j] holds the elements 2 t and 2 t + 1 of row g of matrix j.
__device__ inline void load_matrices(uint32_t (&m)[4], const void* row) {
#ifndef __CUDACC__
  cusim::load_matrices<false>(m, row);
#else
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
#endif
}

// The same, transposed: m[j] holds the elements g of rows 2 t and 2 t + 1 of matrix j.
__device__ inline void load_matrices_transposed(uint32_t (&m)[4], const void* row) {
#ifndef __CUDACC__
  cusim::load_matrices<true>(m, row);
#else
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
#endif
}

// Start to copy 16 bytes from global to shared memory, both aligned to 16; zeros if `there` is false. The bytes are
// visible to the calling thread after copies_wait, and to others after a subsequent barrier.
__device__ inline void copy_async(void* shared, const void* global, bool there = true) {
#ifndef __CUDACC__
  cusim::copy_async(shared, global, there);
#else
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(global), "r"(there ? 16 : 0)
               : "memory");
#endif
}

// Close a group of the calling thread: its copies since the previous group, possibly none.
__device__ inline void copies_commit() {
#ifndef __CUDACC__
  cusim::copies_commit();
#else
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Wait until at most the newest Pending groups of the calling thread are in flight.
template <int Pending>
__device__ void copies_wait() {
#ifndef __CUDACC__
  cusim::copies_wait(Pending);
#else
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
#endif
}

}  // namespace core
