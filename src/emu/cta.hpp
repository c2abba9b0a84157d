// SPDX-License-Identifier: Apache-2.0
// One CTA being run: its threads, which of them runs next, and the units its instructions talk to.
#pragma once

#include <cstdint>
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

class Cluster;

class Cta {
 public:
  // `index` in the grid, `rank` in the cluster.
  Cta(Cluster& cluster, const LaunchConfig& config, uint32_t index, uint32_t rank,
      StackPool& stacks, const std::function<void()>& kernel);
  ~Cta();

  // The CTA of the thread that is running on this OS thread.
  static Cta& current();
  // That thread: it may be another CTA's, when it touches this one.
  Thread& self() const;
  uint32_t index() const { return index_; }
  uint32_t rank() const { return rank_; }
  Cluster& cluster() { return cluster_; }
  const LaunchConfig& config() const { return config_; }

  // ---- for the units ----
  [[noreturn]] void fault(const char* instruction, const std::string& what) const;
  // Another CTA's thread is running.
  bool is_remote() const;

  // Leaves the CPU until another thread or a unit wakes this one. Callers re-check their condition.
  void block(const WaitSite& site);
  void wake(Thread& thread);
  // A point where a scheduler may run someone else.
  void preempt();
  // Clocks: what the running thread has done becomes known through `to`; it learns what `from`
  // knows.
  VectorClock new_clock() const { return VectorClock(config_.cluster * components()); }
  // Components of a CTA, and the first one of this CTA: its thread 0.
  uint32_t components() const { return config_.threads + kMaxBarriers; }
  uint32_t first_component() const { return rank_ * components(); }
  void release_to(VectorClock& to);
  void acquire_from(const VectorClock& from);

  uint64_t tick();

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

  // ---- for the cluster ----
  uint32_t live() const { return live_; }  // threads that have not ended
  bool exited() const { return live_ == 0; }
  bool runnable() const;
  void run_one();         // a thread, until it leaves the CPU
  bool run_async_work();  // one piece; false when there is none that can run
  void maybe_run_async_work();
  void check_at_exit();
  std::string deadlock_report() const;

 private:
  enum class Lateness : uint8_t { early, random, late };

  static void thread_entry(void* argument);
  Thread* pick();
  Thread* pick_in_warp(uint32_t warp, bool descending);
  void draw_lateness();
  std::string describe_place(const Thread& thread) const;
  std::string describe_warp(uint32_t warp) const;

  Cluster& cluster_;
  const LaunchConfig& config_;
  uint32_t index_, rank_;
  const std::function<void()>& kernel_;
  Random random_;
  LaunchStats stats_;

  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<uint32_t> runnable_;  // lane mask of each warp
  std::vector<uint32_t> priority_;  // of each warp, for the adversarial policy
  Thread* last_ = nullptr;
  uint32_t live_ = 0;
  Lateness lateness_ = Lateness::random;

  std::unique_ptr<SharedMemory> smem_;
  std::unique_ptr<Barriers> barriers_;
  std::unique_ptr<BulkCopies> bulk_;
  std::unique_ptr<Collectives> collectives_;
  std::vector<std::unique_ptr<Warpgroup>> warpgroups_;
};

}  // namespace vca::emu
