// Runs the blocks of a grid on worker threads, and the threads of a block in the order given by CUSIM_ORDER.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "sim/arena.h"
#include "sim/block.h"

namespace cusim {

Block*& current_block();
void run_thread();

namespace {

std::atomic<int64_t> blocks_run{0}, blocks_at_barrier{0};

constexpr unsigned kMaxThreads = 1024;
constexpr unsigned kMaxGridYZ = 65535;

enum class Direction { kForward, kReverse, kRandom };

struct Order {
  Direction direction;
  unsigned seed;
};

Order order_from_environment() {
  const char* text = getenv("CUSIM_ORDER");
  const std::string order = text == nullptr ? "forward" : text;
  if (order == "forward") return {Direction::kForward, 0};
  if (order == "reverse") return {Direction::kReverse, 0};
  char* end = nullptr;
  const std::string prefix = "random:";
  if (order.starts_with(prefix) && order.size() > prefix.size()) {
    const unsigned long seed = strtoul(order.c_str() + prefix.size(), &end, 10);
    if (*end == '\0') return {Direction::kRandom, static_cast<unsigned>(seed)};
  }
  fail("CUSIM_ORDER is \"" + order + "\": it must be forward, reverse or random:SEED");
}

uint3 index_in(dim3 extent, long number) {
  const auto x = static_cast<unsigned>(number % extent.x);
  const auto y = static_cast<unsigned>(number / extent.x % extent.y);
  return {x, y, static_cast<unsigned>(number / extent.x / extent.y)};
}

void start_threads(Block& b, const Arena& arena) {
  const int threads = static_cast<int>(b.threads.size());
  b.warps.assign((threads + kWarpSize - 1) / kWarpSize, Warp{});
  b.live = threads;
  b.at_barrier = b.votes = 0;
  for (int i = 0; i < threads; i++) {
    Thread& thread = b.threads[i];
    thread.index = index_in(b.size, i);
    thread.warp = i / kWarpSize;
    thread.lane = i % kWarpSize;
    thread.state = State::kReady;
    thread.begun = !b.early;
    thread.copies.clear();
    thread.groups = 0;
    thread.fiber.prepare(arena.stack(i), Arena::kStackBytes, &run_thread);
    b.warps[thread.warp].live |= 1u << thread.lane;
    b.warps[thread.warp].clocks[thread.lane].met[thread.lane] = 1;  // no other lane has seen it yet
  }
}

bool run_if_ready(Block& b, Thread& thread) {
  if (thread.state != State::kReady) return false;
  b.current = &thread;
  thread.fiber.resume();
  return true;
}

// Run the threads [first, last) of the order until all of them wait or have returned.
bool run_until_stuck(Block& b, const std::vector<int>& order, size_t first, size_t last) {
  bool moved = false;
  for (bool again = true; again;) {
    again = false;
    for (size_t i = first; i < last; i++) again |= run_if_ready(b, b.threads[order[i]]);
    moved |= again;
  }
  return moved;
}

// One pass over the block, warp after warp, each as far as it gets: this lets warps diverge as far as possible.
bool run_warps(Block& b, const std::vector<int>& order) {
  bool moved = false;
  for (size_t first = 0; first < order.size();) {
    size_t last = first;
    while (last < order.size() && order[last] / kWarpSize == order[first] / kWarpSize) last++;
    moved |= run_until_stuck(b, order, first, last);
    first = last;
  }
  return moved;
}

// A pseudo-random generator for shuffling.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t below(uint64_t limit) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return (state_ >> 33) % limit;
  }

 private:
  uint64_t state_;
};

bool run_shuffled(Block& b, std::vector<int>& order, Random& random) {
  for (size_t i = order.size() - 1; i > 0; i--) std::swap(order[i], order[random.below(i + 1)]);
  bool moved = false;
  for (const int i : order) moved |= run_if_ready(b, b.threads[i]);
  return moved;
}

std::string hex(unsigned lanes) {
  char text[16];
  snprintf(text, sizeof text, "%x", lanes);
  return text;
}

[[noreturn]] void report_deadlock(const Block& b) {
  std::string text = "deadlock in block (" + std::to_string(b.index.x) + ", " + std::to_string(b.index.y) + ", " +
                     std::to_string(b.index.z) + "): " + std::to_string(b.at_barrier) + " of " +
                     std::to_string(b.live) + " threads wait at a barrier";
  for (size_t w = 0; w < b.warps.size(); w++) {
    for (const auto& [mask, meeting] : b.warps[w].meetings) {
      if (meeting.arrived == 0) continue;
      const unsigned missing = mask & b.warps[w].live & ~meeting.arrived;
      text += "; in warp " + std::to_string(w) + " lanes " + hex(meeting.arrived) + " wait for lanes " + hex(missing);
    }
  }
  fail(text);
}

void run_block(Block& b, Arena& arena, size_t dynamic_bytes, Order order, long number) {
  begin_shared(b, arena, dynamic_bytes);
  b.shadow = arena.shadow();
  b.phase = arena.phase + 1;
  start_threads(b, arena);
  std::vector<int> threads(b.threads.size());
  for (size_t i = 0; i < threads.size(); i++) threads[i] = static_cast<int>(i);
  if (order.direction == Direction::kReverse) std::reverse(threads.begin(), threads.end());
  Random random((uint64_t{order.seed} << 32) + static_cast<uint64_t>(number));
  while (b.live > 0) {
    const bool moved = order.direction == Direction::kRandom ? run_shuffled(b, threads, random) : run_warps(b, threads);
    if (!moved) report_deadlock(b);
  }
  blocks_run++;
  if (b.phase != arena.phase + 1) blocks_at_barrier++;
  arena.phase = b.phase;
  check_shared(b);
}

cudaError_t check_launch(dim3 grid, dim3 block, int dynamic_bytes) {
  const unsigned long threads = 1ul * block.x * block.y * block.z;
  const unsigned long blocks = 1ul * grid.x * grid.y * grid.z;
  if (threads == 0 || threads > kMaxThreads || blocks == 0 || grid.x > INT32_MAX) return cudaErrorInvalidConfiguration;
  if (grid.y > kMaxGridYZ || grid.z > kMaxGridYZ) return cudaErrorInvalidConfiguration;
  if (dynamic_bytes < 0 || static_cast<size_t>(dynamic_bytes) > kMaxSharedBytes) return cudaErrorInvalidValue;
  return cudaSuccess;
}

}  // namespace

Counts counts() {
  return {blocks_run, blocks_at_barrier};
}

cudaError_t run_grid(dim3 grid, dim3 block, int dynamic_bytes, const std::function<void()>& kernel, bool early) {
  if (const cudaError_t error = check_launch(grid, block, dynamic_bytes); error != cudaSuccess) return error;
  const long blocks = long{grid.x} * grid.y * grid.z;
  const Order order = order_from_environment();
  std::atomic<long> next{0};
  const auto work = [&] {
    static thread_local Arena arena;
    Block b;
    b.size = block;
    b.grid = grid;
    b.kernel = kernel;
    b.early = early;
    b.threads.resize(block.x * block.y * block.z);
    arena.reserve_stacks(b.threads.size());
    current_block() = &b;
    for (long i; (i = next++) < blocks;) {
      const long number = order.direction == Direction::kReverse ? blocks - 1 - i : i;
      b.index = index_in(grid, number);
      run_block(b, arena, static_cast<size_t>(dynamic_bytes), order, number);
    }
    current_block() = nullptr;
  };
  const long workers = std::min<long>(blocks, std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> others;
  for (long i = 1; i < workers; i++) others.emplace_back(work);
  work();
  for (std::thread& other : others) other.join();
  return cudaSuccess;
}

}  // namespace cusim
