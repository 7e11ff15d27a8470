#include "cpu/pool.h"

#include <immintrin.h>
#include <pthread.h>
#include <sched.h>

#include <chrono>

namespace core {
namespace {

// Longer than the gaps between the ops of a step, shorter than what another program would miss.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesBetweenLooks = 32;

void pin(std::thread& thread, int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  // A CPU that was taken away meanwhile is no reason to fail: the thread then runs where it may.
  pthread_setaffinity_np(thread.native_handle(), sizeof(set), &set);
}

}  // namespace

void Signal::wait(int32_t old) const {
  const auto limit = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesBetweenLooks; i++) {
      if (value() != old) return;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < limit);
  while (value() == old) value_.wait(old, std::memory_order_acquire);
}

void Signal::advance() {
  value_.fetch_add(1, std::memory_order_acq_rel);
  value_.notify_all();
}

Pool::Pool(int32_t threads, const int32_t* cpus) : size_(threads) {
  try {
    for (int32_t thread = 1; thread < threads; thread++) {
      threads_.emplace_back([this, thread] { work(thread); });
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
  body_ = nullptr;
  started_.advance();
  for (std::thread& thread : threads_) thread.join();
}

void Pool::run(Body body, void* context) {
  body_ = body;
  context_ = context;
  started_.advance();
  body(context, 0);
  barrier();
}

void Pool::barrier() {
  const int32_t before = met_.value();
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < size_) return met_.wait(before);
  arrived_.store(0, std::memory_order_relaxed);
  met_.advance();
}

void Pool::work(int32_t thread) {
  for (int32_t seen = 0;;) {
    started_.wait(seen);
    seen++;
    if (body_ == nullptr) return;
    body_(context_, thread);
    barrier();
  }
}

}  // namespace core
