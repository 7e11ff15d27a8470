#include "sim/block.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "sim/arena.h"

namespace cusim {

void fail(const std::string& what) {
  fprintf(stderr, "cusim: %s\n", what.c_str());
  abort();
}

Block*& current_block() {
  static thread_local Block* current = nullptr;
  return current;
}

Block& block() {
  return *current_block();
}

Thread& self() {
  return *block().current;
}

namespace {

void release_barrier(Block& b) {
  b.phase++;
  b.at_barrier = 0;
  b.barrier_result = b.votes;
  b.votes = 0;
  for (Thread& thread : b.threads) {
    if (thread.state == State::kAtBarrier) thread.state = State::kReady;
  }
}

bool everybody_came(const Warp& warp, unsigned mask, const Meeting& meeting) {
  const unsigned expected = mask & warp.live;
  return (meeting.arrived & expected) == expected;
}

// Merge the vector clocks of lanes that meet, and start a new epoch for each of them.
void join_clocks(Warp& warp, unsigned lanes, bool synced) {
  WarpClocks all = {};
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const WarpClocks& one = warp.clocks[__builtin_ctz(rest)];
    for (int i = 0; i < kWarpSize; i++) {
      all.met[i] = std::max(all.met[i], one.met[i]);
      all.synced[i] = std::max(all.synced[i], one.synced[i]);
    }
  }
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    if (synced) all.synced[lane] = all.met[lane];
  }
  for (unsigned rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = __builtin_ctz(rest);
    warp.clocks[lane] = all;
    warp.clocks[lane].met[lane]++;
  }
}

void release_meeting(Block& b, int warp, Meeting& meeting) {
  if (b.shadow != nullptr) join_clocks(b.warps[warp], meeting.arrived, meeting.what == Collective::kSync);
  meeting.exchanged[meeting.turn % 2].present = meeting.arrived;
  for (unsigned lanes = meeting.arrived; lanes != 0; lanes &= lanes - 1) {
    b.threads[warp * kWarpSize + __builtin_ctz(lanes)].state = State::kReady;
  }
  meeting.arrived = 0;
  meeting.turn++;
}

// Tensor cores need the whole warp: other collectives leave out lanes that have returned.
void require_lanes(Collective what, unsigned mask, unsigned live) {
  const bool whole = what == Collective::kMma || what == Collective::kLoadMatrices;
  if (whole && (live & mask) != mask) fail("lanes of a warp that uses tensor cores have returned, or never were");
}

void require_begun(const Thread& me) {
  if (!me.begun) fail("a thread of a kernel that is launched early does not begin with begin_kernel()");
}

// The current thread has returned from the kernel: release threads that waited only for it.
void leave() {
  Block& b = block();
  Thread& me = self();
  Warp& warp = b.warps[me.warp];
  require_begun(me);
  if (!me.copies.empty()) fail("a thread returns without waiting for its cp.async");
  me.state = State::kDone;
  b.live--;
  warp.live &= ~(1u << me.lane);
  if (b.live > 0 && b.at_barrier == b.live) release_barrier(b);
  for (auto& [mask, meeting] : warp.meetings) {
    if (meeting.arrived == 0) continue;
    require_lanes(meeting.what, mask, warp.live);
    if (everybody_came(warp, mask, meeting)) release_meeting(b, me.warp, meeting);
  }
  me.fiber.finish();
}

}  // namespace

void run_thread() {
  self().fiber.started();
  block().kernel();
  leave();
}

int wait_at_barrier(int vote) {
  Block& b = block();
  require_begun(self());
  b.votes += vote != 0;
  if (++b.at_barrier == b.live) {
    release_barrier(b);
  } else {
    self().state = State::kAtBarrier;
    self().fiber.suspend();
  }
  return b.barrier_result;
}

const Exchanged& meet(unsigned mask, Collective what, const void* mine, size_t bytes) {
  Block& b = block();
  Thread& me = self();
  Warp& warp = b.warps[me.warp];
  require_begun(me);
  if ((mask >> me.lane & 1u) == 0) fail("a lane calls a warp collective with a mask that leaves it out");
  require_lanes(what, mask, warp.live);
  Meeting& meeting = warp.meetings[mask];
  if (meeting.arrived != 0 && meeting.what != what) fail("lanes of one warp meet in different collectives");
  meeting.what = what;
  Exchanged& exchanged = meeting.exchanged[meeting.turn % 2];
  memcpy(exchanged.slots[me.lane], mine, bytes);
  meeting.arrived |= 1u << me.lane;
  if (everybody_came(warp, mask, meeting)) {
    release_meeting(b, me.warp, meeting);
  } else {
    me.state = State::kAtCollective;
    me.fiber.suspend();
  }
  return exchanged;
}

unsigned char* dynamic_shared() {
  return block().shared;
}

void require_shared(const void* start, size_t bytes, const char* what) {
  const auto* first = static_cast<const unsigned char*>(start);
  if (reinterpret_cast<uintptr_t>(start) % bytes != 0) {
    fail(std::string(what) + " is not aligned to " + std::to_string(bytes) + " bytes");
  }
  for (const SharedArray& array : block().arrays) {
    if (first >= array.start && first + bytes <= array.start + array.bytes) return;
  }
  fail(std::string(what) + " lies outside of shared memory");
}

unsigned char* shared_array(const void* declaration, size_t bytes) {
  Block& b = block();
  for (const SharedArray& array : b.arrays) {
    if (array.declaration == declaration) return array.start;
  }
  return add_shared_array(b, declaration, bytes);
}

}  // namespace cusim
