// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/interrupt.hpp"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>

#include "tools/vcattn/errors.hpp"

namespace vca::tools {
namespace {

constexpr int kSlots = 16;
constexpr size_t kPathBytes = 4096;

std::atomic<int> g_signals{0};
std::atomic<int> g_immediate{0};
static_assert(std::atomic<int>::is_always_lock_free);  // touched by the handler

// Fixed storage, because the handler may not allocate or lock.
struct Slot {
  std::atomic<int> state{0};  // 0 free, 1 being filled, 2 valid
  char path[kPathBytes] = {};
};
std::array<Slot, kSlots> g_slots;

// Async-signal-safe. `text` starts with a carriage return, which goes over a progress line.
template <size_t kBytes>
[[noreturn]] void leave_nothing_and_exit(const char (&text)[kBytes], int code) {
  for (Slot& slot : g_slots) {
    if (slot.state.load() == 2) unlink(slot.path);
  }
  if (write(STDERR_FILENO, text, kBytes - 1) < 0) _exit(code);
  _exit(code);
}

extern "C" void on_signal(int) {
  if (g_signals.fetch_add(1) == 0 && g_immediate.load() == 0) return;
  leave_nothing_and_exit("\r\nvcattn: interrupted\n", kExitInterrupted);
}

// Inputs are mapped: bytes that are gone by the time they are read arrive as this signal.
extern "C" void on_bus_error(int) {
  leave_nothing_and_exit(
      "\r\nvcattn: an input file can no longer be read\n"
      "  got:     fewer bytes than it had at the start, or a failing disk\n"
      "  allowed: a file that stays as it is until the command ends\n"
      "  hint:    wait until the dump is complete, or copy it first\n",
      kExitBadInput);
}

}  // namespace

void install_signal_handlers() {
  struct sigaction action = {};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  action.sa_handler = on_bus_error;
  sigaction(SIGBUS, &action, nullptr);
  signal(SIGXFSZ, SIG_IGN);
}

ImmediateExit::ImmediateExit() noexcept { g_immediate.fetch_add(1); }
ImmediateExit::~ImmediateExit() { g_immediate.fetch_sub(1); }

bool interrupted() noexcept { return g_signals.load(std::memory_order_relaxed) != 0; }

void check_interrupt() {
  if (interrupted()) throw Interrupted();
}

int remember_partial_file(const std::string& path) noexcept {
  if (path.size() >= kPathBytes) return -1;
  for (int i = 0; i < kSlots; ++i) {
    int expected = 0;
    if (!g_slots[i].state.compare_exchange_strong(expected, 1)) continue;
    std::memcpy(g_slots[i].path, path.c_str(), path.size() + 1);
    g_slots[i].state.store(2);
    return i;
  }
  return -1;
}

void forget_partial_file(int slot) noexcept {
  if (slot >= 0) g_slots[static_cast<size_t>(slot)].state.store(0);
}

}  // namespace vca::tools
