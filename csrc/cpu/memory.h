// Memory in huge pages, and how often it was asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace core {

// Zeroed, aligned to 2 MiB; null where there is none.
void* allocate(int64_t bytes);
void release(void* memory);
int64_t allocations();

struct Release {
  void operator()(std::byte* memory) const { release(memory); }
};

using Memory = std::unique_ptr<std::byte, Release>;

}  // namespace core
