#include "cpu/cpu.h"

#include <new>
#include <system_error>

#include "common/check.h"
#include "cpu/dispatch.h"
#include "cpu/memory.h"

namespace core {
namespace {

constexpr int32_t kMostThreads = 1024;

CoreStatus check_options(const CoreCpuOptions& options) {
  if (options.threads < 1 || options.threads > kMostThreads) {
    return bad_field(CORE_BAD_THREADS, offsetof(CoreCpuOptions, threads));
  }
  if (options.isa < CORE_ISA_NONE || options.isa > best_isa() || best_isa() == CORE_ISA_NONE) {
    return bad_field(CORE_NO_ISA, offsetof(CoreCpuOptions, isa));
  }
  return CORE_OK;
}

}  // namespace
}  // namespace core

int32_t core_cpu_best_isa(void) {
  return core::best_isa();
}

CoreStatus core_cpu_create(const CoreCpuOptions* options, CoreCpu** cpu) {
  if (options == nullptr || cpu == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (const CoreStatus status = core::check_options(*options); status != CORE_OK) return status;
  const auto isa = options->isa == CORE_ISA_NONE ? core::best_isa() : static_cast<CoreIsa>(options->isa);
  try {
    *cpu = new CoreCpu{core::Pool(options->threads, options->cpus), isa, core::kernels_of(isa)};
  } catch (const std::exception&) {  // the system gives no more threads or memory
    return core::status(CORE_NO_MEMORY, 0);
  }
  return CORE_OK;
}

void core_cpu_destroy(CoreCpu* cpu) {
  delete cpu;
}

int32_t core_cpu_isa(const CoreCpu* cpu) {
  return cpu == nullptr ? CORE_ISA_NONE : cpu->isa;
}

void* core_cpu_allocate(int64_t bytes) {
  return core::allocate(bytes);
}

void core_cpu_free(void* memory) {
  core::release(memory);
}

int64_t core_cpu_allocations(void) {
  return core::allocations();
}
