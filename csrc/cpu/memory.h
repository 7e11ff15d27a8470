// Allocation of memory in huge pages, with a count of allocations.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace core {

// Allocate zeroed memory, aligned to 2 MiB; null if out of memory. The caller frees it with release().
void* allocate(int64_t bytes);
void release(void* memory);
int64_t allocations();

struct Release {
  void operator()(std::byte* memory) const { release(memory); }
};

using Memory = std::unique_ptr<std::byte, Release>;

}  // namespace core
