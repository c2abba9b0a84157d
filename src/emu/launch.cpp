// SPDX-License-Identifier: Apache-2.0
#include "emu/launch.hpp"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "emu/cluster.hpp"

namespace vca::emu {
namespace {

void require(bool ok, const char* what, uint64_t got, const char* allowed) {
  if (ok) return;
  throw Fault(std::string("emu::launch: ") + what + ": got " + std::to_string(got) + ", allowed " +
              allowed);
}

void check(const LaunchConfig& config) {
  require(config.grid >= 1, "grid", config.grid, "1 and more");
  require(config.threads >= 32 && config.threads <= 1024 && config.threads % 32 == 0, "threads",
          config.threads, "multiples of 32 up to 1024");
  require(config.cluster >= 1 && config.cluster <= 8, "cluster", config.cluster, "1 to 8");
  require(config.grid % config.cluster == 0, "grid", config.grid, "multiples of the cluster");
  require(config.smem_bytes <= kMaxSmemBytes, "smem_bytes", config.smem_bytes, "up to 232448");
  require(uint64_t{config.registers} * config.threads <= 65536, "registers of a CTA",
          uint64_t{config.registers} * config.threads, "up to 65536");
}

}  // namespace

const char* to_string(Policy policy) {
  switch (policy) {
    case Policy::round_robin:
      return "round_robin";
    case Policy::reverse:
      return "reverse";
    case Policy::random:
      return "random";
    case Policy::adversarial:
      return "adversarial";
  }
  return "invalid";
}

LaunchStats launch(const LaunchConfig& config, const std::function<void()>& kernel) {
  check(config);
  LaunchStats total;
  const uint32_t clusters = config.grid / config.cluster;
  std::mutex mutex;  // total, failed_cluster, failure
  uint32_t failed_cluster = clusters;
  std::exception_ptr failure;
  std::atomic<uint32_t> next{0};
  std::atomic<bool> stop{false};

  const auto work = [&] {
    try {
      StackPool stacks(config.threads * config.cluster);
      for (uint32_t index = next++; index < clusters && !stop; index = next++) {
        try {
          Cluster cluster(config, index, stacks, kernel);
          const LaunchStats stats = cluster.run();
          const std::lock_guard lock(mutex);
          total.steps += stats.steps;
          total.bulk_copies += stats.bulk_copies;
          total.matrix_products += stats.matrix_products;
        } catch (...) {
          const std::lock_guard lock(mutex);
          if (index < failed_cluster) {
            failed_cluster = index;
            failure = std::current_exception();
          }
          stop = true;
        }
      }
    } catch (...) {  // no stacks
      const std::lock_guard lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
      stop = true;
    }
  };

  const int host_threads = std::clamp(config.host_threads, 1, static_cast<int>(clusters));
  std::vector<std::thread> threads;
  for (int i = 1; i < host_threads; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  if (failure != nullptr) std::rethrow_exception(failure);
  return total;
}

}  // namespace vca::emu
