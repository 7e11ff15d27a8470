// Compiled for CORE_ISA_AMX.
#include "cpu/dispatch.h"
#include "cpu/kernels/table.inl"

const core::Kernels& core::kernels_amx() {
  return kTable;
}
