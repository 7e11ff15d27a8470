// Which instruction sets this machine has, and the kernels of each.
#pragma once

#include "core_program.h"
#include "cpu/kernels.h"

namespace core {

CoreIsa best_isa();

// The kernels of an instruction set that the machine has.
const Kernels& kernels_of(CoreIsa isa);

// Each of these is compiled for its instruction set.
const Kernels& kernels_avx2();
const Kernels& kernels_avx512();
const Kernels& kernels_avx512_bf16();
const Kernels& kernels_amx();

// What a thread must ask of the system before its first AMX instruction; false: it is not granted.
bool allow_amx();

}  // namespace core
