// Threads that work through phases of jobs together.
//
// No thread waits for another to come: a phase is over when its jobs are, whoever ran them. A thread that the system
// holds up costs what it has begun, and takes part again where the others have come to.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace core {

// Phases, one after the other.
struct Work {
  // Goes to the next phase, and returns the number of its jobs, less than 2^40; 0: there is no further phase. Called by
  // any thread, when every job of the phase before has been run.
  int64_t (*next)(void* context);
  // Runs jobs first ... last - 1 of the phase; those of one phase run in any order, on several threads at once.
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

class Pool {
 public:
  // cpus: [threads], or null: threads run where the system places them. The caller of run() is thread 0 and is not
  // pinned: it is not this library's.
  Pool(int32_t threads, const int32_t* cpus);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int32_t size() const { return size_; }

  // Returns when all phases are over, with all that the threads wrote. One run at a time.
  void run(const Work& work);

 private:
  // Units of jobs that a thread has taken on.
  struct Claim {
    int64_t first, count;
  };

  Claim claim(int32_t thread);
  Claim finish(int64_t count, int32_t thread);
  Claim advance(int32_t thread);
  void follow(Claim claim, int32_t thread);
  int64_t share_of(int64_t left) const;
  void serve(int32_t thread);
  void end();

  // Where the units begin and end that nobody has claimed, and how many nobody has finished; 0: there is no run.
  // Threads with even numbers take from the beginning, others from the end: what one of two has written in one phase,
  // it finds in its own caches in the next.
  //
  // Whoever begins a phase writes what belongs to it (jobs_, shift_, the work's own state), then stores state_. A claim
  // takes units from state_ and reads that store, or a change of what it stored: it sees all that was written for the
  // phase, which stays as it is until the claim is finished. A thread that finishes its claim changes state_ too, and
  // the one that finds no other jobs unfinished has read all those changes: it sees what all jobs wrote, and begins the
  // next phase. A claim that was made up from an old state of the same value is as good as any.
  alignas(64) std::atomic<uint64_t> state_{0};
  int64_t jobs_ = 0;
  int shift_ = 0;  // a unit is 2^shift_ jobs
  const Work* work_ = nullptr;

  alignas(64) const int32_t size_;
  std::atomic<bool> ending_{false};
  Sleepers threads_asleep_, caller_asleep_;
  std::vector<Turn> turns_;
  std::vector<std::thread> threads_;
};

}  // namespace core
