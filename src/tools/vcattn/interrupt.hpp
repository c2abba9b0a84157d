// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM: the first one sets a flag that long work looks at, the second one ends the
// process at once. Either way no half-written file stays behind and the exit code is 130.
#pragma once

#include <string>

namespace vca::tools {

// Also ignores SIGXFSZ, so that a file size limit is a write error like a full disk.
void install_signal_handlers();

// May be asked from any thread.
bool interrupted() noexcept;

// Throws Interrupted when a signal has arrived. Not inside an OpenMP region.
void check_interrupt();

// While one lives, the first signal already ends the process at once: for long stretches that write
// nothing and cannot look at the flag, like a call into the library.
class ImmediateExit {
 public:
  ImmediateExit() noexcept;
  ~ImmediateExit();
  ImmediateExit(const ImmediateExit&) = delete;
  ImmediateExit& operator=(const ImmediateExit&) = delete;
};

// Files to unlink when the process ends in the signal handler. Returns a slot for
// forget_partial_file, -1 when the (small) table is full.
int remember_partial_file(const std::string& path) noexcept;
void forget_partial_file(int slot) noexcept;

}  // namespace vca::tools
