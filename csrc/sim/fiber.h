// Fibers: cooperative threads with stacks of their own.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(CUSIM_PORTABLE_FIBERS)
#define CUSIM_UCONTEXT 1
#include <ucontext.h>
#endif

namespace cusim {

// A fiber runs when a scheduler resumes it, until it suspends itself, and continues there the next time. It runs on the
// thread that resumes it and must not move to another. The creator owns the stack, which must outlive the fiber.
class Fiber {
 public:
  using Entry = void (*)();

  // The first resume() calls `entry` on this stack. `entry` must end with finish(), not return.
  void prepare(unsigned char* stack, size_t bytes, Entry entry);

  // From the scheduler: run the fiber until it suspends or finishes.
  void resume();

  // From inside the fiber: back to the scheduler.
  void suspend();

  // From inside the fiber, at the start of `entry`.
  void started();

  // From inside the fiber: back to the scheduler, for good.
  [[noreturn]] void finish();

 private:
  void switch_in();
  void switch_out();

  unsigned char* stack_ = nullptr;
  size_t stack_bytes_ = 0;
#ifdef CUSIM_UCONTEXT
  ucontext_t context_;
  ucontext_t scheduler_;
#else
  void* stack_pointer_ = nullptr;
  void* scheduler_stack_pointer_ = nullptr;
#endif
  // State of both stacks for AddressSanitizer.
  void* fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

}  // namespace cusim
