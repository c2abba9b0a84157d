// SPDX-License-Identifier: Apache-2.0
#include "emu/cluster.hpp"

#include <utility>

namespace vca::emu {
namespace {

thread_local Cluster* t_current = nullptr;

// How often, in scheduling steps, the adversarial policy favours another CTA: long enough for one
// to run into every buffer that the other must release.
constexpr uint32_t kFavouriteChangeOneIn = 512;

}  // namespace

Cluster::Cluster(const LaunchConfig& config, uint32_t index, StackPool& stacks,
                 const std::function<void()>& kernel)
    : config_(config), random_(config.seed * 0xD1342543DE82EF95ull + index) {
  for (uint32_t rank = 0; rank < config.cluster; ++rank) {
    ctas_.push_back(
        std::make_unique<Cta>(*this, config, index * config.cluster + rank, rank, stacks, kernel));
  }
  barrier_pending_ = live_threads();
  barrier_arriving_ = ctas_[0]->new_clock();
  barrier_completed_ = ctas_[0]->new_clock();
}

Cluster::~Cluster() = default;

Cluster* Cluster::current() { return t_current; }

LaunchStats Cluster::run() {
  t_current = this;
  try {
    schedule();
  } catch (...) {
    fail(std::current_exception());
  }
  if (failure_ != nullptr) cancel_all();
  t_current = nullptr;
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  LaunchStats total;
  for (const auto& cta : ctas_) {
    total.steps += cta->stats().steps;
    total.bulk_copies += cta->stats().bulk_copies;
    total.matrix_products += cta->stats().matrix_products;
  }
  return total;
}

void Cluster::fail(std::exception_ptr failure) {
  if (failure_ == nullptr) failure_ = std::move(failure);
}

uint32_t Cluster::live_threads() const {
  uint32_t live = 0;
  for (const auto& cta : ctas_) live += cta->live();
  return live;
}

Cta* Cluster::pick() {
  const uint32_t n = size();
  if (n == 1) return ctas_[0]->runnable() ? ctas_[0].get() : nullptr;
  uint32_t start = 0;
  switch (config_.policy) {
    case Policy::round_robin:
      start = favourite_ = (favourite_ + 1) % n;
      break;
    case Policy::reverse:
      for (uint32_t rank = n; rank-- > 0;) {
        if (ctas_[rank]->runnable()) return ctas_[rank].get();
      }
      return nullptr;
    case Policy::random:
      start = random_.below(n);
      break;
    case Policy::adversarial:
      if (random_.one_in(kFavouriteChangeOneIn)) favourite_ = random_.below(n);
      start = favourite_;
      break;
  }
  for (uint32_t i = 0; i < n; ++i) {
    Cta& cta = *ctas_[(start + i) % n];
    if (cta.runnable()) return &cta;
  }
  return nullptr;
}

bool Cluster::run_async_work() {
  const uint32_t n = size();
  const uint32_t start = n == 1 ? 0 : random_.below(n);
  for (uint32_t i = 0; i < n; ++i) {
    if (ctas_[(start + i) % n]->run_async_work()) return true;
  }
  return false;
}

void Cluster::schedule() {
  while (live_threads() > 0) {
    running_ = nullptr;
    for (const auto& cta : ctas_) {
      if (!cta->exited()) cta->maybe_run_async_work();
    }
    Cta* next = pick();
    if (next == nullptr) {
      if (run_async_work()) continue;
      throw Fault(deadlock_report());
    }
    next->run_one();
    if (failure_ != nullptr) return;
    // Now and not at the cluster's end: what happens to shared memory that is gone is a fault.
    if (next->exited()) next->check_at_exit();
  }
}

void Cluster::resume(Thread& thread) {
  running_ = &thread;
  FiberContext::switch_to(scheduler_, thread.context);
  running_ = nullptr;
}

void Cluster::leave(bool ending) { FiberContext::switch_to(running_->context, scheduler_, ending); }

void Cluster::cancel_all() {
  cancelling_ = true;
  for (const auto& cta : ctas_) {
    for (uint32_t i = 0; i < cta->thread_count(); ++i) {
      if (!cta->thread(i).finished) resume(cta->thread(i));
    }
  }
}

std::string Cluster::deadlock_report() const {
  std::string text;
  for (const auto& cta : ctas_) {
    if (!cta->exited()) text += cta->deadlock_report();
  }
  return text;
}

// ---- barrier.cluster ----

void Cluster::barrier_arrive(const char* instruction) {
  Thread& thread = *running_;
  thread.cta->preempt();
  if (thread.cluster_arrived) {
    thread.cta->fault(instruction, "this thread has arrived and not waited since");
  }
  thread.cluster_arrived = true;
  thread.cluster_phase = barrier_phase_;
  thread.cta->release_to(barrier_arriving_);
  --barrier_pending_;
  complete_barrier_if_due();
}

void Cluster::barrier_wait(const char* instruction) {
  Thread& thread = *running_;
  thread.cta->preempt();
  if (!thread.cluster_arrived) {
    thread.cta->fault(instruction, "this thread has not executed barrier.cluster.arrive");
  }
  while (barrier_phase_ == thread.cluster_phase) {
    barrier_waiters_.push_back(&thread);
    thread.cta->block({WaitKind::cluster_barrier, instruction, 0, 0});
  }
  thread.cluster_arrived = false;
  thread.cta->acquire_from(barrier_completed_);
}

void Cluster::thread_ended(const Thread& thread) {
  if (cancelling_ || failure_ != nullptr) return;
  if (thread.cluster_arrived && thread.cluster_phase == barrier_phase_) return;
  --barrier_pending_;
  complete_barrier_if_due();
}

void Cluster::complete_barrier_if_due() {
  if (barrier_pending_ != 0) return;
  ++barrier_phase_;
  barrier_pending_ = live_threads();
  barrier_completed_ = barrier_arriving_;
  for (Thread* waiter : barrier_waiters_) waiter->cta->wake(*waiter);
  barrier_waiters_.clear();
}

std::string Cluster::describe_barrier() const {
  return std::to_string(barrier_pending_) + " of the cluster's " + std::to_string(live_threads()) +
         " running threads have not arrived";
}

}  // namespace vca::emu
