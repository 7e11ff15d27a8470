// Compiled for CORE_ISA_AVX512.
#include "cpu/isa/dispatch.h"
#include "cpu/kernels/table.inl"

const core::Kernels& core::kernels_avx512() {
  return kTable;
}
