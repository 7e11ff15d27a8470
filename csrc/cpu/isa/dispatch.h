// Detection of instruction sets, and the kernels for each.
#pragma once

#include "core_program.h"
#include "cpu/kernels.h"

namespace core {

CoreIsa best_isa();
bool has_isa(int32_t isa);

// Return the kernels for an instruction set that this machine supports.
const Kernels& kernels_of(CoreIsa isa);

// Each of these is compiled for its instruction set.
const Kernels& kernels_avx2();
const Kernels& kernels_avx2_vnni();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512_vnni();
const Kernels& kernels_avx512_bf16();
const Kernels& kernels_amx();

// Request the permission of the system to use AMX, required before the first AMX instruction; false if denied.
bool allow_amx();

}  // namespace core
