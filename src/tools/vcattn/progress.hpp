// SPDX-License-Identifier: Apache-2.0
// A progress line on stderr. Silent with --quiet and when stderr is not a terminal. Why it is our
// own: docs/decisions/0002-progress-bar.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace vca::tools {

class Progress {
 public:
  // `total` in steps of any unit.
  Progress(std::string title, int64_t total, bool quiet);
  ~Progress() { finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // From one thread. Redraws at most ten times a second.
  void update(int64_t done, const std::string& what = "");
  // Removes the line, so that what follows starts on a clean one.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;
  std::string title_;
  int64_t total_;
  bool active_;
  bool drawn_ = false;
  Clock::time_point start_, last_;
};

}  // namespace vca::tools
