#include "cpu/cpu.h"

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "common/check.h"
#include "cpu/isa/dispatch.h"
#include "cpu/memory.h"
#include "cpu/weight.h"

namespace core {
namespace {

constexpr int32_t kMostThreads = 1024;
constexpr int64_t kPage = 4096;

// True if nodes are numbered without gaps and the first thread is on node 0.
bool are_nodes(const int32_t* nodes, int32_t threads) {
  bool has_threads[kMostNodes] = {};
  int32_t count = 0;
  for (int32_t i = 0; i < threads; i++) {
    if (nodes[i] < 0 || nodes[i] >= kMostNodes) return false;
    has_threads[nodes[i]] = true;
    count = std::max(count, nodes[i] + 1);
  }
  return nodes[0] == 0 && std::count(has_threads, has_threads + count, true) == count;
}

CoreStatus check_options(const CoreCpuOptions* options) {
  Check check(options);
  if (!check.ok()) return check.result();
  const auto& [cpus, nodes, threads, isa] = *options;
  const bool known = has_isa(isa == CORE_ISA_NONE ? best_isa() : isa);
  check.that(threads >= 1 && threads <= kMostThreads, CORE_BAD_THREADS, threads).that(known, CORE_NO_ISA, isa);
  if (check.ok() && nodes != nullptr) check.that(are_nodes(nodes, threads), CORE_BAD_THREADS, nodes);
  return check.result();
}

// Faults in pages on their nodes, in one phase.
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

const char* device_error_text(int) {
  return "the CPU has no device errors";
}

}  // namespace core

int32_t core_cpu_best_isa(void) {
  return core::best_isa();
}

int32_t core_cpu_has_isa(int32_t isa) {
  return core::has_isa(isa) ? 1 : 0;
}

CoreStatus core_cpu_create(const CoreCpuOptions* options, CoreCpu** cpu) {
  if (cpu == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (const CoreStatus status = core::check_options(options); status != CORE_OK) return status;
  const auto isa = options->isa == CORE_ISA_NONE ? core::best_isa() : static_cast<CoreIsa>(options->isa);
  try {
    *cpu = new CoreCpu{core::Pool(options->threads, options->cpus, options->nodes), isa, core::kernels_of(isa)};
  } catch (const std::exception&) {  // out of threads or memory
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
