// Compiled for CORE_ISA_AVX512_VNNI.
#include "cpu/isa/dispatch.h"
#include "cpu/kernels/table.inl"

const core::Kernels& core::kernels_avx512_vnni() {
  return kTable;
}
