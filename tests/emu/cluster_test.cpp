// SPDX-License-Identifier: Apache-2.0
// Clusters on the emulator, one rule at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "emu/launch.hpp"
#include "ptx/ptx.hpp"

namespace vca::emu {
namespace {

using testing::HasSubstr;

LaunchConfig config_of(uint32_t cluster, uint32_t threads = 32, uint32_t smem_bytes = 1024) {
  LaunchConfig config;
  config.grid = config.cluster = cluster;
  config.threads = threads;
  config.smem_bytes = smem_bytes;
  return config;
}

// In every schedule the same kind of fault, or none.
void expect_fault(LaunchConfig config, const std::function<void()>& kernel,
                  const testing::Matcher<std::string>& text) {
  for (const Policy policy : kAllPolicies)
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      config.policy = policy;
      config.seed = seed;
      std::string got = "no fault";
      try {
        launch(config, kernel);
      } catch (const Fault& fault) {
        got = fault.what();
      }
      EXPECT_THAT(got, text) << to_string(policy) << ", seed " << seed;
    }
}

void cluster_sync() {
  ptx::barrier_cluster_arrive();
  ptx::barrier_cluster_wait();
}

// A barrier of `count` arrivals at the start of shared memory, known to the whole cluster.
ptx::SmemAddr shared_barrier(uint32_t count) {
  const ptx::SmemAddr bar = ptx::dynamic_smem();
  if (ptx::thread_index() == 0) {
    ptx::mbarrier_init(bar, count);
    ptx::fence_mbarrier_init();
  }
  cluster_sync();
  return bar;
}

TEST(Cluster, RefusesShapesThatNoChipTakes) {
  LaunchConfig config = config_of(9);
  expect_fault(
      config, [] {}, HasSubstr("cluster: got 9, allowed 1 to 8"));
  config.cluster = 0;
  expect_fault(
      config, [] {}, HasSubstr("cluster: got 0"));
  config.cluster = 2;
  expect_fault(
      config, [] {}, HasSubstr("grid: got 9, allowed multiples of the cluster"));
}

TEST(Cluster, RanksAndOneWindowForAllCtas) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    std::vector<uint32_t> base(6);
    LaunchConfig config = config_of(3);
    config.grid = 6;
    config.seed = seed;
    launch(config, [&base] {
      EXPECT_EQ(ptx::cluster_rank(), ptx::cta_index() % 3);
      base[ptx::cta_index()] = ptx::dynamic_smem().value;
    });
    for (uint32_t i = 0; i < 6; ++i) EXPECT_EQ(base[i], base[i / 3 * 3]);
  }
}

TEST(Cluster, SameResultOverSeveralOsThreads) {
  const auto traces = [](int host_threads) {
    std::vector<std::vector<uint32_t>> seen(3);
    LaunchConfig config = config_of(2, 64);
    config.grid = 6;
    config.policy = Policy::random;
    config.host_threads = host_threads;
    launch(config, [&seen] {
      for (int i = 0; i < 3; ++i) {
        ptx::st_shared_f32(ptx::dynamic_smem() + 4 * ptx::thread_index(), 0.0f);
        seen[ptx::cta_index() / 2].push_back(ptx::cta_index() * 64 + ptx::thread_index());
      }
    });
    return seen;
  };
  EXPECT_EQ(traces(1), traces(3));
}

// A thread's reads are timed by its own clock: whatever rank 0's thread of the same number has
// done, a race is found, and an overwrite behind a barrier is none.
TEST(ClusterMemory, ReadsOfEveryRankAreOrderedByTheirOwnThreads) {
  for (const uint32_t ahead : {0u, 1u})
    for (const bool ordered : {false, true}) {
      SCOPED_TRACE(testing::Message() << "rank " << ahead << " ahead, ordered " << ordered);
      expect_fault(
          config_of(2, 64),
          [ahead, ordered] {
            const ptx::SmemAddr word = ptx::dynamic_smem();
            const bool writer = ptx::cluster_rank() == 1 && ptx::thread_index() == 0;
            if (writer) ptx::st_shared_f32(word, 1.0f);
            for (int i = 0; i < 20 && ptx::cluster_rank() == ahead; ++i) ptx::bar_sync(1, 64);
            cluster_sync();
            if (ptx::cluster_rank() == 1 && ptx::thread_index() == 40) ptx::ld_shared_f32(word);
            if (ordered) ptx::bar_sync(1, 64);
            if (writer) ptx::st_shared_f32(word, 2.0f);
          },
          HasSubstr(ordered ? "no fault" : "race: "));
    }
}

TEST(ClusterBarrier, WaitsForTheThreadsOfAllCtas) {
  for (const Policy policy : kAllPolicies) {
    LaunchConfig config = config_of(4, 64);
    config.policy = policy;
    int before = 0;
    launch(config, [&before] {
      ++before;
      cluster_sync();
      EXPECT_EQ(before, 4 * 64);
      cluster_sync();
    });
  }
}

TEST(ClusterBarrier, DoesNotWaitForThreadsThatHaveEnded) {
  expect_fault(
      config_of(2, 64),
      [] {
        if (ptx::cta_index() == 1 || ptx::thread_index() >= 40) return;
        cluster_sync();
      },
      HasSubstr("no fault"));
}

TEST(ClusterBarrier, EndsADeadlockWithAReportOfBothCtas) {
  expect_fault(
      config_of(2, 64),
      [] {
        if (ptx::cta_index() == 1 && ptx::thread_index() < 32)
          ptx::bar_sync(3, 64);
        else
          cluster_sync();
      },
      testing::AllOf(
          HasSubstr("CTA 0: deadlock"), HasSubstr("CTA 1: deadlock"),
          HasSubstr("barrier.cluster.wait: 32 of the cluster's 128 running threads have not"),
          HasSubstr("warp 0: bar.sync barrier 3")));
}

TEST(ClusterBarrier, ArriveAndWaitAlternate) {
  expect_fault(
      config_of(2),
      [] {
        ptx::barrier_cluster_arrive();
        ptx::barrier_cluster_arrive();
      },
      HasSubstr("barrier.cluster.arrive: this thread has arrived and not waited since"));
  expect_fault(
      config_of(2), [] { ptx::barrier_cluster_wait(); },
      HasSubstr("barrier.cluster.wait: this thread has not executed barrier.cluster.arrive"));
}

TEST(RemoteArrival, CompletesThePhaseOfTheOtherCta) {
  expect_fault(
      config_of(2),
      [] {
        const ptx::SmemAddr bar = shared_barrier(32);
        ptx::mbarrier_arrive_cluster(ptx::mapa(bar, ptx::cluster_rank() ^ 1u));
        ptx::mbarrier_wait_parity(bar, 0);
      },
      HasSubstr("no fault"));
}

TEST(RemoteArrival, NeedsAnInitialisedBarrier) {
  expect_fault(
      config_of(2),
      [] {
        const ptx::SmemAddr bar = ptx::dynamic_smem();
        if (ptx::cluster_rank() == 0 && ptx::thread_index() == 0) {
          ptx::mbarrier_init(bar, 1);
          ptx::fence_mbarrier_init();
        }
        cluster_sync();
        if (ptx::cluster_rank() == 0) ptx::mbarrier_arrive_cluster(ptx::mapa(bar, 1));
        cluster_sync();
      },
      testing::AllOf(HasSubstr("no mbarrier has been initialised at"), HasSubstr(") of CTA 1")));
}

TEST(RemoteArrival, MustNotComeToACtaThatHasExited) {
  expect_fault(
      config_of(2),
      [] {
        const ptx::SmemAddr bar = shared_barrier(64);
        if (ptx::cluster_rank() == 0) ptx::mbarrier_arrive_cluster(ptx::mapa(bar, 1));
      },
      testing::AnyOf(HasSubstr("arrives at an mbarrier of CTA 1, which has exited"),
                     HasSubstr("it might come after the exit")));
}

TEST(Multicast, MustNotWriteToACtaThatHasExited) {
  alignas(16) static const float source[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  expect_fault(
      config_of(2),
      [] {
        const ptx::SmemAddr bar = shared_barrier(1);
        if (ptx::thread_index() != 0) return;
        if (ptx::cluster_rank() == 1) return;
        ptx::mbarrier_arrive_expect_tx(bar, 16);
        ptx::cp_async_bulk_g2s_multicast(bar + 16, source, 16, bar, 3);
        ptx::mbarrier_wait_parity(bar, 0);
      },
      testing::AnyOf(HasSubstr("writes to CTA 1, which has exited"),
                     HasSubstr("bulk copies are still in flight"),
                     HasSubstr("got bytes that nobody expected")));
}

// Rank 1 expects the bytes only when it has been told that they have landed at rank 0; with copies
// that land early they have landed at rank 1 too.
TEST(Multicast, LandsBeforeThePeerExpectsIt) {
  alignas(16) static const float source[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  expect_fault(
      config_of(2),
      [] {
        const ptx::SmemAddr bar = shared_barrier(1);
        const ptx::SmemAddr told = bar + 8;
        if (ptx::thread_index() == 0) {
          ptx::mbarrier_init(told, 1);
          ptx::fence_mbarrier_init();
        }
        cluster_sync();
        if (ptx::cluster_rank() == 0 && ptx::thread_index() == 0) {
          ptx::mbarrier_arrive_expect_tx(bar, 16);
          ptx::cp_async_bulk_g2s_multicast(bar + 16, source, 16, bar, 3);
          ptx::mbarrier_wait_parity(bar, 0);
          ptx::mbarrier_arrive_cluster(ptx::mapa(told, 1));
        }
        if (ptx::cluster_rank() == 1 && ptx::thread_index() == 0) {
          ptx::mbarrier_wait_parity(told, 0);
          ptx::mbarrier_arrive_expect_tx(bar, 16);
          ptx::mbarrier_wait_parity(bar, 0);
          EXPECT_EQ(ptx::ld_shared_f32(bar + 28), 4.0f);
        }
        cluster_sync();
      },
      HasSubstr("no fault"));
}

// A CTA that waits for its own copy learns nothing of the peer's.
TEST(Multicast, EachCtaWaitsForItself) {
  alignas(16) static const float source[4] = {1.0f, 2.0f, 3.0f, 4.0f};
  expect_fault(
      config_of(2),
      [] {
        const ptx::SmemAddr bar = shared_barrier(1);
        if (ptx::thread_index() == 0) {
          ptx::mbarrier_arrive_expect_tx(bar, 16);
          if (ptx::cluster_rank() == 0)
            ptx::cp_async_bulk_g2s_multicast(bar + 16, source, 16, bar, 3);
          if (ptx::cluster_rank() == 0) ptx::mbarrier_wait_parity(bar, 0);
        }
        cluster_sync();
        if (ptx::cluster_rank() == 1) ptx::ld_shared_f32(bar + 16);
        cluster_sync();
      },
      testing::AnyOf(HasSubstr("reads the destination of a bulk copy in flight"),
                     HasSubstr("race: reads what a bulk copy wrote")));
}

}  // namespace
}  // namespace vca::emu
