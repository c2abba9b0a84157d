// SPDX-License-Identifier: Apache-2.0
#include "emu/wgmma.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "emu/cta.hpp"
#include "emu/operand.hpp"
#include "emu/registers.hpp"

namespace vca::emu {
namespace {

// A signalling NaN that no arithmetic makes, and a large integer: use before the wait shows.
constexpr uint32_t kPoisonD = 0x7FA5C3D1u;
constexpr uint32_t kPoisonA = 0xFFFFFFFFu;
constexpr uint32_t kARegisters = 4;

RegisterWord* as_registers(const void* p) {
  return static_cast<RegisterWord*>(const_cast<void*>(p));
}

uint32_t in_group(const Thread& thread) { return thread.index % kWarpgroupThreads; }

bool overlaps(const RegisterRange& range, const RegisterWord* base, uint32_t count) {
  return range.base < base + count && base < range.base + range.count;
}

bool same(const RegisterRange& range, const RegisterWord* base, uint32_t count,
          bool is_accumulator) {
  return range.base == base && range.count == count && range.is_accumulator == is_accumulator;
}

}  // namespace

void Warpgroup::fence() {
  cta_.preempt();
  Thread& thread = cta_.self();
  thread.wgmma_fence_at = cta_.tick();
  for (RegisterRange& range : thread.ranges) {
    if (range.users != 0) continue;
    range.at_fence.resize(range.count);
    read_registers(range.base, range.count, range.at_fence.data());
  }
}

// Faults where the registers may have been touched since the last wgmma.fence; then hands them to
// the instruction: value kept, registers poisoned.
RegisterRange& Warpgroup::take_registers(Thread& thread, const char* instruction,
                                         RegisterWord* base, uint32_t count, bool is_accumulator,
                                         bool accumulate) {
  const char* name = is_accumulator ? "accumulator" : "A fragment";
  if (thread.wgmma_fence_at == 0) {
    cta_.fault(instruction, "no wgmma.fence before the first wgmma");
  }
  const auto needs_fence = [&](const char* what) {
    cta_.fault(instruction, std::string(name) + ": " + what +
                                " since the last wgmma.fence: a fence must stand between register "
                                "accesses and the wgmma");
  };
  RegisterRange* found = nullptr;
  for (size_t i = 0; i < thread.ranges.size();) {
    RegisterRange& range = thread.ranges[i];
    if (same(range, base, count, is_accumulator)) {
      found = &range;
    } else if (overlaps(range, base, count)) {
      if (range.users != 0) {
        cta_.fault(instruction, std::string(name) +
                                    ": the registers belong in another shape or role to a wgmma "
                                    "that has not been waited for");
      }
      if (range.released_at > thread.wgmma_fence_at) {
        needs_fence("released by wait_group in another shape or role");
      }
      range = std::move(thread.ranges.back());
      thread.ranges.pop_back();
      found = nullptr;
      i = 0;  // `found` may have moved
      continue;
    }
    ++i;
  }
  if (found == nullptr) {
    thread.ranges.emplace_back();
    found = &thread.ranges.back();
    found->base = base;
    found->count = count;
    found->is_accumulator = is_accumulator;
    return *found;
  }
  RegisterRange& range = *found;
  const bool value_matters = !is_accumulator || accumulate;
  if (range.users != 0) {
    const uint32_t poison = is_accumulator ? kPoisonD : kPoisonA;
    if (!registers_filled(base, count, poison)) {
      cta_.fault(instruction, std::string(name) +
                                  ": written while a wgmma that owns it has not been waited for");
    }
  } else if (range.released_at > thread.wgmma_fence_at) {
    // Instructions that add to one accumulator in turn need no fence between them.
    const bool untouched =
        is_accumulator && accumulate && registers_equal(base, count, range.at_release.data());
    if (!untouched) needs_fence("released by wait_group");
  } else if (value_matters && !range.at_fence.empty() &&
             !registers_equal(base, count, range.at_fence.data())) {
    needs_fence("written");
  }
  return range;
}

void Warpgroup::start_op(Op& op, const WgmmaCall& call, uint64_t number) {
  op.call = call;
  op.first_thread = cta_.self().index;
  if (call.a == nullptr) {
    const std::string error = operand_chunks(call.a_desc, kMmaRows, op.a_chunks);
    if (!error.empty()) cta_.fault(call.instruction, "A: " + error);
  }
  const std::string error = operand_chunks(call.b_desc, call.n, op.b_chunks);
  if (!error.empty()) cta_.fault(call.instruction, "B: " + error);
  cta_.smem().lock({call.instruction, "A"}, op.a_chunks, index_, number);
  cta_.smem().lock({call.instruction, "B"}, op.b_chunks, index_, number);
  op.locked = true;
}

void Warpgroup::join_op(Op& op, const WgmmaCall& call, Thread& thread) {
  const uint32_t t = in_group(thread);
  const char* instruction = call.instruction;
  if (std::string_view(op.call.instruction) != instruction || op.call.a_desc != call.a_desc ||
      op.call.b_desc != call.b_desc || op.call.accumulate != call.accumulate) {
    cta_.fault(instruction,
               "threads of the warpgroup differ in instruction, descriptors or "
               "scale-d: thread " +
                   std::to_string(op.first_thread) + " issued " + op.call.instruction);
  }
  if (thread.lane() == 0) {  // for its warp: the lanes issue together
    cta_.smem().check_known({instruction, "A"}, op.a_chunks);
    cta_.smem().check_known({instruction, "B"}, op.b_chunks);
  }
  const uint32_t count = call.n / 2;
  RegisterWord* d = as_registers(call.d);
  RegisterRange& range = take_registers(thread, instruction, d, count, true, call.accumulate);
  const bool starts = range.users == 0;
  if (op.arrived == 0) {
    op.starts_accumulator = starts;
    op.accumulator = starts ? std::make_shared<Accumulator>() : range.accumulator;
    if (starts) {
      op.accumulator->n = call.n;
      op.accumulator->value.assign(size_t{kMmaRows} * call.n, 0);
    }
  } else if (op.starts_accumulator != starts || (!starts && op.accumulator != range.accumulator)) {
    cta_.fault(instruction, "threads of the warpgroup differ in the accumulator they continue");
  }
  if (starts) {
    uint32_t values[kMmaMaxN / 2];
    read_registers(d, count, values);
    for (uint32_t i = 0; call.accumulate && i < count; ++i) {
      op.accumulator->value[d_row(t, i) * call.n + d_column(t, i)] = values[i];
    }
    fill_registers(d, count, kPoisonD);
    range.accumulator = op.accumulator;
  }
  ++range.users;
  op.d[t] = d;
  if (call.a != nullptr) {
    RegisterWord* a = as_registers(call.a);
    RegisterRange& fragment = take_registers(thread, instruction, a, kARegisters, false, false);
    if (fragment.users == 0) {
      fragment.held.resize(kARegisters);
      read_registers(a, kARegisters, fragment.held.data());
      fill_registers(a, kARegisters, kPoisonA);
    }
    std::copy(fragment.held.begin(), fragment.held.end(), op.a_value[t].begin());
    ++fragment.users;
    op.a[t] = a;
  }
  ++op.arrived;
}

void Warpgroup::issue(const WgmmaCall& call) {
  cta_.preempt();
  Thread& thread = cta_.self();
  if (thread.issued == issued_ops()) {
    ops_.push_back(std::make_unique<Op>());
    start_op(*ops_.back(), call, thread.issued);
  }
  Op& current = op(thread.issued);
  join_op(current, call, thread);
  ++thread.issued;
  if (current.arrived == kWarpgroupThreads) {
    ++cta_.stats().matrix_products;
    for (Thread* waiter : waiters_) cta_.wake(*waiter);
    waiters_.clear();
    cta_.async_issued();
  }
}

void Warpgroup::commit() {
  cta_.preempt();
  Thread& thread = cta_.self();
  if (thread.committed == group_end_.size()) {
    group_end_.push_back(thread.issued);
  } else if (group_end_[thread.committed] != thread.issued) {
    cta_.fault("wgmma.commit_group",
               "group " + std::to_string(thread.committed) + " of this thread ends after " +
                   std::to_string(thread.issued) + " instructions, of others after " +
                   std::to_string(group_end_[thread.committed]));
  }
  ++thread.committed;
}

void Warpgroup::wait(const char* instruction, uint32_t pending_groups) {
  cta_.preempt();
  Thread& thread = cta_.self();
  if (thread.committed <= pending_groups) return;
  const uint64_t until = group_end_[thread.committed - pending_groups - 1];
  for (;;) {
    const bool assembled =
        until == 0 || until <= first_op_ || op(until - 1).arrived == kWarpgroupThreads;
    if (assembled) break;
    waiters_.push_back(&thread);
    cta_.block({WaitKind::wgmma, instruction, 0, pending_groups});
  }
  while (executed_ops_ < until) run_next();
  if (until > thread.retired) retire(thread, until);
}

bool Warpgroup::has_ready() const {
  return executed_ops_ < issued_ops() && op(executed_ops_).arrived == kWarpgroupThreads;
}

void Warpgroup::run_next() {
  Op& next = op(executed_ops_);
  execute(next);
  next.executed = true;
  ++executed_ops_;
}

void Warpgroup::execute(Op& op) {
  uint8_t a[kMmaRows * kMmaKBytes];
  uint8_t b[kMmaMaxN * kMmaKBytes];
  if (op.call.a == nullptr) {
    for (size_t i = 0; i < op.a_chunks.size(); ++i) {
      std::memcpy(a + 16 * i, cta_.smem().chunk(op.a_chunks[i]), 16);
    }
  } else {
    for (uint32_t t = 0; t < kWarpgroupThreads; ++t) {
      for (uint32_t i = 0; i < kARegisters; ++i) {
        std::memcpy(a + a_row(t, i) * kMmaKBytes + a_byte(t, i), &op.a_value[t][i], 4);
      }
    }
  }
  for (size_t i = 0; i < op.b_chunks.size(); ++i) {
    std::memcpy(b + 16 * i, cta_.smem().chunk(op.b_chunks[i]), 16);
  }
  std::vector<uint32_t>& d = op.accumulator->value;
  if (!op.call.accumulate) std::fill(d.begin(), d.end(), 0u);
  mma_execute(op.call.type, op.call.n, a, b, d.data());
}

void Warpgroup::release_registers(Thread& thread, const char* instruction, RegisterWord* base,
                                  uint32_t count) {
  const auto it =
      std::find_if(thread.ranges.begin(), thread.ranges.end(), [&](const RegisterRange& range) {
        return range.users != 0 && range.base == base && range.count == count;
      });
  RegisterRange& range = *it;  // users keep a range in the list
  if (--range.users != 0) return;
  const uint32_t poison = range.is_accumulator ? kPoisonD : kPoisonA;
  if (!registers_filled(base, count, poison)) {
    cta_.fault(instruction, std::string(range.is_accumulator ? "accumulator" : "A fragment") +
                                ": written while a wgmma that owns it was in flight");
  }
  if (range.is_accumulator) {
    const Accumulator& matrix = *range.accumulator;
    const uint32_t t = in_group(thread);
    range.at_release.resize(count);
    for (uint32_t i = 0; i < count; ++i) {
      range.at_release[i] = matrix.value[d_row(t, i) * matrix.n + d_column(t, i)];
    }
    range.accumulator.reset();
  } else {
    range.at_release = range.held;
  }
  write_registers(base, count, range.at_release.data());
  range.released_at = cta_.tick();
  range.at_fence.clear();
}

void Warpgroup::retire(Thread& thread, uint64_t until) {
  const uint32_t t = in_group(thread);
  for (uint64_t number = thread.retired; number < until; ++number) {
    Op& done = op(number);
    if (done.locked) {
      cta_.smem().unlock(done.a_chunks);
      cta_.smem().unlock(done.b_chunks);
      done.locked = false;
    }
    release_registers(thread, "wgmma.wait_group", as_registers(done.d[t]), done.call.n / 2);
    if (done.call.a != nullptr) {
      release_registers(thread, "wgmma.wait_group", as_registers(done.a[t]), kARegisters);
    }
    ++done.retired;
  }
  thread.retired = until;
  thread.retirements.push_back({until, thread.clock[thread.component]});
  while (!ops_.empty() && ops_.front()->retired == kWarpgroupThreads) {
    ops_.pop_front();
    ++first_op_;
  }
}

bool Warpgroup::retirement_known(uint64_t number) const {
  const VectorClock& clock = cta_.self().clock;
  for (uint32_t t = 0; t < kWarpgroupThreads; ++t) {
    const Thread& thread = cta_.thread(index_ * kWarpgroupThreads + t);
    // The first wait that covered the instruction.
    const auto it = std::upper_bound(
        thread.retirements.begin(), thread.retirements.end(), number,
        [](uint64_t n, const Thread::Retirement& retirement) { return n < retirement.until; });
    if (it != thread.retirements.end() && it->time <= clock[thread.component]) return true;
  }
  return false;
}

void Warpgroup::check_at_exit() const {
  if (ops_.empty()) return;
  cta_.fault("exit", "warpgroup " + std::to_string(index_) + ": " + std::to_string(ops_.size()) +
                         " wgmma were never waited for, the first is " +
                         ops_.front()->call.instruction);
}

std::string Warpgroup::describe_wait(const Thread& thread) const {
  const uint64_t until = group_end_[thread.committed - thread.wait.detail - 1];
  std::string text = "pending groups allowed " + std::to_string(thread.wait.detail) +
                     ", groups committed " + std::to_string(thread.committed);
  if (until > first_op_ && until <= issued_ops()) {
    text += ", the last instruction waited for was issued by " +
            std::to_string(op(until - 1).arrived) + " of 128 threads";
  }
  return text;
}

}  // namespace vca::emu
