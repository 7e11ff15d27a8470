// Fails each allocation in turn: creating threads, opening an exchange and recording a program end with a status then,
// and no block and no mapping of what was begun is left.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

#include "core_program.h"

namespace {

std::atomic<int64_t> left = INT64_MAX;  // allocations until one fails
std::atomic<int64_t> held = 0;

// Mappings of the file of an exchange.
int mappings() {
  std::FILE* maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  int found = 0;
  while (std::fgets(line, sizeof line, maps) != nullptr) found += std::strstr(line, "memfd:parts") != nullptr;
  std::fclose(maps);
  return found;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* memory = --left < 0 ? nullptr : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  held++;
  return memory;
}

void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  void* memory = --left < 0 ? nullptr : std::aligned_alloc(align, (bytes + align - 1) / align * align);
  if (memory == nullptr) throw std::bad_alloc();
  held++;
  return memory;
}

void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  void* memory = --left < 0 ? nullptr : std::malloc(bytes);
  if (memory != nullptr) held++;
  return memory;
}

void operator delete(void* memory) noexcept {
  if (memory != nullptr) held--;
  std::free(memory);
}

void operator delete(void* memory, std::size_t) noexcept {
  operator delete(memory);
}

void operator delete(void* memory, std::align_val_t) noexcept {
  operator delete(memory);
}

void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  operator delete(memory);
}

namespace {

CoreStatus open_exchange() {
  CoreExchangeOptions options{};
  options.ranks = 2;
  options.part_bytes = 4096;
  options.file = memfd_create("parts", 0);
  if (options.file < 0 || ftruncate(options.file, core_exchange_bytes(&options)) != 0) std::exit(2);
  CoreExchange* exchange = nullptr;
  const CoreStatus status = core_exchange_open(&options, &exchange);
  close(options.file);
  core_exchange_close(exchange);
  return status;
}

CoreStatus record(CoreCpu* cpu) {
  const CoreValue x{0, 16, CORE_ROWS_TOKENS}, y{64, 16, CORE_ROWS_TOKENS};
  const CoreShape shape{128, 4, 4, 4, 64, 1, 1, 1, 16, 16, CORE_KV_FLOAT32, 8, 0};
  const float ones[16] = {};
  const CoreNorm norm{ones, x, {}, {}, y, 1e-5f};
  CoreProgram* program = nullptr;
  CoreStatus status = core_program_create(cpu, &shape, &program);
  for (int i = 0; i < 40 && status == CORE_OK; i++) status = core_program_norm(program, &norm);
  core_program_destroy(program);
  return status;
}

CoreStatus all() {
  const CoreCpuOptions options{nullptr, nullptr, 2, CORE_ISA_NONE};
  CoreCpu* cpu = nullptr;
  CoreStatus status = core_cpu_create(&options, &cpu);
  if (status == CORE_OK) status = record(cpu);
  core_cpu_destroy(cpu);
  return status == CORE_OK ? open_exchange() : status;
}

}  // namespace

int main() {
  CoreStatus status = all();  // Whatever is allocated once.
  for (int64_t allocations = 0; allocations < 1000; allocations++) {
    const int64_t before = held;
    left = allocations;
    status = all();
    left = INT64_MAX;
    if (held != before) std::fprintf(stderr, "%lld blocks are left\n", static_cast<long long>(held - before));
    if (mappings() != 0) return 1;
    if (held != before || (status & 0xff) != (status == CORE_OK ? CORE_OK : CORE_NO_MEMORY)) return 1;
    if (status == CORE_OK) {
      std::printf("%lld failed\n", static_cast<long long>(allocations));
      return allocations < 4;
    }
  }
  return 1;
}
