// Counts of core_sim, for tests.
#include "core.h"
#include "sim/block.h"

// Write the numbers of thread blocks run so far, and of those that came to a barrier.
extern "C" CORE_API void core_sim_counts(int64_t* run, int64_t* at_barrier) {
  const cusim::Counts counts = cusim::counts();
  *run = counts.run;
  *at_barrier = counts.at_barrier;
}
