// Each allocation is a mapping of its own, never moved or reused; a head before the memory holds its length.
#include "cpu/memory.h"

#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

namespace core {
namespace {

constexpr int64_t kHuge = int64_t{1} << 21;

std::atomic<int64_t> count{0};

#ifdef __SANITIZE_ADDRESS__

// The sanitizer watches the ends of heap blocks, not of mappings.
void* allocate_watched(int64_t bytes) {
  const auto whole = static_cast<size_t>((bytes + 63) / 64 * 64);
  void* memory = std::aligned_alloc(64, whole);
  if (memory != nullptr) std::memset(memory, 0, whole);
  count.fetch_add(1, std::memory_order_relaxed);
  return memory;
}

#endif

// Arguments of munmap for release(), stored just before the memory.
struct Head {
  void* mapping;
  size_t length;
};

}  // namespace

void* allocate(int64_t bytes) {
  if (bytes < 0 || bytes > INT64_MAX / 2) return nullptr;
#ifdef __SANITIZE_ADDRESS__
  return allocate_watched(bytes);
#endif
  const int64_t whole = (bytes + kHuge - 1) / kHuge * kHuge;
  const size_t length = static_cast<size_t>(whole + 2 * kHuge);
  void* mapping = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping == MAP_FAILED) return nullptr;
  const auto first = reinterpret_cast<uintptr_t>(mapping) + sizeof(Head);
  const auto memory = (first + kHuge - 1) / kHuge * kHuge;
  // The advice fails on systems without huge pages, which then use small ones.
  madvise(reinterpret_cast<void*>(memory), static_cast<size_t>(whole), MADV_HUGEPAGE);
  reinterpret_cast<Head*>(memory)[-1] = {mapping, length};
  count.fetch_add(1, std::memory_order_relaxed);
  return reinterpret_cast<void*>(memory);
}

void release(void* memory) {
  if (memory == nullptr) return;
#ifdef __SANITIZE_ADDRESS__
  return std::free(memory);
#endif
  const Head head = static_cast<Head*>(memory)[-1];
  munmap(head.mapping, head.length);
}

int64_t allocations() {
  return count.load(std::memory_order_relaxed);
}

}  // namespace core
