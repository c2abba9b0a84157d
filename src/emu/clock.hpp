// SPDX-License-Identifier: Apache-2.0
// Vector clocks: what a thread knows to have happened, so that a race is found in any schedule and
// not only in the one where it bites. For each CTA of the cluster: one component for each thread,
// then one for each mbarrier, for the bulk copies that complete on it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace vca::emu {

class VectorClock {
 public:
  VectorClock() = default;
  explicit VectorClock(size_t components) : at_(components, 0) {}

  uint32_t operator[](size_t component) const { return at_[component]; }
  void advance(size_t component) { ++at_[component]; }
  void set(size_t component, uint32_t value) { at_[component] = value; }

  // Everything that `other` knows.
  void join(const VectorClock& other) {
    uint32_t* mine = at_.data();
    const uint32_t* theirs = other.at_.data();
    const size_t n = at_.size();
    for (size_t i = 0; i < n; ++i) mine[i] = std::max(mine[i], theirs[i]);
  }

 private:
  std::vector<uint32_t> at_;
};

// mbarriers of a CTA that have a component.
inline constexpr uint32_t kMaxBarriers = 128;

// One event: the component and its time.
struct Epoch {
  uint32_t component = 0;
  uint32_t time = 0;
  bool known_to(const VectorClock& clock) const { return time <= clock[component]; }
};

}  // namespace vca::emu
