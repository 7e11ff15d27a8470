#include "cpu/cpu.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "common/check.h"
#include "cpu/dispatch.h"
#include "cpu/memory.h"
#include "cpu/weight.h"

namespace core {
namespace {

constexpr int32_t kMostThreads = 1024;
constexpr int64_t kPage = 4096;

// Every node has threads, and the first of all is of the first.
CoreStatus check_nodes(const CoreCpuOptions& options) {
  if (options.nodes == nullptr) return CORE_OK;
  bool has_threads[kMostNodes] = {};
  int32_t nodes = 0;
  for (int32_t i = 0; i < options.threads; i++) {
    const int32_t node = options.nodes[i];
    if (node < 0 || node >= kMostNodes) return bad_field(CORE_BAD_THREADS, offsetof(CoreCpuOptions, nodes));
    has_threads[node] = true;
    nodes = std::max(nodes, node + 1);
  }
  const bool gaps = std::count(has_threads, has_threads + nodes, true) != nodes;
  return gaps || options.nodes[0] != 0 ? bad_field(CORE_BAD_THREADS, offsetof(CoreCpuOptions, nodes)) : CORE_OK;
}

CoreStatus check_options(const CoreCpuOptions& options) {
  if (options.threads < 1 || options.threads > kMostThreads) {
    return bad_field(CORE_BAD_THREADS, offsetof(CoreCpuOptions, threads));
  }
  if (options.isa < CORE_ISA_NONE || options.isa > best_isa() || best_isa() == CORE_ISA_NONE) {
    return bad_field(CORE_NO_ISA, offsetof(CoreCpuOptions, isa));
  }
  return check_nodes(options);
}

// Pages to be taken from the system: one phase.
struct Touching {
  const Pool& pool;
  volatile char* place;
  int64_t bytes, stride;
  bool begun = false;

  bool next(int64_t* jobs) {
    std::fill_n(jobs, pool.nodes(), (bytes + kPage - 1) / kPage);
    return !std::exchange(begun, true) && bytes > 0;
  }

  void run(int64_t first, int64_t last, int32_t thread) const {
    volatile char* shard = place + pool.node_of(thread) * stride;
    for (int64_t page = first; page < last; page++) shard[page * kPage] = 0;
  }
};

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
    *cpu = new CoreCpu{core::Pool(options->threads, options->cpus, options->nodes), isa, core::kernels_of(isa)};
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

int64_t core_cpu_progress(const CoreCpu* cpu) {
  return cpu == nullptr ? 0 : cpu->pool.done();
}

void* core_cpu_allocate(int64_t bytes) {
  return core::allocate(bytes);
}

void core_cpu_free(void* memory) {
  core::release(memory);
}

CoreStatus core_cpu_touch(CoreCpu* cpu, void* place, int64_t bytes, int64_t stride) {
  if (cpu == nullptr || place == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (bytes < 0 || (cpu->pool.nodes() > 1 && stride < bytes)) return core::status(CORE_BAD_EXTENT, 0);
  core::Touching touching{cpu->pool, static_cast<volatile char*>(place), bytes, stride};
  cpu->pool.run({[](void* context, int64_t* jobs) { return static_cast<core::Touching*>(context)->next(jobs); },
                 [](void* context, int64_t first, int64_t last, int32_t thread) {
                   static_cast<const core::Touching*>(context)->run(first, last, thread);
                 },
                 &touching});
  return CORE_OK;
}

int64_t core_cpu_allocations(void) {
  return core::allocations();
}
