// SPDX-License-Identifier: Apache-2.0
// What threads do together without memory: shuffles and votes of a warp, named barriers, register
// budgets of warpgroups.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "emu/thread.hpp"

namespace vca::emu {

class Collectives {
 public:
  Collectives(Cta& cta, uint32_t threads, uint32_t registers);

  // Value of lane (own lane xor lane_mask).
  uint32_t shuffle_xor(const char* instruction, uint32_t value, uint32_t lane_mask);
  // Value of lane 0.
  uint32_t broadcast_first(const char* instruction, uint32_t value);
  // Value of `lane`, which may differ from thread to thread.
  uint32_t shuffle_index(const char* instruction, uint32_t value, uint32_t lane);
  uint32_t reduce_max(const char* instruction, uint32_t value);
  bool any(const char* instruction, bool predicate);

  // Every lane brings words and takes away what `function` makes of the words of all.
  using LaneWords = std::array<uint32_t, 10>;
  using WarpWords = std::array<LaneWords, 32>;
  using WarpFunction = void (*)(const WarpWords& in, WarpWords& out);
  void exchange(const char* instruction, WarpFunction function, LaneWords& words);

  void named_barrier(const char* instruction, uint32_t id, uint32_t threads, bool waits);
  void set_registers(const char* instruction, uint32_t registers, bool increase);

  void check_at_exit() const;
  std::string describe_named_barrier(uint32_t id) const;
  std::string describe_registers() const;

 private:
  struct Warp {
    const char* instruction = nullptr;
    uint32_t argument = 0;
    uint32_t arrived = 0;  // lane mask
    std::array<uint32_t, 32> value = {};
    std::array<uint32_t, 32> source = {};  // of shuffle_index
    WarpWords in = {}, out = {};           // of exchange()
  };
  struct NamedBarrier {
    uint32_t threads = 0;  // expected; 0 = idle
    uint32_t count = 0;
    uint64_t generation = 0;
    std::vector<uint32_t> arrived;  // lane mask of each warp
    std::vector<Thread*> waiters;
    VectorClock arriving;
    VectorClock completed;
  };
  struct Warpgroup {
    uint32_t registers = 0;  // per thread
    const char* instruction = nullptr;
    uint32_t target = 0;
    uint32_t arrived = 0;
    uint64_t generation = 0;
  };

  // Lanes meet; the last one gets the warp with all values in it.
  Warp* join_warp(const char* instruction, uint32_t argument, uint32_t value);
  // Gives every lane its result, source(lane), and lets the warp go on.
  template <class Source>
  void finish_warp(Warp& warp, Source source);

  Cta& cta_;
  std::vector<Warp> warps_;
  std::array<NamedBarrier, 16> named_;
  std::vector<Warpgroup> warpgroups_;
  uint32_t free_registers_ = 0;  // of the CTA's pool, in units of one per thread of a warpgroup
  std::vector<Thread*> register_waiters_;
};

}  // namespace vca::emu
