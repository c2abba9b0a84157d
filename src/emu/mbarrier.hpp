// SPDX-License-Identifier: Apache-2.0
// mbarrier objects of one CTA (PTX ISA 9.7.13.15): expected and pending arrivals, transaction
// count, phase.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "emu/thread.hpp"

namespace vca::emu {

class Barriers {
 public:
  explicit Barriers(Cta& cta);

  void init(uint32_t address, uint32_t count);
  void arrive(const char* instruction, uint32_t address);
  // From a thread of any CTA of the cluster, which must know that this one is alive.
  void arrive_from_cluster(const char* instruction, uint32_t address);
  void arrive_expect_tx(const char* instruction, uint32_t address, uint32_t bytes);
  void wait_parity(const char* instruction, uint32_t address, uint32_t parity);
  bool test_parity(const char* instruction, uint32_t address, uint32_t parity);

  // A bulk copy names its barrier at issue and completes its bytes at landing.
  void check_copy_target(const char* instruction, uint32_t address);
  // Returns the landing's own event.
  Epoch next_landing(uint32_t address);
  // `issuer` is what the copy's thread knew when it issued it. `from_peer`: a thread of another
  // CTA, whose bytes may land before this CTA expects them.
  void complete_tx(uint32_t address, uint32_t bytes, const VectorClock& issuer, bool from_peer);

  void check_at_exit() const;
  std::string describe(uint32_t address) const;

 private:
  struct Barrier {
    uint32_t expected = 0;
    uint32_t pending = 0;
    int64_t tx_bytes = 0;
    uint64_t phase = 0;  // completed phases; its parity is that of the current, incomplete phase
    uint64_t initialised_at = 0;
    std::vector<Thread*> waiters;
    uint32_t component = 0;  // of the clocks, for copies that complete here
    VectorClock arriving;    // what the arrivals of this phase (and earlier ones) know
    VectorClock completed;   // the same when the last phase completed
    Epoch initialised;
  };

  void check_remote_arrivals() const;
  Barrier& find(const char* instruction, uint32_t address);
  Barrier& find_phase(const char* instruction, uint32_t address, uint32_t parity);
  void complete_phase_if_due(Barrier& barrier);
  void count_arrival(const char* instruction, uint32_t address, Barrier& barrier);

  Cta& cta_;
  std::map<uint32_t, Barrier> barriers_;
  VectorClock remote_;  // of each thread of another CTA, its last arrival here
};

}  // namespace vca::emu
