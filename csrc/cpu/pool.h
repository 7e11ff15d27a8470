// A thread pool that runs phases of jobs.
//
// There is no barrier that all threads must reach: a phase is over when its jobs are, whichever threads ran them. A
// thread that the system has descheduled delays only the jobs it has claimed, and rejoins at the current phase.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace core {

constexpr int32_t kMostNodes = 64;

// A sequence of phases.
struct Work {
  // Go to the next phase, and write the number of jobs of each node, less than 2^40 and not all 0; false: there are no
  // more phases. Called on any thread, after all jobs of the previous phase.
  bool (*next)(void* context, int64_t* jobs);
  // Run a node's jobs first ... last - 1 of the phase, on a thread of that node. Jobs of a phase run in any order and
  // concurrently.
  void (*run)(void* context, int64_t first, int64_t last, int32_t thread);
  void* context;
  // What next() changes and run() reads first, in one cache line; null: nothing.
  const void* news = nullptr;
  // A claim is 1 / (shares * threads) of the unclaimed units: claims get smaller, so that threads finish together. Each
  // costs a cache line its way from thread to thread, and each delays the phase if its thread loses its CPU meanwhile.
  int64_t shares = 4;
};

// Lets threads sleep until a condition holds.
class Sleepers {
 public:
  // Wait until news() is true, spinning at first. Its state must be changed, sequentially consistent, before wake().
  template <typename News>
  void wait(News news);
  void wake();

 private:
  std::atomic<bool> asleep_{false};  // some thread may be asleep
  std::atomic<int32_t> wakes_{0};
};

// Measures how long a thread has run without yielding its CPU.
class alignas(64) Turn {
 public:
  bool over() const;
  // If it is over, yield to other threads of the system, and begin another.
  void offer();

 private:
  uint64_t began_ = 0;
};

// Number of jobs that a thread has finished. Only that thread writes it.
struct alignas(64) Done {
  std::atomic<int64_t> jobs{0};

  void add(int64_t more) { jobs.store(jobs.load(std::memory_order_relaxed) + more, std::memory_order_relaxed); }
};

class Pool {
 public:
  // cpus: [threads], or null: threads are not pinned. The caller of run() is thread 0; its affinity belongs to the
  // caller and is changed only with several nodes, and only for the duration of run().
  // nodes: [threads], or null: one node.
  Pool(int32_t threads, const int32_t* cpus, const int32_t* nodes);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int32_t size() const { return size_; }
  int32_t nodes() const { return nodes_; }
  int32_t node_of(int32_t thread) const { return node_of_.empty() ? 0 : node_of_[static_cast<size_t>(thread)]; }

  // Run all phases and return; the caller then sees all that the threads wrote. Calls must not overlap.
  void run(const Work& work);

  // Return the number of jobs finished so far in all runs. Safe to call from any thread at any time.
  int64_t done() const;

 private:
  // Units of jobs that a thread owns until it finishes them.
  struct Claim {
    int64_t first, count;
  };

  // The threads of one node, and their jobs of the phase.
  //
  // state packs the begin and end of the unclaimed units and the number of unfinished ones; 0 in the caller's team: no
  // run. Threads with even numbers claim from the beginning, others from the end, so that a thread of two finds what it
  // wrote in one phase in its own caches in the next.
  //
  // Memory order: the thread that begins a phase writes its data (jobs, shift, the work's own state), then stores
  // state. A claim reads that store or a later modification of it, so it sees the phase's data, which does not change
  // until the claim is finished. Finishing a claim modifies state too. The thread that finds no other unfinished jobs
  // has therefore read all modifications, with several nodes by way of busy_; it sees what all jobs wrote, and begins
  // the next phase. ABA is harmless: a claim computed from an older state of the same value is just as valid.
  struct alignas(64) Team {
    std::atomic<uint64_t> state{0};
    int64_t jobs = 0;
    int shift = 0;  // a unit is 2^shift jobs
    int32_t size = 0;
    std::atomic<int64_t> shares{1};  // of the work, times size
    Sleepers asleep;

    uint64_t take(int64_t all);
    int64_t share_of(int64_t left) const;
  };

  Team& team_of(int32_t thread) { return teams_[static_cast<size_t>(node_of(thread))]; }
  Claim join(int32_t thread);
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
  std::vector<int32_t> node_of_;  // empty: one node
  int32_t first_cpu_ = -1;        // CPU of the caller during run(); -1: not moved
  std::unique_ptr<Team[]> teams_;
  std::atomic<int32_t> busy_{0};  // nodes with unfinished jobs; used with several nodes only
  const Work* work_ = nullptr;
  std::atomic<const void*> news_{nullptr};  // of the work
  std::atomic<bool> ending_{false};
  Sleepers caller_asleep_;
  std::vector<Turn> turns_;
  std::vector<Done> done_;
  std::vector<std::thread> threads_;
};

}  // namespace core
