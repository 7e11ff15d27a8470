#include "sim/fiber.h"

#include <cstdlib>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace cusim {
namespace {

// AddressSanitizer must be notified of the new stack before each switch, and of the old one after it.
#ifdef __SANITIZE_ADDRESS__
void before_switch(void** fake_stack, const void* stack, size_t bytes) {
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
}
void after_switch(void* fake_stack, const void** last_stack, size_t* last_bytes) {
  __sanitizer_finish_switch_fiber(fake_stack, last_stack, last_bytes);
}
void forget_frames(unsigned char* stack, size_t bytes) {
  __asan_unpoison_memory_region(stack, bytes);
}
#else
void before_switch(void**, const void*, size_t) {}
void after_switch(void*, const void**, size_t*) {}
void forget_frames(unsigned char*, size_t) {}
#endif

}  // namespace

#ifdef CUSIM_UCONTEXT

void Fiber::switch_in() {
  swapcontext(&scheduler_, &context_);
}

void Fiber::switch_out() {
  swapcontext(&context_, &scheduler_);
}

static void make_context(ucontext_t* context, unsigned char* stack, size_t bytes, Fiber::Entry entry) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = bytes;
  context->uc_link = nullptr;
  makecontext(context, entry, 0);
}

void Fiber::prepare(unsigned char* stack, size_t bytes, Entry entry) {
  stack_ = stack;
  stack_bytes_ = bytes;
  forget_frames(stack, bytes);
  make_context(&context_, stack, bytes, entry);
}

#else

// Push the callee-saved registers to the running stack, switch stacks, and pop them from the other one.
extern "C" void cusim_switch_stacks(void** save_stack_pointer, void* load_stack_pointer);
asm(R"(
.text
.hidden cusim_switch_stacks
.globl cusim_switch_stacks
.type cusim_switch_stacks, @function
cusim_switch_stacks:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size cusim_switch_stacks, . - cusim_switch_stacks
)");

constexpr int kSavedRegisters = 6;

void Fiber::switch_in() {
  cusim_switch_stacks(&scheduler_stack_pointer_, stack_pointer_);
}

void Fiber::switch_out() {
  cusim_switch_stacks(&stack_pointer_, scheduler_stack_pointer_);
}

void Fiber::prepare(unsigned char* stack, size_t bytes, Entry entry) {
  stack_ = stack;
  stack_bytes_ = bytes;
  forget_frames(stack, bytes);
  void** top = reinterpret_cast<void**>(stack + bytes);
  *--top = nullptr;  // stands for the caller's return address: at entry the stack is 8 bytes off a multiple of 16
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; i++) *--top = nullptr;
  stack_pointer_ = top;
}

#endif

void Fiber::resume() {
  void* fake_stack = nullptr;
  before_switch(&fake_stack, stack_, stack_bytes_);
  switch_in();
  after_switch(fake_stack, nullptr, nullptr);
}

void Fiber::started() {
  after_switch(nullptr, &scheduler_stack_, &scheduler_stack_bytes_);
}

void Fiber::suspend() {
  before_switch(&fake_stack_, scheduler_stack_, scheduler_stack_bytes_);
  switch_out();
  after_switch(fake_stack_, &scheduler_stack_, &scheduler_stack_bytes_);
}

void Fiber::finish() {
  before_switch(nullptr, scheduler_stack_, scheduler_stack_bytes_);
  switch_out();
  abort();
}

}  // namespace cusim
