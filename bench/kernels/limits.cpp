// Measures this machine's limits: bytes read from memory, and products of each kind, on one thread and on all.
// Prints one JSON object. Built for the machine that it runs on: g++ -O3 -march=native -pthread.
#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kHuge = size_t{1} << 21;
constexpr size_t kMemory = size_t{1} << 30;  // larger than any cache of most machines
constexpr size_t kCached =
    size_t{4} << 20;  // of a thread: more than its own caches hold, less than the shared one does
constexpr size_t kSlice = size_t{32} << 20;  // read in one round; read again kMemory / kSlice rounds later

std::atomic<int64_t> sink{0};  // uses results, so that the compiler removes no computation

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Seconds of the slowest thread for its part: the best of many rounds, and the median.
struct Timing {
  double best, median;
};

Timing timed(int threads, int goes, const std::function<void(int thread, int go)>& part) {
  std::vector<double> seconds(static_cast<size_t>(goes));
  std::barrier meet(threads);
  double begin = 0;
  auto body = [&](int thread) {
    for (int go = 0; go < goes; go++) {
      meet.arrive_and_wait();
      if (thread == 0) begin = now();
      part(thread, go);
      meet.arrive_and_wait();
      if (thread == 0) seconds[static_cast<size_t>(go)] = now() - begin;
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; thread++) others.emplace_back(body, thread);
  body(0);
  for (std::thread& thread : others) thread.join();
  std::sort(seconds.begin(), seconds.end());
  return {seconds.front(), seconds[seconds.size() / 2]};
}

const char* memory() {
  static const char* const base = [] {
    void* mapping = mmap(nullptr, kMemory + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) std::exit(1);
    const uintptr_t first = (reinterpret_cast<uintptr_t>(mapping) + kHuge - 1) / kHuge * kHuge;
    auto* bytes = reinterpret_cast<char*>(first);
    madvise(bytes, kMemory, MADV_HUGEPAGE);
    std::fill_n(bytes, kMemory, 1);
    return bytes;
  }();
  return base;
}

// Reads in four streams, the fastest way for a CPU core.
void read_all(const char* from, size_t bytes) {
  const size_t quarter = bytes / 4;
  __m256i sums[4] = {};
  for (size_t i = 0; i < quarter; i += 64) {
    for (size_t stream = 0; stream < 4; stream++) {
      const char* place = from + stream * quarter + i;
      _mm_prefetch(place + 2048, _MM_HINT_T0);
      sums[stream] = _mm256_xor_si256(sums[stream], _mm256_load_si256(reinterpret_cast<const __m256i*>(place)));
      sums[stream] = _mm256_xor_si256(sums[stream], _mm256_load_si256(reinterpret_cast<const __m256i*>(place + 32)));
    }
  }
  for (const __m256i& sum : sums) sink += _mm256_extract_epi64(sum, 0);
}

Timing read_memory(int threads) {
  const size_t part = kSlice / static_cast<size_t>(threads) / 4096 * 4096;
  return timed(threads, 160, [&](int thread, int go) {
    const size_t slice = static_cast<size_t>(go) % (kMemory / kSlice) * kSlice;
    read_all(memory() + slice + static_cast<size_t>(thread) * part, part);
  });
}

// Each thread reads its own part repeatedly.
Timing read_cache(int threads) {
  return timed(threads, 200,
               [&](int thread, int) { read_all(memory() + static_cast<size_t>(thread) * kCached, kCached); });
}

// Ten independent chains keep every unit busy; the empty asm keeps each result. No array: it would be kept in memory.
constexpr int kRounds = 20000;

template <typename Register, typename Operation>
void run_chains(Register zero, Operation operation) {
  Register a = zero, b = zero, c = zero, d = zero, e = zero, f = zero, g = zero, h = zero, i = zero, j = zero;
  const auto step = [operation](Register& chain) {
    chain = operation(chain);
    asm volatile("" : "+v"(chain));
  };
  for (int round = 0; round < kRounds; round++) {
    step(a), step(b), step(c), step(d), step(e), step(f), step(g), step(h), step(i), step(j);
  }
  int64_t first;
  __builtin_memcpy(&first, &a, sizeof(first));
  sink += first;
}

constexpr int kChains = 10;

// The factor of products that are instructions of their own: the compiler may not compute them once for all.
template <typename Register>
Register again(Register& x) {
  asm volatile("" : "+v"(x));
  return x;
}

void fma_256_chains() {
  const __m256 x = _mm256_set1_ps(1e-3f);
  run_chains(_mm256_setzero_ps(), [x](__m256 sum) { return _mm256_fmadd_ps(x, x, sum); });
}

void madd_int16_256_chains() {
  __m256i x = _mm256_set1_epi16(3);
  run_chains(_mm256_setzero_si256(),
             [&x](__m256i sum) { return _mm256_add_epi32(sum, _mm256_madd_epi16(again(x), x)); });
}

void madd_int8_256_chains() {
  __m256i x = _mm256_set1_epi8(3);
  run_chains(_mm256_setzero_si256(),
             [&x](__m256i sum) { return _mm256_add_epi16(sum, _mm256_maddubs_epi16(again(x), x)); });
}

#ifdef __AVXVNNI__
void vnni_int16_256_chains() {
  const __m256i x = _mm256_set1_epi16(3);
  run_chains(_mm256_setzero_si256(), [x](__m256i sum) { return _mm256_dpwssd_avx_epi32(sum, x, x); });
}

void vnni_int8_256_chains() {
  const __m256i x = _mm256_set1_epi8(3);
  run_chains(_mm256_setzero_si256(), [x](__m256i sum) { return _mm256_dpbusd_avx_epi32(sum, x, x); });
}
#endif

#ifdef __AVX512BW__
void fma_chains() {
  const __m512 x = _mm512_set1_ps(1e-3f);
  run_chains(_mm512_setzero_ps(), [x](__m512 sum) { return _mm512_fmadd_ps(x, x, sum); });
}

void madd_int16_chains() {
  __m512i x = _mm512_set1_epi16(3);
  run_chains(_mm512_setzero_si512(),
             [&x](__m512i sum) { return _mm512_add_epi32(sum, _mm512_madd_epi16(again(x), x)); });
}

void madd_int8_chains() {
  __m512i x = _mm512_set1_epi8(3);
  run_chains(_mm512_setzero_si512(),
             [&x](__m512i sum) { return _mm512_add_epi16(sum, _mm512_maddubs_epi16(again(x), x)); });
}
#endif

#ifdef __AVX512VNNI__
void vnni_int16_chains() {
  const __m512i x = _mm512_set1_epi16(3);
  run_chains(_mm512_setzero_si512(), [x](__m512i sum) { return _mm512_dpwssd_epi32(sum, x, x); });
}

void vnni_int8_chains() {
  const __m512i x = _mm512_set1_epi8(3);
  run_chains(_mm512_setzero_si512(), [x](__m512i sum) { return _mm512_dpbusd_epi32(sum, x, x); });
}
#endif

#ifdef __AVX512BF16__
void bf16_chains() {
  const auto x = reinterpret_cast<__m512bh>(_mm512_set1_epi16(0x3c00));
  run_chains(_mm512_setzero_ps(), [x](__m512 sum) { return _mm512_dpbf16_ps(sum, x, x); });
}
#endif

#ifdef __AMX_TILE__
bool amx_granted() {
  constexpr int kRequest = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
}

void configure_tiles() {
  // Static: GCC 12 takes the instruction to read eight bytes only, and would leave out stores to the others.
  struct Config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
  };
  alignas(64) static const Config config = {
      1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};
  _tile_loadconfig(&config);
  alignas(64) static const uint8_t zeros[1024] = {};
  _tile_loadd(4, zeros, 64);
  _tile_loadd(5, zeros, 64);
  _tile_loadd(6, zeros, 64);
  _tile_loadd(7, zeros, 64);
}

void amx_bf16_chains() {
  configure_tiles();
  for (int round = 0; round < kRounds / 8; round++) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
}

void amx_int8_chains() {
  configure_tiles();
  for (int round = 0; round < kRounds / 8; round++) {
    _tile_dpbusd(0, 4, 6);
    _tile_dpbusd(1, 4, 7);
    _tile_dpbusd(2, 5, 6);
    _tile_dpbusd(3, 5, 7);
  }
}
#endif

void print_rate(const char* name, const char* unit, double amount, int threads,
                const std::function<Timing(int)>& measure) {
  for (int count : {1, threads}) {
    const Timing timing = measure(count);
    const double all = amount * count / 1e9;
    std::printf("  \"%s_%s_%s\": {\"best\": %.1f, \"median\": %.1f},\n", name, unit, count == 1 ? "one" : "all",
                all / timing.best, all / timing.median);
    if (threads == 1) return;
  }
}

void print_products(const char* name, double operations, int threads, void (*chains)()) {
  print_rate(name, "gops", operations, threads,
             [chains](int count) { return timed(count, 60, [chains](int, int) { chains(); }); });
}

}  // namespace

int main(int argc, char** argv) {
  const int threads =
      argc > 1 ? std::max(1, std::atoi(argv[1])) : static_cast<int>(std::thread::hardware_concurrency());
  std::printf("{\n  \"threads\": %d,\n", threads);
  for (int count : {1, threads}) {
    const Timing timing = read_memory(count);
    std::printf("  \"memory_read_gbs_%s\": {\"best\": %.1f, \"median\": %.1f},\n", count == 1 ? "one" : "all",
                kSlice / timing.best / 1e9, kSlice / timing.median / 1e9);
  }
  print_rate("shared_cache_read", "gbs", double{kCached}, threads, read_cache);
  constexpr double kChained = double{kRounds} * kChains;
  print_products("fma_float32_256", kChained * 16, threads, fma_256_chains);
  print_products("madd_int16_256", kChained * 32, threads, madd_int16_256_chains);
  print_products("madd_int8_256", kChained * 64, threads, madd_int8_256_chains);
#ifdef __AVXVNNI__
  print_products("vnni_int16_256", kChained * 32, threads, vnni_int16_256_chains);
  print_products("vnni_int8_256", kChained * 64, threads, vnni_int8_256_chains);
#endif
#ifdef __AVX512BW__
  print_products("fma_float32", kChained * 32, threads, fma_chains);
  print_products("madd_int16", kChained * 64, threads, madd_int16_chains);
  print_products("madd_int8", kChained * 128, threads, madd_int8_chains);
#endif
#ifdef __AVX512VNNI__
  print_products("vnni_int16", kChained * 64, threads, vnni_int16_chains);
  print_products("vnni_int8", kChained * 128, threads, vnni_int8_chains);
#endif
#ifdef __AVX512BF16__
  print_products("dot_bf16", kChained * 64, threads, bf16_chains);
#endif
#ifdef __AMX_TILE__
  constexpr double kTileProducts = double{kRounds} / 8 * 4;
  if (amx_granted()) {
    print_products("amx_bf16", kTileProducts * 16 * 16 * 32 * 2, threads, amx_bf16_chains);
    print_products("amx_int8", kTileProducts * 16 * 16 * 64 * 2, threads, amx_int8_chains);
  }
#endif
  std::printf("  \"cores\": %u\n}\n", std::thread::hardware_concurrency());
}
