// Compiled for CORE_ISA_AVX2.
#include "cpu/isa/dispatch.h"
#include "cpu/kernels/table.inl"

const core::Kernels& core::kernels_avx2() {
  return kTable;
}
