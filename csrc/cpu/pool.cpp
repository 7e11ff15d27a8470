#include "cpu/pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>
#include <x86intrin.h>

#include <algorithm>
#include <chrono>

namespace core {
namespace {

// Longer than the gaps between the ops of a step, short enough not to hurt other programs.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kLooks = 16;  // checks between readings of the clock

// In cycles of the time stamp counter, half a millisecond or less: threads yield their CPU this often, while they hold
// no jobs. Otherwise the system would preempt them at any moment, and their claimed jobs with them.
constexpr uint64_t kTurn = 1'000'000;

// Bits of Team::state: 21 each for the begin and end of the unclaimed units, the rest for the number of unfinished
// ones.
constexpr int kBits = 21;
constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;
constexpr int64_t kMostUnits = kMask;

constexpr uint64_t state_of(int64_t begin, int64_t end, int64_t unfinished) {
  return static_cast<uint64_t>(unfinished) << 2 * kBits | static_cast<uint64_t>(end) << kBits |
         static_cast<uint64_t>(begin);
}
constexpr int64_t begin_of(uint64_t state) {
  return static_cast<int64_t>(state & kMask);
}
constexpr int64_t end_of(uint64_t state) {
  return static_cast<int64_t>(state >> kBits & kMask);
}
constexpr int64_t unclaimed(uint64_t state) {
  return end_of(state) - begin_of(state);
}
constexpr int64_t unfinished(uint64_t state) {
  return static_cast<int64_t>(state >> 2 * kBits);
}

// True if a thread claims units from the beginning.
constexpr bool from_begin(int32_t thread) {
  return thread % 2 == 0;
}

// Return the state after a thread has claimed `count` units; below, the first of those units.
constexpr uint64_t claimed(uint64_t state, int64_t count, int32_t thread) {
  return from_begin(thread) ? state + state_of(count, 0, 0) : state - state_of(0, count, 0);
}
constexpr int64_t first_claimed(uint64_t state, int64_t count, int32_t thread) {
  return from_begin(thread) ? begin_of(state) : end_of(state) - count;
}

// State of a team without jobs during a run.
constexpr uint64_t kNothingToClaim = state_of(0, 0, 1);

void pin(std::thread& thread, int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  // Errors are ignored: if the CPU has gone offline, the thread runs on another.
  pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

template <typename News>
bool spin(News news) {
  const auto limit = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kLooks; i++) {
      if (news()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < limit);
  return false;
}

}  // namespace

template <typename News>
void Sleepers::wait(News news) {
  while (!spin(news)) {
    // A thread that changes the condition now either finds asleep_ set or does so early enough for news() to see it.
    const int32_t before = wakes_.load(std::memory_order_acquire);
    asleep_.store(true);
    if (!news()) wakes_.wait(before, std::memory_order_acquire);
  }
}

void Sleepers::wake() {
  if (!asleep_.load() || !asleep_.exchange(false)) return;
  wakes_.fetch_add(1, std::memory_order_release);
  wakes_.notify_all();
}

bool Turn::over() const {
  return __rdtsc() - began_ > kTurn;
}

void Turn::offer() {
  if (!over()) return;
  sched_yield();
  began_ = __rdtsc();
}

// Pins the calling thread to a CPU, and restores its affinity at the end of the scope.
class Moved {
 public:
  explicit Moved(int32_t cpu) {
    if (cpu < 0 || pthread_getaffinity_np(pthread_self(), sizeof(before_), &before_) != 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(cpu), &set);
    moved_ = pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
  }
  ~Moved() {
    if (moved_) pthread_setaffinity_np(pthread_self(), sizeof(before_), &before_);
  }
  Moved(const Moved&) = delete;
  Moved& operator=(const Moved&) = delete;

 private:
  cpu_set_t before_;
  bool moved_ = false;
};

Pool::Pool(int32_t threads, const int32_t* cpus, const int32_t* nodes)
    : size_(threads), turns_(static_cast<size_t>(threads)), done_(static_cast<size_t>(threads)) {
  if (nodes != nullptr) {
    node_of_.assign(nodes, nodes + threads);
    nodes_ = *std::max_element(nodes, nodes + threads) + 1;
    if (cpus != nullptr && nodes_ > 1) first_cpu_ = cpus[0];
  }
  teams_ = std::make_unique<Team[]>(static_cast<size_t>(nodes_));
  for (int32_t thread = 0; thread < threads; thread++) team_of(thread).size++;
  try {
    for (int32_t thread = 1; thread < threads; thread++) {
      threads_.emplace_back([this, thread] { serve(thread); });
      if (cpus != nullptr) pin(threads_.back(), cpus[thread]);
    }
  } catch (...) {
    end();
    throw;
  }
}

Pool::~Pool() {
  end();
}

void Pool::end() {
  ending_.store(true);
  for (int32_t node = 0; node < nodes_; node++) teams_[static_cast<size_t>(node)].asleep.wake();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run(const Work& work) {
  const Moved moved(first_cpu_);
  work_ = &work;
  news_.store(work.news, std::memory_order_relaxed);
  for (int32_t node = 0; node < nodes_; node++) {
    teams_[static_cast<size_t>(node)].shares.store(work.shares * teams_[static_cast<size_t>(node)].size);
  }
  Team& team = team_of(0);
  team.state.store(kNothingToClaim, std::memory_order_relaxed);
  follow(advance(0), 0);
  for (;;) {
    caller_asleep_.wait([&team] {
      const uint64_t state = team.state.load();
      return state == 0 || unclaimed(state) > 0;
    });
    if (team.state.load(std::memory_order_acquire) == 0) return;
    follow(join(0), 0);
  }
}

int64_t Pool::done() const {
  int64_t jobs = 0;
  for (const Done& each : done_) jobs += each.jobs.load(std::memory_order_relaxed);
  return jobs;
}

void Pool::serve(int32_t thread) {
  Team& team = team_of(thread);
  for (;;) {
    team.asleep.wait([this, &team] { return unclaimed(team.state.load()) > 0 || ending_.load(); });
    if (ending_.load()) return;
    follow(join(thread), thread);
  }
}

int64_t Pool::Team::share_of(int64_t left) const {
  return left == 0 ? 0 : std::max<int64_t>(1, left / shares.load(std::memory_order_relaxed));
}

// Set the jobs of a phase; return its initial state.
uint64_t Pool::Team::take(int64_t all) {
  jobs = all;
  for (shift = 0; all > kMostUnits << shift;) shift++;
  const int64_t units = (all + (int64_t{1} << shift) - 1) >> shift;
  return state_of(0, units, units);
}

// Claim units of a phase that another thread has begun.
Pool::Claim Pool::join(int32_t thread) {
  turns_[static_cast<size_t>(thread)].offer();
  // Fetched while the claim waits for the state.
  _mm_prefetch(static_cast<const char*>(news_.load(std::memory_order_relaxed)), _MM_HINT_T0);
  return claim(thread);
}

// Claim units of the phase; none if none is left.
Pool::Claim Pool::claim(int32_t thread) {
  Team& team = team_of(thread);
  uint64_t state = team.state.load(std::memory_order_relaxed);
  for (;;) {
    const int64_t count = team.share_of(unclaimed(state));
    if (count == 0) return {0, 0};
    const uint64_t next = claimed(state, count, thread);
    if (team.state.compare_exchange_weak(state, next, std::memory_order_acq_rel, std::memory_order_relaxed)) {
      return {first_claimed(state, count, thread), count};
    }
  }
}

// Finish `count` units and claim others, of the next phase if this one is over.
Pool::Claim Pool::finish(int64_t count, int32_t thread) {
  Team& team = team_of(thread);
  const bool over = turns_[static_cast<size_t>(thread)].over();
  uint64_t state = team.state.load(std::memory_order_acquire);
  while (unclaimed(state) != 0 || unfinished(state) != count) {
    const int64_t more = over ? 0 : team.share_of(unclaimed(state));
    const uint64_t next = claimed(state, more, thread) - state_of(0, 0, count);
    if (team.state.compare_exchange_weak(state, next, std::memory_order_acq_rel, std::memory_order_acquire)) {
      return {first_claimed(state, more, thread), more};
    }
  }
  if (nodes_ > 1 && busy_.fetch_sub(1, std::memory_order_acq_rel) > 1) return {0, 0};
  return advance(thread);
}

// Begin the next phase that is worth several threads, after running any smaller ones before it on this thread. Only for
// the thread that found the previous phase over, which alone owns the work's state until it stores a team's state.
Pool::Claim Pool::advance(int32_t thread) {
  const Work work = *work_;
  const int32_t node = node_of(thread);
  const Team& own = team_of(thread);
  int64_t jobs[kMostNodes];
  while (work.next(work.context, jobs)) {
    const int64_t mine = jobs[node];
    const bool all_mine = nodes_ == 1 || std::count(jobs, jobs + nodes_, 0) == nodes_ - 1;
    if (mine == 0 || !all_mine || (mine > 1 && own.size > 1)) return begin(jobs, thread);
    work.run(work.context, 0, mine, thread);
    done_[static_cast<size_t>(thread)].add(mine);
  }
  run_out();
  return {0, 0};
}

// Give each team its jobs. Return the first claim of the calling thread's own team.
Pool::Claim Pool::begin(const int64_t* jobs, int32_t thread) {
  if (nodes_ > 1) {
    busy_.store(nodes_ - static_cast<int32_t>(std::count(jobs, jobs + nodes_, 0)), std::memory_order_relaxed);
  }
  Claim mine{0, 0};
  for (int32_t node = 0; node < nodes_; node++) {
    if (jobs[node] == 0) continue;  // The phase may end without this team, so its state must not be written.
    Team& team = teams_[static_cast<size_t>(node)];
    uint64_t state = team.take(jobs[node]);
    if (node == node_of(thread)) {
      mine.count = team.share_of(unclaimed(state));
      mine.first = first_claimed(state, mine.count, thread);
      state = claimed(state, mine.count, thread);
    }
    team.state.store(state);
    team.asleep.wake();
  }
  caller_asleep_.wake();
  return mine;
}

// There are no more phases: let the caller of run() return.
void Pool::run_out() {
  team_of(0).state.store(0);
  caller_asleep_.wake();
}

// Run a claim, and further ones while there are any.
void Pool::follow(Claim claim, int32_t thread) {
  const Team& team = team_of(thread);
  while (claim.count > 0) {
    const int64_t first = claim.first << team.shift;
    const int64_t end = std::min((claim.first + claim.count) << team.shift, team.jobs);
    work_->run(work_->context, first, end, thread);
    done_[static_cast<size_t>(thread)].add(end - first);
    claim = finish(claim.count, thread);
  }
}

}  // namespace core
