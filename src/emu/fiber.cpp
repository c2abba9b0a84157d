// SPDX-License-Identifier: Apache-2.0
#include "emu/fiber.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <system_error>

#if defined(__SANITIZE_ADDRESS__)
#define VCA_EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define VCA_EMU_ASAN 1
#endif
#endif
#if defined(__SANITIZE_THREAD__)
#define VCA_EMU_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define VCA_EMU_TSAN 1
#endif
#endif

#ifdef VCA_EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef VCA_EMU_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace vca::emu {
namespace {

// Frames of sanitized or unoptimised kernels are several times larger. Only touched pages cost
// memory.
#if defined(VCA_EMU_ASAN) || defined(VCA_EMU_TSAN) || !defined(__OPTIMIZE__)
constexpr size_t kStackBytes = size_t{512} << 10;
#else
constexpr size_t kStackBytes = size_t{128} << 10;
#endif

// The context being left and the one being entered, for code that runs right after a switch.
thread_local FiberContext* t_from = nullptr;
thread_local FiberContext* t_to = nullptr;

}  // namespace

#if !VCA_EMU_USES_UCONTEXT
// System V ABI: rbx, rbp, r12-r15 belong to the caller of this function. The control words of the
// floating-point units are the same for all fibers (nothing here changes them), so they are left.
extern "C" void vca_emu_switch_stack(void** save_stack_pointer, void* stack_pointer);
asm(R"(
.text
.p2align 4
.globl vca_emu_switch_stack
.hidden vca_emu_switch_stack
.type vca_emu_switch_stack,@function
vca_emu_switch_stack:
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
.size vca_emu_switch_stack, .-vca_emu_switch_stack
)");
#endif

StackPool::StackPool(uint32_t count) : stack_bytes_(kStackBytes) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  slot_bytes_ = stack_bytes_ + page;
  region_bytes_ = slot_bytes_ * count;
  void* region = mmap(nullptr, region_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "emulator: mapping fiber stacks");
  }
  region_ = static_cast<std::byte*>(region);
  for (uint32_t i = 0; i < count; ++i) {
    if (mprotect(region_ + i * slot_bytes_, page, PROT_NONE) != 0) {
      const int error = errno;
      munmap(region_, region_bytes_);
      throw std::system_error(error, std::generic_category(), "emulator: guard page");
    }
  }
}

StackPool::~StackPool() { munmap(region_, region_bytes_); }

std::byte* StackPool::bottom(uint32_t index) const {
  return region_ + index * slot_bytes_ + (slot_bytes_ - stack_bytes_);
}

FiberContext::~FiberContext() {
#ifdef VCA_EMU_TSAN
  if (owns_tsan_fiber_) __tsan_destroy_fiber(tsan_fiber_);
#endif
}

void FiberContext::prepare(std::byte* stack, size_t stack_bytes, void (*entry)(void*),
                           void* argument) {
  entry_ = entry;
  argument_ = argument;
  stack_ = stack;
  stack_bytes_ = stack_bytes;
  fake_stack_ = nullptr;
#ifdef VCA_EMU_ASAN
  // An abandoned frame of an earlier CTA may have left red zones behind.
  __asan_unpoison_memory_region(stack, stack_bytes);
#endif
#ifdef VCA_EMU_TSAN
  if (owns_tsan_fiber_) __tsan_destroy_fiber(tsan_fiber_);
  tsan_fiber_ = __tsan_create_fiber(0);
  owns_tsan_fiber_ = true;
#endif
#if VCA_EMU_USES_UCONTEXT
  getcontext(&context_);
  context_.uc_stack.ss_sp = stack;
  context_.uc_stack.ss_size = stack_bytes;
  context_.uc_link = nullptr;
  makecontext(&context_, &FiberContext::start, 0);
#else
  // What vca_emu_switch_stack pops: six registers and a return address. At the entry of a function
  // rsp is 8 modulo 16; the slot above is the return address of start(), which never returns.
  auto* top = reinterpret_cast<uintptr_t*>(stack + stack_bytes);
  *--top = 0;
  *--top = reinterpret_cast<uintptr_t>(&FiberContext::start);
  for (int i = 0; i < 6; ++i) *--top = 0;
  stack_pointer_ = top;
#endif
}

void FiberContext::start() {
  FiberContext* self = t_to;
  entered();
  self->entry_(self->argument_);
  std::abort();  // unreachable: an entry ends by switching away
}

void FiberContext::entered() {
#ifdef VCA_EMU_ASAN
  const void* old_stack = nullptr;
  size_t old_bytes = 0;
  __sanitizer_finish_switch_fiber(t_to->fake_stack_, &old_stack, &old_bytes);
  if (t_from->stack_ == nullptr) {  // the OS thread's own stack, seen here for the first time
    t_from->stack_ = old_stack;
    t_from->stack_bytes_ = old_bytes;
  }
#endif
}

void FiberContext::switch_to(FiberContext& from, FiberContext& to, bool ending) {
  t_from = &from;
  t_to = &to;
#ifdef VCA_EMU_ASAN
  __sanitizer_start_switch_fiber(ending ? nullptr : &from.fake_stack_, to.stack_, to.stack_bytes_);
#else
  static_cast<void>(ending);
#endif
#ifdef VCA_EMU_TSAN
  if (from.tsan_fiber_ == nullptr) from.tsan_fiber_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(to.tsan_fiber_, 0);
#endif
#if VCA_EMU_USES_UCONTEXT
  swapcontext(&from.context_, &to.context_);
#else
  vca_emu_switch_stack(&from.stack_pointer_, to.stack_pointer_);
#endif
  entered();
}

}  // namespace vca::emu
