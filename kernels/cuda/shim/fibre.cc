// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/shim/fibre.h"

#include <cstdint>
#include <cstdlib>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer)
#define __SANITIZE_THREAD__ 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

#if !defined(__x86_64__)
#error "the switch between fibres is written for x86-64"
#endif

// void kt_shim_switch(void** save, void* load): parks the callee-saved registers on this stack and
// takes up the other one. An eighth of the time of swapcontext, which makes two system calls.
extern "C" void kt_shim_switch(void** save, void* load);
asm(R"(
.text
.globl kt_shim_switch
.hidden kt_shim_switch
.type kt_shim_switch, @function
kt_shim_switch:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
.size kt_shim_switch, .-kt_shim_switch
)");

namespace kt::shim {
namespace {
constexpr size_t kStackBytes = size_t{128} << 10;
constexpr int kSavedRegisters = 6;
Fibre* starting = nullptr;  // hands `this` to Main, which takes no argument
}  // namespace

Fibre::Fibre() : stack_(kStackBytes) {
#if defined(__SANITIZE_THREAD__)
  inside_context_ = __tsan_create_fiber(0);
#endif
}

Fibre::~Fibre() {
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(inside_context_);
#endif
}

void Fibre::Start(const std::function<void()>* body) {
  body_ = body;
  done_ = false;
  // As if kt_shim_switch had been called at the start of Main: the stack is 8 off a multiple of 16
  // when a function begins.
  void** top = reinterpret_cast<void**>(stack_.data() + stack_.size()) - 2;
  *top = reinterpret_cast<void*>(&Fibre::Main);
  inside_ = top - kSavedRegisters;
#if defined(__SANITIZE_ADDRESS__)
  inside_context_ = nullptr;
#endif
}

void Fibre::Resume() {
  starting = this;
  SwitchIn();
}

void Fibre::Suspend() { SwitchOut(); }

void Fibre::Main() {
  Fibre* self = starting;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->outside_stack_, &self->outside_stack_bytes_);
#endif
  (*self->body_)();
  self->done_ = true;
  self->SwitchOut();
  std::abort();  // a finished fibre is never resumed
}

void Fibre::SwitchIn() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&outside_context_, stack_.data(), stack_.size());
#endif
#if defined(__SANITIZE_THREAD__)
  outside_context_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(inside_context_, 0);
#endif
  kt_shim_switch(&outside_, inside_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(outside_context_, nullptr, nullptr);
#endif
}

void Fibre::SwitchOut() {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(done_ ? nullptr : &inside_context_, outside_stack_,
                                 outside_stack_bytes_);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(outside_context_, 0);
#endif
  kt_shim_switch(&inside_, outside_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(inside_context_, &outside_stack_, &outside_stack_bytes_);
#endif
}

}  // namespace kt::shim
