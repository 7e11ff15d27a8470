#include "cpu/exchange.h"

#include <immintrin.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <climits>
#include <ctime>
#include <new>

#include "common/check.h"

namespace core {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPage = 4096;
constexpr int64_t kMostBytes = int64_t{1} << 40;  // of a part
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kLooks = 16;  // between readings of the clock
// A sleep, after which a rank looks whether another has left.
constexpr timespec kNap = {0, 50'000'000};
// A rank that hangs is found by the heartbeat of its core, long before.
constexpr auto kLimit = std::chrono::hours(1);

// A word of the memory, in a cache line of its own. Waking is by the system, across processes.
struct alignas(64) Word {
  std::atomic<uint32_t> value;

  void set(uint32_t to) {
    value.store(to);
    wake();
  }
  void wake() { syscall(SYS_futex, &value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }
  void sleep(uint32_t seen) { syscall(SYS_futex, &value, FUTEX_WAIT, seen, &kNap, nullptr, 0); }
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(Word) == 64);

// The memory begins with these, 0 at first.
struct Words {
  Word left;                   // 1: a rank has left
  Word published[kMostRanks];  // number of each rank's last exchange
};

Words& words_of(std::byte* memory) {
  return *reinterpret_cast<Words*>(memory);
}

constexpr int64_t up_to_page(int64_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

constexpr int64_t kFirstSlot = up_to_page(sizeof(Words));

int64_t bytes_of(const CoreExchangeOptions& options) {
  return kFirstSlot + 2 * options.ranks * up_to_page(options.part_bytes);
}

CoreStatus check_options(const CoreExchangeOptions* options) {
  Check check(options);
  if (!check.ok()) return check.result();
  check.that(options->part_bytes >= 1 && options->part_bytes <= kMostBytes, CORE_BAD_EXTENT, options->part_bytes);
  check.that(options->ranks >= 2 && options->ranks <= kMostRanks, CORE_BAD_COUNT, options->ranks);
  check.that(options->rank >= 0 && options->rank < options->ranks, CORE_BAD_SHAPE, options->rank);
  return check.result();
}

// True if `number` is `other` or comes after it.
bool reached(uint32_t number, uint32_t other) {
  return static_cast<int32_t>(number - other) >= 0;
}

template <typename News>
bool spin(News news) {
  const auto limit = Clock::now() + kSpin;
  do {
    for (int i = 0; i < kLooks; i++) {
      if (news()) return true;
      _mm_pause();
    }
  } while (Clock::now() < limit);
  return false;
}

}  // namespace
}  // namespace core

CoreExchange::CoreExchange(const CoreExchangeOptions& options, std::byte* memory)
    : part_bytes(options.part_bytes), rank(options.rank), ranks(options.ranks), memory_(memory) {}

CoreExchange::~CoreExchange() {
  munmap(memory_, static_cast<size_t>(core::bytes_of({part_bytes, 0, rank, ranks})));
}

std::byte* CoreExchange::slot(int32_t of, uint32_t number) const {
  return memory_ + core::kFirstSlot + (2 * of + static_cast<int32_t>(number % 2)) * core::up_to_page(part_bytes);
}

float* CoreExchange::own() const {
  return reinterpret_cast<float*>(slot(rank, number_ + 1));
}

const float* CoreExchange::part(int32_t of) const {
  return reinterpret_cast<const float*>(slot(of, number_));
}

void CoreExchange::meet() {
  number_++;
  core::words_of(memory_).published[rank].set(number_);
  for (int32_t other = 0; other < ranks; other++) {
    if (!wait_for(other)) return leave();
  }
}

// False: it has left, or does not come.
bool CoreExchange::wait_for(int32_t other) const {
  core::Word& word = core::words_of(memory_).published[other];
  const auto limit = core::Clock::now() + core::kLimit;
  while (!core::spin([&] { return core::reached(word.value.load(std::memory_order_acquire), number_); })) {
    if (lost() || core::Clock::now() > limit) return false;
    const uint32_t seen = word.value.load(std::memory_order_acquire);
    if (!core::reached(seen, number_)) word.sleep(seen);
  }
  return true;
}

void CoreExchange::leave() {
  core::Words& words = core::words_of(memory_);
  words.left.set(1);
  for (int32_t each = 0; each < ranks; each++) words.published[each].wake();
}

bool CoreExchange::lost() const {
  return core::words_of(memory_).left.value.load(std::memory_order_acquire) != 0;
}

int64_t core_exchange_bytes(const CoreExchangeOptions* options) {
  return core::check_options(options) == CORE_OK ? core::bytes_of(*options) : 0;
}

CoreStatus core_exchange_open(const CoreExchangeOptions* options, CoreExchange** exchange) {
  if (exchange == nullptr) return core::status(CORE_NULL_POINTER, 0);
  if (const CoreStatus status = core::check_options(options); status != CORE_OK) return status;
  core::Check check(options);
  const int64_t bytes = core::bytes_of(*options);
  struct stat file;
  // Memory beyond the end of a file cannot be accessed.
  check.that(fstat(options->file, &file) == 0 && file.st_size == bytes, CORE_BAD_SHAPE, options->file);
  if (!check.ok()) return check.result();
  // The mapping does not need the descriptor, which stays the caller's.
  void* memory = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, options->file, 0);
  if (memory == MAP_FAILED) return core::status(CORE_NO_MEMORY, 0);
  *exchange = new (std::nothrow) CoreExchange(*options, static_cast<std::byte*>(memory));
  if (*exchange != nullptr) return CORE_OK;
  munmap(memory, static_cast<size_t>(bytes));
  return core::status(CORE_NO_MEMORY, 0);
}

void core_exchange_close(CoreExchange* exchange) {
  delete exchange;
}

void core_exchange_leave(CoreExchange* exchange) {
  if (exchange != nullptr) exchange->leave();
}
