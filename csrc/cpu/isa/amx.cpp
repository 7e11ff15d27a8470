// Compiled for CORE_ISA_AMX.
#include "cpu/isa/dispatch.h"
#include "cpu/kernels/table.inl"

const core::Kernels& core::kernels_amx() {
  return kTable;
}
