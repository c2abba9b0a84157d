// SPDX-License-Identifier: Apache-2.0
#include "emu/cta.hpp"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "emu/cluster.hpp"

namespace vca::emu {
namespace {

// Unwinds a thread whose CTA has failed elsewhere. Never leaves the fiber's entry function.
struct Cancelled {};

constexpr uint64_t kDefaultMaxSteps = uint64_t{1} << 40;
// How often, in instructions of the layer, the random policies take the CPU away.
constexpr uint32_t kPreemptOneIn = 8;
constexpr uint32_t kPriorityChangeOneIn = 64;
// Asynchronous work at random: one piece in so many scheduling steps.
constexpr uint32_t kAsyncOneIn = 16;

uint32_t launch_registers(const LaunchConfig& config) {
  if (config.registers != 0) return config.registers;
  return std::min(65536u / config.threads / 8u * 8u, 255u);
}

}  // namespace

Cta::Cta(Cluster& cluster, const LaunchConfig& config, uint32_t index, uint32_t rank,
         StackPool& stacks, const std::function<void()>& kernel)
    : cluster_(cluster),
      config_(config),
      index_(index),
      rank_(rank),
      kernel_(kernel),
      // A CTA's schedule depends on the seed and its index only, not on the OS thread it runs on.
      random_(config.seed * 0x9E3779B97F4A7C15ull + index) {
  random_.next();
  // The base moves with the seed, so that a kernel cannot rely on one.
  const uint32_t slack =
      (kMaxSmemBytes - config.smem_bytes) / kSmemAlignment_bytes;  // checked by launch()
  uint32_t base = kSmemAlignment_bytes * (1 + random_.below(std::min(slack, 3u) + 1));
  // All CTAs of a cluster have the same: multicasts name one address for all.
  if (rank != 0) base = cluster.cta(0).smem().base();
  smem_ = std::make_unique<SharedMemory>(*this, base, config.smem_bytes,
                                         config.threads / kWarpgroupThreads);
  barriers_ = std::make_unique<Barriers>(*this);
  bulk_ = std::make_unique<BulkCopies>(*this);
  collectives_ = std::make_unique<Collectives>(*this, config.threads, launch_registers(config));
  for (uint32_t i = 0; i < config.threads / kWarpgroupThreads; ++i) {
    warpgroups_.push_back(std::make_unique<Warpgroup>(*this, i));
  }
  for (uint32_t i = 0; i < config.threads; ++i) {
    auto thread = std::make_unique<Thread>();
    thread->cta = this;
    thread->index = i;
    thread->component = first_component() + i;
    thread->clock = new_clock();
    thread->clock.set(thread->component, 1);
    thread->context.prepare(stacks.bottom(rank * config.threads + i), stacks.stack_bytes(),
                            &Cta::thread_entry, thread.get());
    threads_.push_back(std::move(thread));
  }
  runnable_.assign(config.threads / 32, 0xFFFFFFFFu);
  priority_.resize(runnable_.size());
  std::iota(priority_.begin(), priority_.end(), 0u);
  for (size_t i = priority_.size(); i > 1; --i) {
    std::swap(priority_[i - 1], priority_[random_.below(static_cast<uint32_t>(i))]);
  }
  live_ = config.threads;
  if (config.policy == Policy::reverse) lateness_ = Lateness::late;
  if (config.policy == Policy::adversarial) draw_lateness();
}

Cta::~Cta() = default;

Cta& Cta::current() {
  if (Cluster::current() == nullptr) {
    throw Fault("an instruction of the layer was called outside emu::launch");
  }
  return *Cluster::current()->running()->cta;
}

Thread& Cta::self() const { return *cluster_.running(); }
bool Cta::is_remote() const {
  return cluster_.running() != nullptr && cluster_.running()->cta != this;
}
uint64_t Cta::tick() { return cluster_.tick(); }

void Cta::thread_entry(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  Cta& cta = *thread.cta;
  Cluster& cluster = cta.cluster_;
  try {
    if (!cluster.cancelling()) cta.kernel_();
  } catch (const Cancelled&) {
  } catch (...) {
    cluster.fail(std::current_exception());
  }
  thread.finished = true;
  cta.runnable_[thread.warp()] &= ~(1u << thread.lane());
  --cta.live_;
  cluster.thread_ended(thread);
  cluster.leave(true);
}

void Cta::fault(const char* instruction, const std::string& what) const {
  const Thread* running = cluster_.running();
  std::string text = "CTA " + std::to_string(running != nullptr ? running->cta->index_ : index_);
  if (running != nullptr) {
    text += ", thread " + std::to_string(running->index) + " (warp " +
            std::to_string(running->warp()) + ", lane " + std::to_string(running->lane()) + ")";
  }
  text += ": ";
  if (instruction[0] != '\0') text += std::string(instruction) + ": ";
  throw Fault(text + what);
}

void Cta::block(const WaitSite& site) {
  Thread& thread = self();
  if (cluster_.cancelling()) throw Cancelled{};
  thread.wait = site;
  runnable_[thread.warp()] &= ~(1u << thread.lane());
  cluster_.leave(false);
  thread.wait = WaitSite{};
  if (cluster_.cancelling()) throw Cancelled{};
}

void Cta::wake(Thread& thread) {
  if (!thread.finished) runnable_[thread.warp()] |= 1u << thread.lane();
}

void Cta::preempt() {
  if (cluster_.cancelling()) throw Cancelled{};
  const bool random = config_.policy == Policy::random;
  const bool adversarial = config_.policy == Policy::adversarial;
  if (!random && !adversarial) return;
  if (adversarial && random_.one_in(kPriorityChangeOneIn)) {
    priority_[self().warp()] = 0;
    for (uint32_t& p : priority_) ++p;
    priority_[self().warp()] = 0;
    if (random_.one_in(8)) draw_lateness();
  }
  if (!random_.one_in(kPreemptOneIn)) return;
  cluster_.leave(false);
  if (cluster_.cancelling()) throw Cancelled{};
}

void Cta::release_to(VectorClock& to) {
  Thread& thread = self();
  to.join(thread.clock);
  thread.clock.advance(thread.component);
}

void Cta::acquire_from(const VectorClock& from) { self().clock.join(from); }

void Cta::draw_lateness() {
  constexpr Lateness kAll[] = {Lateness::early, Lateness::random, Lateness::late};
  lateness_ = kAll[random_.below(3)];
}

void Cta::async_issued() {
  if (lateness_ == Lateness::early) run_async_work();
}

bool Cta::run_async_work() {
  const uint32_t copies = static_cast<uint32_t>(bulk_->in_flight());
  uint32_t ready = 0;
  for (const auto& group : warpgroups_) ready += group->has_ready() ? 1u : 0u;
  if (copies + ready == 0) return false;
  uint32_t choice = random_.below(copies + ready);
  if (choice < copies) {
    bulk_->land(choice);
    return true;
  }
  choice -= copies;
  for (const auto& group : warpgroups_) {
    if (!group->has_ready()) continue;
    if (choice-- == 0) {
      group->run_next();
      break;
    }
  }
  return true;
}

void Cta::maybe_run_async_work() {
  if (lateness_ == Lateness::random && random_.one_in(kAsyncOneIn)) run_async_work();
  if (lateness_ == Lateness::early) run_async_work();
}

Thread* Cta::pick_in_warp(uint32_t warp, bool descending) {
  const uint32_t lanes = runnable_[warp];
  const int lane = descending ? 31 - std::countl_zero(lanes) : std::countr_zero(lanes);
  return threads_[warp * 32 + static_cast<uint32_t>(lane)].get();
}

Thread* Cta::pick() {
  const uint32_t warps = static_cast<uint32_t>(runnable_.size());
  switch (config_.policy) {
    case Policy::round_robin: {
      // The rest of the last thread's warp, then the warps after it, around to the beginning.
      const uint32_t start = last_ == nullptr ? 0 : last_->index + 1;
      for (uint32_t step = 0; step <= warps; ++step) {
        const uint32_t warp = (start / 32 + step) % warps;
        uint32_t lanes = runnable_[warp];
        if (step == 0) lanes &= start / 32 < warps ? 0xFFFFFFFFu << (start % 32) : 0xFFFFFFFFu;
        if (lanes != 0) {
          return threads_[warp * 32 + static_cast<uint32_t>(std::countr_zero(lanes))].get();
        }
      }
      return nullptr;
    }
    case Policy::reverse:
      for (uint32_t warp = warps; warp-- > 0;) {
        if (runnable_[warp] != 0) return pick_in_warp(warp, true);
      }
      return nullptr;
    case Policy::random: {
      uint32_t candidates = 0;
      for (uint32_t lanes : runnable_) candidates += lanes != 0 ? 1u : 0u;
      if (candidates == 0) return nullptr;
      uint32_t choice = random_.below(candidates);
      for (uint32_t warp = 0; warp < warps; ++warp) {
        if (runnable_[warp] == 0 || choice-- != 0) continue;
        uint32_t lanes = runnable_[warp];
        uint32_t skip = random_.below(static_cast<uint32_t>(std::popcount(lanes)));
        while (skip-- > 0) lanes &= lanes - 1;
        return threads_[warp * 32 + static_cast<uint32_t>(std::countr_zero(lanes))].get();
      }
      return nullptr;
    }
    case Policy::adversarial: {
      uint32_t best = warps;
      for (uint32_t warp = 0; warp < warps; ++warp) {
        if (runnable_[warp] != 0 && (best == warps || priority_[warp] > priority_[best])) {
          best = warp;
        }
      }
      if (best == warps) return nullptr;
      return pick_in_warp(best, (config_.seed & 1) != 0);
    }
  }
  return nullptr;
}

bool Cta::runnable() const {
  return std::any_of(runnable_.begin(), runnable_.end(), [](uint32_t lanes) { return lanes != 0; });
}

void Cta::run_one() {
  const uint64_t max_steps = config_.max_steps != 0 ? config_.max_steps : kDefaultMaxSteps;
  if (++stats_.steps > max_steps) {
    throw Fault("CTA " + std::to_string(index_) + ": more than " + std::to_string(max_steps) +
                " scheduling steps: livelock?\n" + deadlock_report());
  }
  last_ = pick();
  cluster_.resume(*last_);
}

void Cta::check_at_exit() {
  bulk_->check_at_exit();
  barriers_->check_at_exit();
  collectives_->check_at_exit();
  for (const auto& group : warpgroups_) group->check_at_exit();
  for (const auto& thread : threads_)
    if (!thread->async_copies.empty())
      fault("exit", "thread " + std::to_string(thread->index) + ": " +
                        std::to_string(thread->async_copies.size()) +
                        " cp.async were never waited for");
}

}  // namespace vca::emu
