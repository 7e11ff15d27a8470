// Fibers: flows of control with stacks of their own that hand the processor to one another only where they say so.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || defined(CUSIM_PORTABLE_FIBERS)
#define CUSIM_UCONTEXT 1
#include <ucontext.h>
#endif

namespace cusim {

// One flow of control. A scheduler resumes it; it runs until it suspends itself, and is resumed there the next time.
// Everything happens on the thread that resumes; a fiber never moves to another.
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
  // What AddressSanitizer wants to know about both stacks.
  void* fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_bytes_ = 0;
};

}  // namespace cusim
