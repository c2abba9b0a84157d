// SPDX-License-Identifier: Apache-2.0
// Runs the grouping kernels on the emulator.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <vector>

#include "emu/launch.hpp"
#include "kernels/group/pipeline.hpp"

namespace vca::tests {

// Few CTAs, so that each takes several items; another schedule of threads at every launch.
class GroupEmulator {
 public:
  void upload(void* to, const std::vector<uint8_t>& bytes) {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  }
  template <class Kernel, class... Args>
  void launch(kernels::group::Grid, const kernels::group::Params& params, int64_t items,
              Args... args) {
    if (items == 0) return;
    emu::LaunchConfig config;
    config.grid = static_cast<uint32_t>(std::min<int64_t>(items, 5));
    config.threads = Kernel::kThreads;
    config.smem_bytes = static_cast<uint32_t>((Kernel::smem_bytes(params) + 15) / 16 * 16);
    config.seed = ++launches_;
    config.policy = emu::kAllPolicies[launches_ % std::size(emu::kAllPolicies)];
    config.host_threads = 2;
    emu::launch(config, [&] { Kernel::run(params, args..., items); });
  }

 private:
  uint64_t launches_ = 0;
};

// Scratch memory and a state of a request, poisoned.
class GroupBuffers {
 public:
  explicit GroupBuffers(const kernels::group::Layout& layout)
      : scratch_bytes(static_cast<size_t>(layout.bytes) + 256, 0xA5),
        state_bytes(
            static_cast<size_t>(kernels::group::StateLayout(layout.n_units, layout.places).bytes) +
                256,
            0xA5) {}
  uint8_t* scratch() { return align(scratch_bytes); }
  uint8_t* state() { return align(state_bytes); }

  std::vector<uint8_t> scratch_bytes, state_bytes;

 private:
  static uint8_t* align(std::vector<uint8_t>& bytes) {
    return bytes.data() + (256 - reinterpret_cast<uintptr_t>(bytes.data()) % 256) % 256;
  }
};

}  // namespace vca::tests
