// Threads that run one function together and meet at barriers.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace core {

// A counter that threads wait on: they spin for as long as a step's gaps last, then sleep.
class Signal {
 public:
  int32_t value() const { return value_.load(std::memory_order_acquire); }
  // Waits until the counter is no longer `old`.
  void wait(int32_t old) const;
  void advance();

 private:
  std::atomic<int32_t> value_{0};
};

class Pool {
 public:
  using Body = void (*)(void* context, int32_t thread);

  // cpus: [threads], or null: threads run where the system places them. The caller of run() is thread 0 and is not
  // pinned: it is not this library's.
  Pool(int32_t threads, const int32_t* cpus);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int32_t size() const { return size_; }

  // body(context, thread) on every thread, the caller as thread 0; returns when all have returned.
  void run(Body body, void* context);

  // Called by every thread inside run(): returns when all have come, with all that they wrote.
  void barrier();

 private:
  void work(int32_t thread);
  void end();

  int32_t size_;
  Signal started_;
  Signal met_;
  std::atomic<int32_t> arrived_{0};
  Body body_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace core
