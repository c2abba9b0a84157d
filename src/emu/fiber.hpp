// SPDX-License-Identifier: Apache-2.0
// Stackful fibers on one OS thread: hand-written switch on x86-64, ucontext elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#if !defined(__x86_64__) || defined(VCA_EMU_UCONTEXT)
#define VCA_EMU_USES_UCONTEXT 1
#include <ucontext.h>
#else
#define VCA_EMU_USES_UCONTEXT 0
#endif

namespace vca::emu {

// Stacks of a CTA in one mapping, each with a guard page below it: an overflow is a crash at its
// cause and not a corrupted neighbour.
class StackPool {
 public:
  explicit StackPool(uint32_t count);
  ~StackPool();
  StackPool(const StackPool&) = delete;
  StackPool& operator=(const StackPool&) = delete;

  std::byte* bottom(uint32_t index) const;  // lowest usable address
  size_t stack_bytes() const { return stack_bytes_; }

 private:
  std::byte* region_ = nullptr;
  size_t region_bytes_ = 0;
  size_t stack_bytes_ = 0;
  size_t slot_bytes_ = 0;
};

// A context that can be left and continued. The default-constructed one stands for the OS thread's
// own stack.
class FiberContext {
 public:
  FiberContext() = default;
  ~FiberContext();
  FiberContext(const FiberContext&) = delete;
  FiberContext& operator=(const FiberContext&) = delete;

  // The next switch_to starts entry(argument) on the given stack. `entry` must not return: its last
  // act is a switch_to with `ending`.
  void prepare(std::byte* stack, size_t stack_bytes, void (*entry)(void*), void* argument);

  // Leaves the running context `from` and continues `to`. `ending`: `from` will never be continued.
  static void switch_to(FiberContext& from, FiberContext& to, bool ending = false);

  // First act of a prepared entry, for the sanitizers.
  static void entered();

 private:
  static void start();

#if VCA_EMU_USES_UCONTEXT
  ucontext_t context_ = {};
#else
  void* stack_pointer_ = nullptr;
#endif
  void (*entry_)(void*) = nullptr;
  void* argument_ = nullptr;
  const void* stack_ = nullptr;  // for AddressSanitizer
  size_t stack_bytes_ = 0;
  [[maybe_unused]] void* fake_stack_ = nullptr;
  [[maybe_unused]] void* tsan_fiber_ = nullptr;
  [[maybe_unused]] bool owns_tsan_fiber_ = false;
};

}  // namespace vca::emu
