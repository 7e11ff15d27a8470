// Runs many short phases of jobs on more threads than there are processors, for ThreadSanitizer to watch too. Exit 0:
// every job ran once, after those of the phase before, and run() returned when all had.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "cpu/pool.h"

namespace {

constexpr int64_t kMostJobs = 40;

// Phases of 1 to kMostJobs jobs. Every job adds up what the phase before left, all of it written without atomics.
class Sums {
 public:
  explicit Sums(int32_t phases) : phases_(phases) {}

  int64_t next() {
    if (phase_++ == phases_) return 0;
    before_.swap(now_);
    now_.assign(static_cast<size_t>(jobs()), 0);
    return jobs();
  }

  void run(int64_t first, int64_t last) {
    uint64_t sum = static_cast<uint64_t>(phase_);
    for (uint64_t one : before_) sum += one;
    for (int64_t job = first; job < last; job++) now_[static_cast<size_t>(job)] += sum + static_cast<uint64_t>(job);
  }

  const std::vector<uint64_t>& left() const { return now_; }

 private:
  int64_t jobs() const { return 1 + phase_ * 7 % kMostJobs; }

  int32_t phases_, phase_ = 0;
  std::vector<uint64_t> before_, now_;
};

core::Work work_of(Sums& sums) {
  return {[](void* context) { return static_cast<Sums*>(context)->next(); },
          [](void* context, int64_t first, int64_t last, int32_t) { static_cast<Sums*>(context)->run(first, last); },
          &sums};
}

bool same_on(int32_t threads, int32_t runs, int32_t phases) {
  core::Pool one(1, nullptr), many(threads, nullptr);
  for (int32_t run = 0; run < runs; run++) {
    Sums alone(phases + run % 3), together(phases + run % 3);
    one.run(work_of(alone));
    many.run(work_of(together));
    if (alone.left() == together.left()) continue;
    std::fprintf(stderr, "%d threads: run %d of %d phases differs\n", threads, run, phases);
    return false;
  }
  return true;
}

// More jobs than the pool counts one by one: each runs once.
bool each_of_many_runs_once(int32_t threads) {
  struct Marks {
    std::vector<uint8_t> runs;
    bool begun = false;
  } marks{std::vector<uint8_t>((int64_t{3} << 21) + 5)};
  core::Pool pool(threads, nullptr);
  pool.run({[](void* context) {
              auto& marks = *static_cast<Marks*>(context);
              const bool over = marks.begun;
              marks.begun = true;
              return over ? int64_t{0} : static_cast<int64_t>(marks.runs.size());
            },
            [](void* context, int64_t first, int64_t last, int32_t) {
              for (int64_t job = first; job < last; job++)
                static_cast<Marks*>(context)->runs[static_cast<size_t>(job)]++;
            },
            &marks});
  for (uint8_t runs : marks.runs) {
    if (runs != 1) return false;
  }
  return true;
}

}  // namespace

int main() {
  bool same = each_of_many_runs_once(1) && each_of_many_runs_once(3);
  for (int32_t threads : {1, 2, 3, 8}) {
    same = same && same_on(threads, 300, 40);  // threads that stay awake
    same = same && same_on(threads, 2000, 0);  // nothing to do
    same = same && same_on(threads, 1000, 2);
    for (int32_t pool = 0; pool < 100; pool++) same = same && same_on(threads, 1, 3);  // that end at once
  }
  return same ? 0 : 1;
}
