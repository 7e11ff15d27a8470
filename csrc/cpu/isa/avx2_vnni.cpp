// Compiled for CORE_ISA_AVX2_VNNI.
#include "cpu/isa/dispatch.h"
#include "cpu/kernels/table.inl"

const core::Kernels& core::kernels_avx2_vnni() {
  return kTable;
}
