// The definition of CoreCpu.
#pragma once

#include <cstdint>
#include <memory>

#include "core_program.h"
#include "cpu/kernels.h"
#include "cpu/pool.h"

struct CoreCpu {
  core::Pool pool;
  CoreIsa isa;
  const core::Kernels& kernels;
};
