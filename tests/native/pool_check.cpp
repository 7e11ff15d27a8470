// Runs many short phases of jobs on more threads than there are processors, for ThreadSanitizer to watch too. Exit 0:
// every job ran once, after those of the phase before, and run() returned when all had.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <utility>
#include <vector>

#include "cpu/pool.h"

namespace {

constexpr int64_t kMostJobs = 40;

// Phases of 1 to kMostJobs jobs. Every job adds up what the phase before left, all of it written without atomics. In
// every third phase one node has all jobs, in the others all nodes have some, as far as there are enough.
class Sums {
 public:
  Sums(const core::Pool& pool, int32_t phases)
      : pool_(pool), phases_(phases), first_(static_cast<size_t>(pool.nodes()) + 1) {}

  bool next(int64_t* jobs) {
    if (phase_++ == phases_) return false;
    before_.swap(now_);
    now_.assign(static_cast<size_t>(all()), 0);
    const int64_t nodes = pool_.nodes();
    for (int64_t node = 0; node < nodes; node++) {
      const int64_t end = phase_ % 3 == 0 ? (node >= phase_ % nodes ? all() : 0) : all() * (node + 1) / nodes;
      first_[static_cast<size_t>(node) + 1] = end;
      jobs[node] = end - first_[static_cast<size_t>(node)];
    }
    return true;
  }

  void run(int64_t first, int64_t last, int32_t thread) {
    const int64_t begin = first_[static_cast<size_t>(pool_.node_of(thread))];
    uint64_t sum = static_cast<uint64_t>(phase_);
    for (uint64_t one : before_) sum += one;
    for (int64_t job = begin + first; job < begin + last; job++) {
      now_[static_cast<size_t>(job)] += sum + static_cast<uint64_t>(job);
    }
  }

  const std::vector<uint64_t>& left() const { return now_; }

 private:
  int64_t all() const { return 1 + phase_ * 7 % kMostJobs; }

  const core::Pool& pool_;
  int32_t phases_, phase_ = 0;
  std::vector<int64_t> first_;
  std::vector<uint64_t> before_, now_;
};

core::Work work_of(Sums& sums) {
  return {[](void* context, int64_t* jobs) { return static_cast<Sums*>(context)->next(jobs); },
          [](void* context, int64_t first, int64_t last, int32_t thread) {
            static_cast<Sums*>(context)->run(first, last, thread);
          },
          &sums};
}

bool same_on(const std::vector<int32_t>& nodes, int32_t runs, int32_t phases) {
  const auto threads = static_cast<int32_t>(nodes.size());
  core::Pool one(1, nullptr, nullptr), many(threads, nullptr, nodes.data());
  for (int32_t run = 0; run < runs; run++) {
    Sums alone(one, phases + run % 3), together(many, phases + run % 3);
    one.run(work_of(alone));
    many.run(work_of(together));
    if (alone.left() == together.left()) continue;
    std::fprintf(stderr, "%d threads of %d nodes: run %d of %d phases differs\n", threads, many.nodes(), run, phases);
    return false;
  }
  return true;
}

// More jobs than the pool counts one by one: each runs once, and is counted as done.
bool each_of_many_runs_once(const std::vector<int32_t>& nodes) {
  core::Pool pool(static_cast<int32_t>(nodes.size()), nullptr, nodes.data());
  struct Marks {
    const core::Pool& pool;
    int64_t jobs;  // of each node
    std::vector<uint8_t> runs;
    bool begun = false;
  } marks{pool, (int64_t{3} << 21) + 5, {}};
  marks.runs.resize(static_cast<size_t>(marks.jobs * pool.nodes()));
  pool.run({[](void* context, int64_t* jobs) {
              auto& marks = *static_cast<Marks*>(context);
              std::fill_n(jobs, marks.pool.nodes(), marks.jobs);
              return !std::exchange(marks.begun, true);
            },
            [](void* context, int64_t first, int64_t last, int32_t thread) {
              auto& marks = *static_cast<Marks*>(context);
              const int64_t begin = marks.pool.node_of(thread) * marks.jobs;
              for (int64_t job = begin + first; job < begin + last; job++) marks.runs[static_cast<size_t>(job)]++;
            },
            &marks});
  return std::count(marks.runs.begin(), marks.runs.end(), 1) == std::ssize(marks.runs) &&
         pool.done() == std::ssize(marks.runs);
}

}  // namespace

int main() {
  bool same = each_of_many_runs_once({0}) && each_of_many_runs_once({0, 0, 0}) && each_of_many_runs_once({0, 1, 1});
  const std::vector<int32_t> teams[] = {{0}, {0, 0}, {0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0}, {0, 1}, {0, 0, 1, 2, 2, 2}};
  for (const std::vector<int32_t>& nodes : teams) {
    same = same && same_on(nodes, 300, 40);  // threads that stay awake
    same = same && same_on(nodes, 2000, 0);  // nothing to do
    same = same && same_on(nodes, 1000, 2);
    for (int32_t pool = 0; pool < 100; pool++) same = same && same_on(nodes, 1, 3);  // that end at once
  }
  return same ? 0 : 1;
}
