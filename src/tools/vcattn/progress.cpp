// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace vca::tools {

Progress::Progress(std::string title, int64_t total, bool quiet)
    : title_(std::move(title)),
      total_(std::max<int64_t>(total, 1)),
      active_(!quiet && isatty(STDERR_FILENO) == 1),
      start_(Clock::now()),
      last_(start_ - std::chrono::seconds(1)) {}

void Progress::update(int64_t done, const std::string& what) {
  const auto now = Clock::now();
  if (!active_ || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  const double share = std::clamp(static_cast<double>(done) / static_cast<double>(total_), 0., 1.);
  constexpr int kCells = 28;
  const int full = static_cast<int>(share * kCells);
  std::string bar;
  for (int i = 0; i < kCells; ++i) bar += i < full ? "█" : "·";
  std::string left;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  if (share > 0.02 && elapsed > 1.0) {
    const int64_t seconds = static_cast<int64_t>(elapsed * (1.0 - share) / share + 0.5);
    char text[32];
    std::snprintf(text, sizeof text, "  %lld:%02lld left", static_cast<long long>(seconds / 60),
                  static_cast<long long>(seconds % 60));
    left = text;
  }
  std::fprintf(stderr, "\r\033[K%s %s %3.0f %%%s  %s", title_.c_str(), bar.c_str(), 100.0 * share,
               left.c_str(), what.c_str());
  std::fflush(stderr);
}

void Progress::finish() {
  if (drawn_) std::fputs("\r\033[K", stderr);
  drawn_ = false;
  active_ = false;
}

}  // namespace vca::tools
