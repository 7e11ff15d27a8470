// Compiled for CORE_ISA_AVX512_BF16.
#include "cpu/isa/dispatch.h"
#include "cpu/kernels/table.inl"

const core::Kernels& core::kernels_avx512_bf16() {
  return kTable;
}
