// SPDX-License-Identifier: Apache-2.0
// Runs the preprocessing passes on the host: by loops, or on the emulator.
#pragma once

#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "emu/launch.hpp"
#include "kernels/group_emulator.hpp"
#include "kernels/packed_problem.hpp"
#include "kernels/prep/pipeline.hpp"

namespace vca::tests {

// Runs a kernel as a GPU would see it: blocks and threads in an order of its own, so that a pass
// that leans on one order fails; shared memory starts as garbage.
class HostLauncher {
 public:
  explicit HostLauncher(uint64_t seed) : rng_(seed) {}

  void upload(void* to, const std::vector<uint8_t>& bytes) {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  }
  template <class Kernel>
  void launch(const typename Kernel::Params& params, int64_t blocks) {
    if constexpr (requires { Kernel::kSharedBytes; }) {
      emulate<Kernel>(params, blocks);
    } else {
      run_phases<Kernel>(params, blocks);
    }
  }
  void form_order(const kernels::group::Request& request, const kernels::group::Layout& layout,
                  const kernels::prep::Params& from, void* scratch, kernels::group::Part part) {
    GroupEmulator emulator;
    kernels::group::run_passes(request, layout, from, scratch, part, emulator);
  }

 private:
  template <class Kernel>
  void emulate(const typename Kernel::Params& params, int64_t blocks) {
    if (blocks == 0) return;
    emu::LaunchConfig config;
    config.grid = static_cast<uint32_t>(blocks);
    config.threads = Kernel::kThreads;
    config.smem_bytes = Kernel::kSharedBytes;
    config.seed = rng_.next();
    config.policy = emu::kAllPolicies[rng_.next() % std::size(emu::kAllPolicies)];
    config.host_threads = 2;
    emu::launch(config, [&] { Kernel::run(params, ptx::cta_index()); });
  }
  template <class Kernel>
  void run_phases(const typename Kernel::Params& params, int64_t blocks) {
    // i -> (i * odd + offset) mod power of two is a permutation of it.
    int64_t size = 1;
    while (size < blocks) size *= 2;
    const auto mask = static_cast<uint64_t>(size) - 1;
    const uint64_t factor = rng_.next() | 1u, offset = rng_.next();
    auto shared = std::make_unique<typename Kernel::Shared>();
    std::memset(static_cast<void*>(shared.get()), 0xA5, sizeof(typename Kernel::Shared));
    for (int64_t i = 0; i < size; ++i) {
      const auto block = static_cast<int64_t>((static_cast<uint64_t>(i) * factor + offset) & mask);
      if (block >= blocks) continue;
      for (int phase = 0; phase < Kernel::kPhases; ++phase) {
        const uint64_t turn = rng_.next();
        const auto n = static_cast<uint64_t>(Kernel::kThreads);
        for (uint64_t t = 0; t < n; ++t) {
          const uint64_t thread = (turn & 1u) != 0 ? (t + turn / 2) % n : n - 1 - t;
          Kernel::phase(phase, params, *shared, block, static_cast<int>(thread));
        }
      }
    }
  }

  Random rng_;
};

}  // namespace vca::tests
