// SPDX-License-Identifier: Apache-2.0
#include "emu/collective.hpp"

#include <algorithm>
#include <string_view>

#include "emu/cta.hpp"

namespace vca::emu {
namespace {

constexpr uint32_t kAllLanes = 0xFFFFFFFFu;

}  // namespace

Collectives::Collectives(Cta& cta, uint32_t threads, uint32_t registers)
    : cta_(cta), warps_(threads / 32), warpgroups_(threads / 128) {
  for (NamedBarrier& barrier : named_) {
    barrier.arrived.assign(threads / 32, 0);
    barrier.arriving = cta.new_clock();
    barrier.completed = barrier.arriving;
  }
  for (Warpgroup& group : warpgroups_) group.registers = registers;
}

Collectives::Warp* Collectives::join_warp(const char* instruction, uint32_t argument,
                                          uint32_t value) {
  cta_.preempt();
  Thread& thread = cta_.self();
  Warp& warp = warps_[thread.warp()];
  if (warp.arrived == 0) {
    warp.instruction = instruction;
    warp.argument = argument;
  } else if (std::string_view(warp.instruction) != instruction || warp.argument != argument) {
    cta_.fault(instruction, std::string("other lanes of the warp are at ") + warp.instruction +
                                " (argument " + std::to_string(warp.argument) + ", here " +
                                std::to_string(argument) + ")");
  }
  warp.value[thread.lane()] = value;
  warp.arrived |= 1u << thread.lane();
  if (warp.arrived == kAllLanes) return &warp;
  thread.collective_done = false;
  while (!thread.collective_done) cta_.block({WaitKind::warp, instruction, 0, argument});
  return nullptr;
}

template <class Source>
void Collectives::finish_warp(Warp& warp, Source source) {
  const uint32_t first = cta_.self().warp() * 32;
  VectorClock joined = cta_.self().clock;
  for (uint32_t lane = 0; lane < 32; ++lane) joined.join(cta_.thread(first + lane).clock);
  for (uint32_t lane = 0; lane < 32; ++lane) {
    Thread& thread = cta_.thread(first + lane);
    thread.clock = joined;
    thread.clock.advance(thread.component);
    thread.collective_result = source(lane);
    thread.collective_done = true;
    cta_.wake(thread);
  }
  warp.arrived = 0;
}

uint32_t Collectives::shuffle_xor(const char* instruction, uint32_t value, uint32_t lane_mask) {
  if (lane_mask > 31) {
    cta_.fault(instruction, "lane mask: got " + std::to_string(lane_mask) + ", allowed 0 to 31");
  }
  if (Warp* warp = join_warp(instruction, lane_mask, value)) {
    finish_warp(*warp, [&](uint32_t lane) { return warp->value[lane ^ lane_mask]; });
  }
  return cta_.self().collective_result;
}

uint32_t Collectives::broadcast_first(const char* instruction, uint32_t value) {
  if (Warp* warp = join_warp(instruction, 0, value)) {
    finish_warp(*warp, [&](uint32_t) { return warp->value[0]; });
  }
  return cta_.self().collective_result;
}

uint32_t Collectives::shuffle_index(const char* instruction, uint32_t value, uint32_t lane) {
  if (lane > 31) {
    cta_.fault(instruction, "lane: got " + std::to_string(lane) + ", allowed 0 to 31");
  }
  const Thread& thread = cta_.self();
  warps_[thread.warp()].source[thread.lane()] = lane;
  if (Warp* warp = join_warp(instruction, 0, value)) {
    finish_warp(*warp, [&](uint32_t to) { return warp->value[warp->source[to]]; });
  }
  return cta_.self().collective_result;
}

uint32_t Collectives::reduce_max(const char* instruction, uint32_t value) {
  if (Warp* warp = join_warp(instruction, 0, value)) {
    const uint32_t result = *std::max_element(warp->value.begin(), warp->value.end());
    finish_warp(*warp, [&](uint32_t) { return result; });
  }
  return cta_.self().collective_result;
}

bool Collectives::any(const char* instruction, bool predicate) {
  if (Warp* warp = join_warp(instruction, 0, predicate ? 1u : 0u)) {
    uint32_t result = 0;
    for (uint32_t value : warp->value) result |= value;
    finish_warp(*warp, [&](uint32_t) { return result; });
  }
  return cta_.self().collective_result != 0;
}

void Collectives::exchange(const char* instruction, WarpFunction function, LaneWords& words) {
  const Thread& self = cta_.self();
  Warp& own = warps_[self.warp()];
  own.in[self.lane()] = words;
  if (Warp* warp = join_warp(instruction, 0, 0)) {
    function(warp->in, warp->out);
    finish_warp(*warp, [](uint32_t) { return 0u; });
  }
  // The next exchange overwrites `out` only after this lane has come to it.
  words = own.out[self.lane()];
}

void Collectives::named_barrier(const char* instruction, uint32_t id, uint32_t threads,
                                bool waits) {
  cta_.preempt();
  Thread& thread = cta_.self();
  if (id >= named_.size()) {
    cta_.fault(instruction, "barrier: got " + std::to_string(id) + ", allowed 0 to 15");
  }
  if (threads == 0 || threads % 32 != 0 || threads > cta_.thread_count()) {
    cta_.fault(instruction, "thread count: got " + std::to_string(threads) +
                                ", allowed multiples of 32 up to the CTA's " +
                                std::to_string(cta_.thread_count()));
  }
  NamedBarrier& barrier = named_[id];
  if (barrier.count == 0) {
    barrier.threads = threads;
  } else if (barrier.threads != threads) {
    cta_.fault(instruction, "thread count: got " + std::to_string(threads) +
                                ", but others came to " + describe_named_barrier(id));
  }
  uint32_t& lanes = barrier.arrived[thread.warp()];
  if ((lanes & (1u << thread.lane())) != 0) {
    cta_.fault(instruction, "this thread has come already: " + describe_named_barrier(id));
  }
  lanes |= 1u << thread.lane();
  ++barrier.count;
  cta_.release_to(barrier.arriving);
  if (barrier.count == barrier.threads) {
    for (uint32_t warp = 0; warp < barrier.arrived.size(); ++warp) {
      if (barrier.arrived[warp] != 0 && barrier.arrived[warp] != kAllLanes) {
        cta_.fault(instruction, "warp " + std::to_string(warp) +
                                    " came with some lanes only: " + describe_named_barrier(id));
      }
    }
    std::fill(barrier.arrived.begin(), barrier.arrived.end(), 0u);
    barrier.count = 0;
    ++barrier.generation;
    barrier.completed = barrier.arriving;
    if (waits) cta_.acquire_from(barrier.completed);
    for (Thread* waiter : barrier.waiters) cta_.wake(*waiter);
    barrier.waiters.clear();
    return;
  }
  if (!waits) return;
  const uint64_t generation = barrier.generation;
  barrier.waiters.push_back(&thread);
  while (barrier.generation == generation) {
    cta_.block({WaitKind::named_barrier, instruction, id, threads});
  }
  cta_.acquire_from(barrier.completed);
}

void Collectives::set_registers(const char* instruction, uint32_t registers, bool increase) {
  cta_.preempt();
  Thread& thread = cta_.self();
  if (registers < 24 || registers > 256 || registers % 8 != 0) {
    cta_.fault(instruction, "registers: got " + std::to_string(registers) +
                                ", allowed multiples of 8 from 24 to 256");
  }
  if (thread.warpgroup() >= warpgroups_.size()) {
    cta_.fault(instruction, "the thread's warpgroup is incomplete");
  }
  Warpgroup& group = warpgroups_[thread.warpgroup()];
  if (group.arrived == 0) {
    group.instruction = instruction;
    group.target = registers;
    if (increase ? registers < group.registers : registers > group.registers) {
      cta_.fault(instruction, "registers: got " + std::to_string(registers) +
                                  ", but the warpgroup has " + std::to_string(group.registers));
    }
  } else if (std::string_view(group.instruction) != instruction || group.target != registers) {
    cta_.fault(instruction, "registers: got " + std::to_string(registers) +
                                ", but other warps of the warpgroup are at " + group.instruction +
                                " " + std::to_string(group.target));
  }
  ++group.arrived;
  const uint64_t generation = group.generation;
  if (group.arrived < kWarpgroupThreads) {
    while (group.generation == generation) {
      cta_.block({WaitKind::warpgroup, instruction, 0, registers});
    }
    return;
  }
  while (increase && registers - group.registers > free_registers_) {
    register_waiters_.push_back(&thread);
    cta_.block({WaitKind::registers, instruction, 0, registers});
  }
  free_registers_ += group.registers;
  free_registers_ -= registers;
  group.registers = registers;
  group.arrived = 0;
  ++group.generation;
  const uint32_t first = thread.warpgroup() * kWarpgroupThreads;
  for (uint32_t i = 0; i < kWarpgroupThreads; ++i) cta_.wake(cta_.thread(first + i));
  for (Thread* waiter : register_waiters_) cta_.wake(*waiter);
  register_waiters_.clear();
}

std::string Collectives::describe_registers() const {
  std::string text = "free " + std::to_string(free_registers_) + ", warpgroups have";
  for (const Warpgroup& group : warpgroups_) text += " " + std::to_string(group.registers);
  return text;
}

std::string Collectives::describe_named_barrier(uint32_t id) const {
  const NamedBarrier& barrier = named_[id];
  std::string text = "barrier " + std::to_string(id) + ", " + std::to_string(barrier.count) +
                     " of " + std::to_string(barrier.threads) + " threads have come, warps";
  for (uint32_t warp = 0; warp < barrier.arrived.size(); ++warp) {
    if (barrier.arrived[warp] == 0) continue;
    text += " " + std::to_string(warp);
    if (barrier.arrived[warp] != kAllLanes) text += " (in part)";
  }
  return text;
}

void Collectives::check_at_exit() const {
  for (uint32_t id = 0; id < named_.size(); ++id) {
    if (named_[id].count != 0) {
      cta_.fault("exit", "a named barrier is incomplete: " + describe_named_barrier(id));
    }
  }
}

}  // namespace vca::emu
