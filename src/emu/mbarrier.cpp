// SPDX-License-Identifier: Apache-2.0
#include "emu/mbarrier.hpp"

#include <algorithm>

#include "emu/cluster.hpp"

namespace vca::emu {
namespace {

// PTX ISA 9.7.13.15.2: ranges of the counts in the 64-bit object.
constexpr uint32_t kMaxCount = (1u << 20) - 1;
constexpr int64_t kMaxTxBytes = (1 << 20) - 1;
constexpr uint32_t kObjectBytes = 8;

}  // namespace

Barriers::Barriers(Cta& cta) : cta_(cta), remote_(cta.new_clock()) {}

Barriers::Barrier& Barriers::find(const char* instruction, uint32_t address) {
  cta_.smem().check_range({instruction, "mbarrier"}, address, kObjectBytes, kObjectBytes);
  const auto it = barriers_.find(address);
  if (it == barriers_.end()) {
    cta_.fault(instruction, "no mbarrier has been initialised at " + cta_.smem().where(address));
  }
  if (!it->second.initialised.known_to(cta_.self().clock)) {
    cta_.fault(instruction,
               "race: the mbarrier at " + cta_.smem().where(address) +
                   " was initialised by thread " +
                   std::to_string(it->second.initialised.component - cta_.first_component()) +
                   ", with no synchronisation since");
  }
  return it->second;
}

std::string Barriers::describe(uint32_t address) const {
  const auto it = barriers_.find(address);
  if (it == barriers_.end()) return "not an mbarrier";
  const Barrier& b = it->second;
  return "phase " + std::to_string(b.phase) + " (parity " + std::to_string(b.phase & 1) +
         ") is incomplete, pending arrivals " + std::to_string(b.pending) + " of " +
         std::to_string(b.expected) + ", tx-count " + std::to_string(b.tx_bytes) + " bytes";
}

void Barriers::init(uint32_t address, uint32_t count) {
  constexpr const char* kInstruction = "mbarrier.init";
  cta_.preempt();
  const Access access{kInstruction, "mbarrier"};
  cta_.smem().check_range(access, address, kObjectBytes, kObjectBytes);
  if (count < 1 || count > kMaxCount) {
    cta_.fault(kInstruction, "count: got " + std::to_string(count) + ", allowed 1 to 1048575");
  }
  if (barriers_.count(address) != 0) {
    cta_.fault(kInstruction, "an mbarrier lives at " + cta_.smem().where(address) +
                                 " already: initialise it once");
  }
  if (barriers_.size() == kMaxBarriers) {
    cta_.fault(kInstruction, "the emulator follows up to 128 mbarriers of a CTA");
  }
  cta_.smem().claim_barrier(access, address);
  const Thread& thread = cta_.self();
  Barrier barrier;
  barrier.expected = count;
  barrier.pending = count;
  barrier.initialised = {thread.component, thread.clock[thread.component]};
  barrier.initialised_at = cta_.tick();
  barrier.component =
      cta_.first_component() + cta_.thread_count() + static_cast<uint32_t>(barriers_.size());
  barrier.arriving = cta_.new_clock();
  barrier.completed = cta_.new_clock();
  barriers_.emplace(address, std::move(barrier));
}

void Barriers::complete_phase_if_due(Barrier& barrier) {
  if (barrier.pending != 0 || barrier.tx_bytes != 0) return;
  ++barrier.phase;
  barrier.pending = barrier.expected;
  barrier.completed = barrier.arriving;
  for (Thread* thread : barrier.waiters) cta_.wake(*thread);
  barrier.waiters.clear();
}

void Barriers::count_arrival(const char* instruction, uint32_t address, Barrier& barrier) {
  if (barrier.pending == 0) {
    cta_.fault(instruction, "more arrivals than the mbarrier at " + cta_.smem().where(address) +
                                " expects in this phase: " + describe(address));
  }
  --barrier.pending;
  if (barrier.pending == 0 && barrier.tx_bytes < 0) {
    cta_.fault(instruction, "more bytes landed on the mbarrier at " + cta_.smem().where(address) +
                                " in this phase than were expected: " + describe(address));
  }
  cta_.release_to(barrier.arriving);
  complete_phase_if_due(barrier);
}

void Barriers::arrive(const char* instruction, uint32_t address) {
  cta_.preempt();
  count_arrival(instruction, address, find(instruction, address));
}

void Barriers::arrive_from_cluster(const char* instruction, uint32_t address) {
  Cta::current().preempt();
  if (cta_.exited()) {
    cta_.fault(instruction, "arrives at an mbarrier of CTA " + std::to_string(cta_.index()) +
                                ", which has exited");
  }
  Barrier& barrier = find(instruction, address);
  if (cta_.is_remote()) {
    const Thread& thread = cta_.self();
    remote_.set(thread.component, thread.clock[thread.component]);
  }
  count_arrival(instruction, address, barrier);
}

void Barriers::arrive_expect_tx(const char* instruction, uint32_t address, uint32_t bytes) {
  cta_.preempt();
  Barrier& barrier = find(instruction, address);
  if (barrier.tx_bytes + int64_t{bytes} > kMaxTxBytes) {
    cta_.fault(instruction, "tx-count above 1048575 bytes with " + std::to_string(bytes) +
                                " more: " + describe(address));
  }
  barrier.tx_bytes += bytes;
  count_arrival(instruction, address, barrier);
}

Barriers::Barrier& Barriers::find_phase(const char* instruction, uint32_t address,
                                        uint32_t parity) {
  if (parity > 1) {
    cta_.fault(instruction, "parity: got " + std::to_string(parity) + ", allowed 0 and 1");
  }
  return find(instruction, address);
}

bool Barriers::test_parity(const char* instruction, uint32_t address, uint32_t parity) {
  cta_.preempt();
  const Barrier& barrier = find_phase(instruction, address, parity);
  if ((barrier.phase & 1) == parity) return false;
  cta_.acquire_from(barrier.completed);
  return true;
}

void Barriers::wait_parity(const char* instruction, uint32_t address, uint32_t parity) {
  cta_.preempt();
  Barrier& barrier = find_phase(instruction, address, parity);
  while ((barrier.phase & 1) == parity) {
    barrier.waiters.push_back(&cta_.self());
    cta_.block({WaitKind::mbarrier, instruction, address, parity});
  }
  cta_.acquire_from(barrier.completed);
}

void Barriers::check_copy_target(const char* instruction, uint32_t address) {
  const Barrier& barrier = find(instruction, address);
  const Thread& initialiser = cta_.thread(barrier.initialised.component - cta_.first_component());
  const uint64_t fenced =
      std::max(initialiser.mbarrier_init_fence_at, cta_.self().mbarrier_init_fence_at);
  if (fenced < barrier.initialised_at) {
    cta_.fault(instruction, "the async proxy would use the mbarrier at " +
                                cta_.smem().where(address) + ", initialised by thread " +
                                std::to_string(initialiser.index) +
                                " with no fence.mbarrier_init since");
  }
}

Epoch Barriers::next_landing(uint32_t address) {
  Barrier& barrier = barriers_.at(address);
  barrier.arriving.advance(barrier.component);
  return {barrier.component, barrier.arriving[barrier.component]};
}

void Barriers::complete_tx(uint32_t address, uint32_t bytes, const VectorClock& issuer,
                           bool from_peer) {
  Barrier& barrier = barriers_.at(address);
  // The peer's own arrive.expect_tx may be late; but once all have arrived, nothing can follow it.
  const bool may_precede = from_peer && barrier.pending != 0;
  if (barrier.tx_bytes < int64_t{bytes} && !may_precede) {
    cta_.fault("complete_tx", std::to_string(bytes) + " bytes landed on the mbarrier at " +
                                  cta_.smem().where(address) +
                                  ", which expects fewer: expect_tx missing, too small, or issued "
                                  "after the copy: " +
                                  describe(address));
  }
  barrier.tx_bytes -= bytes;
  if (barrier.tx_bytes < -kMaxTxBytes) {
    cta_.fault("complete_tx", "tx-count below -1048575 bytes: " + describe(address));
  }
  barrier.arriving.join(issuer);
  complete_phase_if_due(barrier);
}

// A remote arrival that nobody here knows of may as well come after the exit: shared memory of a
// CTA must outlive the others' accesses (a cluster barrier at the end).
void Barriers::check_remote_arrivals() const {
  VectorClock known = cta_.new_clock();
  for (uint32_t i = 0; i < cta_.thread_count(); ++i) known.join(cta_.thread(i).clock);
  for (uint32_t c = 0; c < cta_.cluster().size() * cta_.components(); ++c) {
    if (remote_[c] <= known[c]) continue;
    const Cta& other = cta_.cluster().cta(c / cta_.components());
    cta_.fault("exit", "thread " + std::to_string(c % cta_.components()) + " of CTA " +
                           std::to_string(other.index()) +
                           " has arrived at an mbarrier here, and no thread of this CTA knows it: "
                           "it might come after the exit");
  }
}

void Barriers::check_at_exit() const {
  if (cta_.cluster().size() > 1) check_remote_arrivals();
  for (const auto& [address, barrier] : barriers_) {
    if (barrier.tx_bytes != 0) {
      cta_.fault("exit", "the mbarrier at " + cta_.smem().where(address) +
                             (barrier.tx_bytes > 0 ? " still expects bytes: "
                                                   : " got bytes that nobody expected: ") +
                             describe(address));
    }
    // A CTA must not end with a copy in flight, so somebody has to have waited for each.
    bool known = false;
    for (uint32_t i = 0; i < cta_.thread_count() && !known; ++i) {
      known = cta_.thread(i).clock[barrier.component] == barrier.arriving[barrier.component];
    }
    if (!known) {
      cta_.fault("exit", "nobody waited for the last bulk copy on the mbarrier at " +
                             cta_.smem().where(address));
    }
  }
}

}  // namespace vca::emu
