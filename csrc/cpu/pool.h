// Threads that work through phases of jobs together.
//
// No thread waits for another to come: a phase is over when its jobs are, whoever ran them. A thread that the system
// holds up costs what it has begun, and takes part again where the others have come to.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace core {

constexpr int32_t kMostNodes = 64;

// Phases, one after the other.
struct Work {
  // Goes to the next phase, and writes the number of jobs that each node has, less than 2^40, of which some has some;
  // false: there is no further phase. Called by any thread, when every job of the phase before has been run.
  bool (*next)(void* context, int64_t* jobs);
  // Runs a node's jobs first ... last - 1 of the phase, on a thread of that node; those of one phase run in any order,
  // on several threads at once.
  void (*run)(void* context, int64_t first, int64_t last, int32_t thread);
  void* context;
};

// Where threads sleep until somebody has news for them.
class Sleepers {
 public:
  // Waits until news() is true, awake at first. What news() looks at changes, sequentially consistent, before wake().
  template <typename News>
  void wait(News news);
  void wake();

 private:
  std::atomic<bool> asleep_{false};  // some thread may be
  std::atomic<int32_t> wakes_{0};
};

// How long a thread has kept its processor for itself.
class alignas(64) Turn {
 public:
  bool over() const;
  // Where it is over, lets others run, and begins another.
  void offer();

 private:
  uint64_t began_ = 0;
};

// Jobs that a thread has finished. The thread alone writes.
struct alignas(64) Done {
  std::atomic<int64_t> jobs{0};

  void add(int64_t more) { jobs.store(jobs.load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
};

class Pool {
 public:
  // cpus: [threads], or null: threads run where the system places them. The caller of run() is thread 0 and is not
  // pinned: it is not this library's. Where there are several nodes it is moved for as long as run() lasts.
  // nodes: [threads], or null: all are of one.
  Pool(int32_t threads, const int32_t* cpus, const int32_t* nodes);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int32_t size() const { return size_; }
  int32_t nodes() const { return nodes_; }
  int32_t node_of(int32_t thread) const { return node_of_.empty() ? 0 : node_of_[static_cast<size_t>(thread)]; }

  // Returns when all phases are over, with all that the threads wrote. One run at a time.
  void run(const Work& work);

  // Jobs finished so far, of all runs. Any thread may ask, at any time.
  int64_t done() const;

 private:
  // Units of jobs that a thread has taken on.
  struct Claim {
    int64_t first, count;
  };

  // The threads of one node, and the jobs of the phase that are theirs.
  //
  // state: where the units begin and end that nobody has claimed, and how many nobody has finished; of the caller's
  // team 0: there is no run. Threads with even numbers take from the beginning, others from the end: what one of two
  // has written in one phase, it finds in its own caches in the next.
  //
  // Whoever begins a phase writes what belongs to it (jobs, shift, the work's own state), then stores state. A claim
  // takes units from state and reads that store, or a change of what it stored: it sees all that was written for the
  // phase, which stays as it is until the claim is finished. A thread that finishes its claim changes state too, and
  // the one that finds no other jobs unfinished has read all those changes; of several nodes' such threads the last one
  // has read them through busy_. It sees what all jobs wrote, and begins the next phase. A claim that was made up from
  // an old state of the same value is as good as any.
  struct alignas(64) Team {
    std::atomic<uint64_t> state{0};
    int64_t jobs = 0;
    int shift = 0;  // a unit is 2^shift jobs
    int32_t size = 0;
    Sleepers asleep;

    uint64_t take(int64_t all);
    int64_t share_of(int64_t left) const;
  };

  Team& team_of(int32_t thread) { return teams_[static_cast<size_t>(node_of(thread))]; }
  Claim claim(int32_t thread);
  Claim finish(int64_t count, int32_t thread);
  Claim advance(int32_t thread);
  Claim begin(const int64_t* jobs, int32_t thread);
  void run_out();
  void follow(Claim claim, int32_t thread);
  void serve(int32_t thread);
  void end();

  const int32_t size_;
  int32_t nodes_ = 1;
  std::vector<int32_t> node_of_;  // empty: all threads are of one
  int32_t first_cpu_ = -1;        // where the caller is moved to; -1: it stays
  std::unique_ptr<Team[]> teams_;
  std::atomic<int32_t> busy_{0};  // nodes with jobs that are not finished, where there are several
  const Work* work_ = nullptr;
  std::atomic<bool> ending_{false};
  Sleepers caller_asleep_;
  std::vector<Turn> turns_;
  std::vector<Done> done_;
  std::vector<std::thread> threads_;
};

}  // namespace core
