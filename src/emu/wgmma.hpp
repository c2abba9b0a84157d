// SPDX-License-Identifier: Apache-2.0
// wgmma of one warpgroup (PTX ISA 9.7.15): instructions are collected from 128 threads, read their
// operands at a time of the scheduler's choice, and give their registers back at wait_group.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "emu/mma_exec.hpp"
#include "emu/thread.hpp"

namespace vca::emu {

inline constexpr uint32_t kWarpgroupThreads = 128;

// What one thread passes to wgmma.mma_async.
struct WgmmaCall {
  const char* instruction = "";
  MmaType type = MmaType::s8;
  uint32_t n = 0;
  void* d = nullptr;            // n / 2 registers
  const uint32_t* a = nullptr;  // 4 registers, or null: a_desc
  uint64_t a_desc = 0;
  uint64_t b_desc = 0;
  bool accumulate = false;
};

// The matrix D while instructions own it, row-major 64 × n.
struct Accumulator {
  uint32_t n = 0;
  std::vector<uint32_t> value;
};

class Warpgroup {
 public:
  Warpgroup(Cta& cta, uint32_t index) : cta_(cta), index_(index) {}

  void fence();
  void issue(const WgmmaCall& call);
  void commit();
  void wait(const char* instruction, uint32_t pending_groups);

  // Asynchronous execution, in issue order.
  bool has_ready() const;
  void run_next();

  // Whether the running thread knows that some thread of this warpgroup has waited for instruction
  // `number`.
  bool retirement_known(uint64_t number) const;

  void check_at_exit() const;
  std::string describe_wait(const Thread& thread) const;

 private:
  struct Op {
    WgmmaCall call;  // of the first thread
    uint32_t first_thread = 0;
    uint32_t arrived = 0;
    uint32_t retired = 0;
    bool executed = false;
    bool locked = false;
    bool starts_accumulator = false;  // no earlier instruction in flight has the same registers
    std::shared_ptr<Accumulator> accumulator;
    std::array<void*, kWarpgroupThreads> d = {};
    std::array<void*, kWarpgroupThreads> a = {};
    std::array<std::array<uint32_t, 4>, kWarpgroupThreads> a_value = {};
    std::vector<uint32_t> a_chunks;  // shared-memory addresses, row-major, two a row
    std::vector<uint32_t> b_chunks;
  };

  Op& op(uint64_t number) { return *ops_[number - first_op_]; }
  const Op& op(uint64_t number) const { return *ops_[number - first_op_]; }
  uint64_t issued_ops() const { return first_op_ + ops_.size(); }

  void start_op(Op& op, const WgmmaCall& call, uint64_t number);
  void join_op(Op& op, const WgmmaCall& call, Thread& thread);
  RegisterRange& take_registers(Thread& thread, const char* instruction, RegisterWord* base,
                                uint32_t count, bool is_accumulator, bool accumulate);
  void release_registers(Thread& thread, const char* instruction, RegisterWord* base,
                         uint32_t count);
  void retire(Thread& thread, uint64_t until);
  void execute(Op& op);

  Cta& cta_;
  uint32_t index_;
  std::deque<std::unique_ptr<Op>> ops_;  // from the oldest that some thread has not retired
  uint64_t first_op_ = 0;
  uint64_t executed_ops_ = 0;
  std::vector<uint64_t> group_end_;  // instructions issued when group g was committed
  std::vector<Thread*> waiters_;
};

}  // namespace vca::emu
