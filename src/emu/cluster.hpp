// SPDX-License-Identifier: Apache-2.0
// A cluster of CTAs being run, or one CTA alone: which of them runs next, and what they share:
// time, the cluster barrier, a failure.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emu/cta.hpp"

namespace vca::emu {

// Addresses in the shared::cluster window (mapa): the CTA's rank + 1 above the 24 bits of an
// address in its own window; without a rank, the running CTA.
inline constexpr uint32_t kClusterAddressShift = 24;

class Cluster {
 public:
  // The `index`-th cluster of the grid. One stack a thread, rank by rank.
  Cluster(const LaunchConfig& config, uint32_t index, StackPool& stacks,
          const std::function<void()>& kernel);
  ~Cluster();

  // Runs all threads of all CTAs to their end. Throws what the kernel threw, or Fault.
  LaunchStats run();

  // The cluster that is running on this OS thread; null outside of a launch.
  static Cluster* current();
  Thread* running() const { return running_; }
  uint32_t size() const { return static_cast<uint32_t>(ctas_.size()); }
  Cta& cta(uint32_t rank) { return *ctas_[rank]; }

  // Strictly increasing; every event that orders something takes one.
  uint64_t tick() { return ++time_; }

  // The first failure ends the cluster.
  void fail(std::exception_ptr failure);
  bool cancelling() const { return cancelling_; }

  // barrier.cluster (PTX ISA 9.7.13.3): a phase is complete when every thread that has not ended
  // has arrived.
  void barrier_arrive(const char* instruction);
  void barrier_wait(const char* instruction);
  std::string describe_barrier() const;

  // ---- for Cta ----
  // Gives the CPU to a thread until it blocks, is pre-empted or ends.
  void resume(Thread& thread);
  // Leaves the CPU to the scheduler.
  void leave(bool ending);
  void thread_ended(const Thread& thread);

 private:
  void schedule();
  Cta* pick();
  bool run_async_work();
  void cancel_all();
  void complete_barrier_if_due();
  uint32_t live_threads() const;
  std::string deadlock_report() const;

  const LaunchConfig& config_;
  std::vector<std::unique_ptr<Cta>> ctas_;
  Random random_;  // unused with one CTA, whose schedule is its own
  FiberContext scheduler_;
  Thread* running_ = nullptr;
  uint32_t favourite_ = 0;  // of the adversarial policy; the last one of round_robin
  uint64_t time_ = 0;
  bool cancelling_ = false;
  std::exception_ptr failure_;

  uint32_t barrier_pending_ = 0;
  uint64_t barrier_phase_ = 0;  // completed phases
  std::vector<Thread*> barrier_waiters_;
  VectorClock barrier_arriving_, barrier_completed_;
};

}  // namespace vca::emu
