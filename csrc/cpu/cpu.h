// What a CoreCpu is.
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

namespace core {

// body(thread) on every thread of a pool.
template <typename Body>
void run_on(Pool& pool, Body& body) {
  pool.run([](void* context, int32_t thread) { (*static_cast<Body*>(context))(thread); }, &body);
}

}  // namespace core
