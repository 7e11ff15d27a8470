#include "sim/watch.h"

#include <string>

#include "sim/arena.h"
#include "sim/block.h"

namespace cusim {

Block*& current_block();

namespace {

const char* name_of(bool write) {
  return write ? "writes" : "reads";
}

[[noreturn]] void report_race(const Block& b, const unsigned char* place, const Touch& before, bool wrote,
                              bool writes) {
  const auto* array = &b.arrays.front();
  for (const SharedArray& one : b.arrays) {
    if (place >= one.start && place < one.start + one.bytes) array = &one;
  }
  fail("a race in block (" + std::to_string(b.index.x) + ", " + std::to_string(b.index.y) + ", " +
       std::to_string(b.index.z) + "): thread " + std::to_string(b.current - b.threads.data()) + " " + name_of(writes) +
       " byte " + std::to_string(place - array->start) + " of a shared array of " + std::to_string(array->bytes) +
       " bytes, which thread " + std::to_string(before.thread) + " " + name_of(wrote) +
       ", and no barrier stands between");
}

// True if an earlier access happened before the current one. `clocks` are the current thread's clocks of its warp.
bool is_over(const Block& b, const Touch& then, const uint32_t* clocks) {
  if (then.phase < b.phase || &b.threads[then.thread] == b.current) return true;
  return then.thread / kWarpSize == b.current->warp && clocks[then.thread % kWarpSize] >= then.clock;
}

void touch_byte(Block& b, unsigned char* place, Access access, const Touch& now) {
  Touched& byte = b.shadow[place - b.shared];
  const WarpClocks& clocks = b.warps[b.current->warp].clocks[b.current->lane];
  const bool writes = access != Access::kRead, both_atomic = byte.written.atomic && now.atomic;
  if (!both_atomic && !is_over(b, byte.written, clocks.synced)) report_race(b, place, byte.written, true, writes);
  if (!writes) {
    const bool first = byte.read_first.phase < b.phase || byte.read_first.thread == now.thread;
    (first ? byte.read_first : byte.read_last) = now;
    return;
  }
  for (const Touch& reader : {byte.read_first, byte.read_last}) {
    // Any collective orders a lane's earlier reads: their results are complete before it takes part.
    if (!is_over(b, reader, clocks.met)) report_race(b, place, reader, false, true);
  }
  byte = {now, {}, {}};
}

}  // namespace

void touch(const void* start, size_t bytes, Access access) {
  Block* b = current_block();
  if (b == nullptr || b->shadow == nullptr || b->current == nullptr) return;
  auto* first = const_cast<unsigned char*>(static_cast<const unsigned char*>(start));
  if (first < b->shared || first >= b->shared + b->shared_used) return;
  const uint32_t clock = b->warps[b->current->warp].clocks[b->current->lane].met[b->current->lane];
  const auto thread = static_cast<uint16_t>(b->current - b->threads.data());
  const Touch now = {b->phase, clock, thread, access == Access::kAtomic};
  for (size_t i = 0; i < bytes; i++) touch_byte(*b, first + i, access, now);
}

}  // namespace cusim

using cusim::Access;
using cusim::touch;

// ---- hooks that GCC calls; no sanitizer runtime is linked ----

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define REPORTED(bytes)                             \
  void __tsan_read##bytes(void* place) {            \
    touch(place, bytes, Access::kRead);             \
  }                                                 \
  void __tsan_write##bytes(void* place) {           \
    touch(place, bytes, Access::kWrite);            \
  }                                                 \
  void __tsan_unaligned_read##bytes(void* place) {  \
    touch(place, bytes, Access::kRead);             \
  }                                                 \
  void __tsan_unaligned_write##bytes(void* place) { \
    touch(place, bytes, Access::kWrite);            \
  }

REPORTED(1)
REPORTED(2)
REPORTED(4)
REPORTED(8)
REPORTED(16)

void __tsan_read_range(void* place, size_t bytes) {
  touch(place, bytes, Access::kRead);
}
void __tsan_write_range(void* place, size_t bytes) {
  touch(place, bytes, Access::kWrite);
}

void __tsan_atomic_thread_fence(int) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

// Atomics used by sim/atomics.h.
#define TOLD_ATOMIC(bits, Word)                                                                                   \
  Word __tsan_atomic##bits##_load(const volatile Word* place, int) {                                              \
    touch(const_cast<const Word*>(place), sizeof(Word), Access::kAtomic);                                         \
    return __atomic_load_n(place, __ATOMIC_SEQ_CST);                                                              \
  }                                                                                                               \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile Word* place, Word* expected, Word value, int, int) { \
    touch(const_cast<const Word*>(place), sizeof(Word), Access::kAtomic);                                         \
    return __atomic_compare_exchange_n(place, expected, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);        \
  }                                                                                                               \
  Word __tsan_atomic##bits##_compare_exchange_val(volatile Word* place, Word expected, Word value, int, int) {    \
    __tsan_atomic##bits##_compare_exchange_strong(place, &expected, value, 0, 0);                                 \
    return expected;                                                                                              \
  }

TOLD_ATOMIC(32, uint32_t)
TOLD_ATOMIC(64, uint64_t)

// The hook of -fsanitize=alignment.
struct UbsanPlace {
  const char* file;
  uint32_t line, column;
};
struct UbsanType {
  uint16_t kind, info;
  char name[1];
};
struct UbsanMismatch {
  UbsanPlace place;
  UbsanType* type;
  unsigned char log_alignment, check;
};

[[noreturn]] void __ubsan_handle_type_mismatch_v1_abort(UbsanMismatch* mismatch, void* address) {
  cusim::fail(std::string(mismatch->place.file) + ":" + std::to_string(mismatch->place.line) + ": a value of type " +
              mismatch->type->name + " is not aligned to " + std::to_string(1 << mismatch->log_alignment) +
              " bytes, but lies " + std::to_string(reinterpret_cast<uintptr_t>(address) % 16) +
              " bytes behind such an address");
}

}  // extern "C"
