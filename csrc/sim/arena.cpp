#include "sim/arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace cusim {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kSharedAlignment = 1024;
constexpr size_t kGuardBytes = 128;
constexpr size_t kMaxArrays = 64;
constexpr size_t kArenaBytes = kMaxSharedBytes + kMaxArrays * 2 * kGuardBytes;
static_assert(kArenaBytes % kSharedAlignment == 0);
constexpr unsigned char kPoison = 0xff;  // a NaN in every floating-point format
constexpr unsigned char kGuard = 0xa5;
constexpr char kDynamic = 0;  // its address declares the dynamic array

size_t padded(size_t bytes) {
  return (bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes;
}

#ifdef __SANITIZE_ADDRESS__
// With AddressSanitizer the access itself is reported, including reads.
void forbid(unsigned char* start, size_t bytes) {
  __asan_poison_memory_region(start, bytes);
}
void allow(unsigned char* start, size_t bytes) {
  __asan_unpoison_memory_region(start, bytes);
}
bool untouched(const unsigned char*, size_t) {
  return true;
}
#else
void forbid(unsigned char* start, size_t bytes) {
  memset(start, kGuard, bytes);
}
void allow(unsigned char*, size_t) {}
bool untouched(const unsigned char* start, size_t bytes) {
  return std::all_of(start, start + bytes, [](unsigned char byte) { return byte == kGuard; });
}
#endif

// The gap between the end of an array and the next one.
size_t guard_bytes(const SharedArray& array) {
  return padded(array.bytes) - array.bytes + kGuardBytes;
}

}  // namespace

Arena::Arena() : shared_(static_cast<unsigned char*>(aligned_alloc(kSharedAlignment, kArenaBytes))) {}

Arena::~Arena() {
  allow(shared_, kArenaBytes);
  free(shared_);
  if (stacks_ != nullptr) munmap(stacks_, threads_ * (kStackBytes + kPageBytes));
}

void Arena::reserve_stacks(size_t threads) {
  if (threads <= threads_) return;
  if (stacks_ != nullptr) munmap(stacks_, threads_ * (kStackBytes + kPageBytes));
  threads_ = threads;
  void* mapped = mmap(nullptr, threads * (kStackBytes + kPageBytes), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) fail("no memory for the stacks of " + std::to_string(threads) + " threads");
  stacks_ = static_cast<unsigned char*>(mapped);
  for (size_t i = 0; i < threads; i++) mprotect(stack(i) - kPageBytes, kPageBytes, PROT_NONE);
}

unsigned char* Arena::stack(size_t thread) const {
  return stacks_ + thread * (kStackBytes + kPageBytes) + kPageBytes;
}

Touched* Arena::shadow() {
#ifdef CUSIM_WATCHED
  if (shadow_ == nullptr) shadow_ = std::make_unique<Touched[]>(kArenaBytes);
#endif
  return shadow_.get();
}

void begin_shared(Block& block, const Arena& arena, size_t dynamic_bytes) {
  block.shared = arena.shared();
  block.shared_used = 0;
  block.arrays.clear();
  allow(block.shared, kArenaBytes);
  add_shared_array(block, &kDynamic, dynamic_bytes);
}

unsigned char* add_shared_array(Block& block, const void* declaration, size_t bytes) {
  size_t data_bytes = bytes;
  for (const SharedArray& array : block.arrays) data_bytes += array.bytes;
  if (data_bytes > kMaxSharedBytes || block.arrays.size() == kMaxArrays) fail("too much shared memory");
  const SharedArray array{declaration, block.shared + block.shared_used, bytes};
  memset(array.start, kPoison, bytes);
  forbid(array.start + bytes, guard_bytes(array));
  block.shared_used += bytes + guard_bytes(array);
  block.arrays.push_back(array);
  return array.start;
}

void check_shared(const Block& block) {
  for (const SharedArray& array : block.arrays) {
    if (!untouched(array.start + array.bytes, guard_bytes(array))) fail("a write past the end of a shared array");
  }
}

}  // namespace cusim
