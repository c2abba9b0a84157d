// SPDX-License-Identifier: Apache-2.0
// One CTA being run: its threads, its scheduler, and the units its instructions talk to.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "emu/bulk.hpp"
#include "emu/collective.hpp"
#include "emu/fiber.hpp"
#include "emu/launch.hpp"
#include "emu/mbarrier.hpp"
#include "emu/random.hpp"
#include "emu/smem.hpp"
#include "emu/thread.hpp"
#include "emu/wgmma.hpp"

namespace vca::emu {

class Cta {
 public:
  Cta(const LaunchConfig& config, uint32_t index, StackPool& stacks,
      const std::function<void()>& kernel);
  ~Cta();

  // Runs all threads to their end. Throws what the kernel threw, or Fault.
  LaunchStats run();

  // The CTA and the thread that are running on this OS thread.
  static Cta& current();
  Thread& self() { return *running_; }
  uint32_t index() const { return index_; }
  const LaunchConfig& config() const { return config_; }

  // ---- for the units ----
  [[noreturn]] void fault(const char* instruction, const std::string& what) const;

  // Leaves the CPU until another thread or a unit wakes this one. Callers re-check their condition.
  void block(const WaitSite& site);
  void wake(Thread& thread);
  // A point where a scheduler may run someone else.
  void preempt();
  // Clocks: what the running thread has done becomes known through `to`; it learns what `from`
  // knows.
  VectorClock new_clock() const { return VectorClock(thread_count() + kMaxBarriers); }
  void release_to(VectorClock& to);
  void acquire_from(const VectorClock& from);

  // Strictly increasing; every event that orders something takes one.
  uint64_t tick() { return ++time_; }

  Thread& thread(uint32_t index) { return *threads_[index]; }
  uint32_t thread_count() const { return static_cast<uint32_t>(threads_.size()); }

  SharedMemory& smem() { return *smem_; }
  Barriers& barriers() { return *barriers_; }
  BulkCopies& bulk() { return *bulk_; }
  Collectives& collectives() { return *collectives_; }
  Warpgroup& warpgroup(uint32_t index) { return *warpgroups_[index]; }
  LaunchStats& stats() { return stats_; }
  // Asynchronous work was added; an eager policy runs it soon.
  void async_issued();

 private:
  enum class Lateness : uint8_t { early, random, late };

  static void thread_entry(void* argument);
  void schedule();
  Thread* pick();
  Thread* pick_in_warp(uint32_t warp, bool descending);
  bool run_async_work();  // one piece; false when there is none that can run
  void maybe_run_async_work();
  void draw_lateness();
  void cancel_all();
  void check_at_exit();
  std::string deadlock_report() const;
  std::string describe_place(const Thread& thread) const;
  std::string describe_warp(uint32_t warp) const;
  void leave(bool ending);

  const LaunchConfig& config_;
  uint32_t index_;
  const std::function<void()>& kernel_;
  Random random_;
  uint64_t time_ = 0;
  LaunchStats stats_;

  FiberContext scheduler_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<uint32_t> runnable_;  // lane mask of each warp
  std::vector<uint32_t> priority_;  // of each warp, for the adversarial policy
  Thread* running_ = nullptr;
  Thread* last_ = nullptr;
  uint32_t live_ = 0;
  bool cancelling_ = false;
  Lateness lateness_ = Lateness::random;
  std::exception_ptr failure_;

  std::unique_ptr<SharedMemory> smem_;
  std::unique_ptr<Barriers> barriers_;
  std::unique_ptr<BulkCopies> bulk_;
  std::unique_ptr<Collectives> collectives_;
  std::vector<std::unique_ptr<Warpgroup>> warpgroups_;
};

}  // namespace vca::emu
