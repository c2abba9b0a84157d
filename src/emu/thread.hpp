// SPDX-License-Identifier: Apache-2.0
// One thread of a CTA: its fiber and what the emulator knows about it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "emu/clock.hpp"
#include "emu/fiber.hpp"

namespace vca::emu {

class Cta;

enum class WaitKind : uint8_t {
  none,
  mbarrier,
  named_barrier,
  cluster_barrier,
  warp,
  warpgroup,
  wgmma,
  registers
};

// Why a thread does not run, for the scheduler's report.
struct WaitSite {
  WaitKind kind = WaitKind::none;
  const char* instruction = "";
  uint32_t object = 0;  // mbarrier address, named barrier id
  uint32_t detail = 0;  // parity, thread count, pending groups, registers
};

struct Accumulator;

// Registers are read and written through their address whatever their C++ type is.
using RegisterWord [[gnu::may_alias]] = uint32_t;

// Registers that a wgmma has named: at an issue they must not have been touched by ordinary code
// since the last wgmma.fence, which can only be seen by comparing values.
struct RegisterRange {
  RegisterWord* base = nullptr;
  uint32_t count = 0;
  bool is_accumulator = false;
  uint32_t users = 0;                        // instructions issued and not yet waited for
  std::vector<uint32_t> held;                // A fragment while in flight
  std::shared_ptr<Accumulator> accumulator;  // while in flight
  uint64_t released_at = 0;                  // time of the wait that gave the registers back
  std::vector<uint32_t> at_release;          // values then
  std::vector<uint32_t> at_fence;            // values at the last wgmma.fence
};

struct Thread {
  Cta* cta = nullptr;
  uint32_t index = 0;
  uint32_t component = 0;  // of the clocks
  FiberContext context;
  bool finished = false;
  WaitSite wait;

  VectorClock clock;  // own component: advanced after each release

  uint64_t proxy_fence_at = 0;          // time of the last fence.proxy.async
  uint64_t mbarrier_init_fence_at = 0;  // time of the last fence.mbarrier_init (or proxy fence)

  // barrier.cluster: arrived and not waited since, in which phase.
  bool cluster_arrived = false;
  uint64_t cluster_phase = 0;

  // Warp collectives.
  uint32_t collective_result = 0;
  bool collective_done = false;

  // cp.async: copies issued and not yet waited for.
  struct AsyncCopy {
    void* to;
    const void* from;
  };
  std::vector<AsyncCopy> async_copies;

  // wgmma: this thread's place in its warpgroup's sequences.
  uint64_t wgmma_fence_at = 0;
  uint64_t issued = 0;     // instructions
  uint64_t committed = 0;  // groups
  uint64_t retired = 0;    // instructions released by wait_group
  std::vector<RegisterRange> ranges;
  struct Retirement {
    uint64_t until;  // instructions before this number
    uint32_t time;   // of the own clock
  };
  std::vector<Retirement> retirements;

  uint32_t warp() const { return index / 32; }
  uint32_t lane() const { return index % 32; }
  uint32_t warpgroup() const { return index / 128; }
};

}  // namespace vca::emu
