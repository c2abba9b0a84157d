// SPDX-License-Identifier: Apache-2.0
// The launcher, fibers and schedulers.
#include "emu/launch.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "ptx/ptx.hpp"

namespace vca::emu {
namespace {

using testing::HasSubstr;

std::string fault_of(const LaunchConfig& config, const std::function<void()>& kernel) {
  try {
    launch(config, kernel);
  } catch (const Fault& fault) {
    return fault.what();
  }
  return "no fault";
}

LaunchConfig config_of(uint32_t threads, uint32_t smem_bytes = 0) {
  LaunchConfig config;
  config.threads = threads;
  config.smem_bytes = smem_bytes;
  return config;
}

TEST(Launch, RunsEveryThreadOfEveryCtaOnce) {
  for (const Policy policy : kAllPolicies) {
    for (const int host_threads : {1, 2}) {
      std::vector<std::atomic<int>> count(5 * 96);
      LaunchConfig config = config_of(96);
      config.grid = 5;
      config.policy = policy;
      config.host_threads = host_threads;
      launch(config, [&] {
        ++count[ptx::cta_index() * 96 + ptx::thread_index()];
        ptx::bar_sync(0, 96);
        EXPECT_EQ(ptx::grid_size(), 5u);
      });
      for (const std::atomic<int>& c : count) EXPECT_EQ(c, 1) << to_string(policy);
    }
  }
}

TEST(Launch, RefusesShapesThatNoChipTakes) {
  EXPECT_THAT(fault_of(config_of(0), [] {}), HasSubstr("threads: got 0"));
  EXPECT_THAT(fault_of(config_of(33), [] {}), HasSubstr("threads: got 33"));
  EXPECT_THAT(fault_of(config_of(1056), [] {}), HasSubstr("threads: got 1056"));
  EXPECT_THAT(fault_of(config_of(32, 232449), [] {}), HasSubstr("smem_bytes: got 232449"));
  LaunchConfig config = config_of(384);
  config.registers = 176;
  EXPECT_THAT(fault_of(config, [] {}), HasSubstr("registers of a CTA: got 67584"));
  config = config_of(32);
  config.grid = 0;
  EXPECT_THAT(fault_of(config, [] {}), HasSubstr("grid: got 0"));
}

TEST(Launch, SharedMemoryIsAlignedAndInTheWindow) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const uint32_t bytes : {16u, 100000u, 232448u}) {
      LaunchConfig config = config_of(32, bytes);
      config.seed = seed;
      launch(config, [&] {
        const uint32_t base = ptx::dynamic_smem().value;
        EXPECT_EQ(base % 1024, 0u);
        EXPECT_GE(base, 1024u);
        EXPECT_LE(base + bytes, 228u << 10);
      });
    }
  }
}

TEST(Launch, PassesOnWhatTheKernelThrows) {
  for (const Policy policy : kAllPolicies) {
    LaunchConfig config = config_of(64);
    config.policy = policy;
    EXPECT_THROW(launch(config,
                        [] {
                          if (ptx::thread_index() == 37) throw std::runtime_error("from a thread");
                          ptx::bar_sync(0, 64);  // the others are unwound from here
                        }),
                 std::runtime_error);
  }
}

struct Counted {
  static inline int alive = 0;
  Counted() { ++alive; }
  ~Counted() { --alive; }
};

TEST(Launch, UnwindsTheThreadsOfAFailedCta) {
  fault_of(config_of(64), [] {
    const Counted counted;
    if (ptx::thread_index() == 5) throw Fault("stop");
    ptx::bar_sync(0, 64);
  });
  EXPECT_EQ(Counted::alive, 0);
}

TEST(Launch, SameSeedSameSchedule) {
  const auto order = [](Policy policy, uint64_t seed) {
    std::vector<uint32_t> seen;
    LaunchConfig config = config_of(128, 512);
    config.policy = policy;
    config.seed = seed;
    launch(config, [&seen] {
      const uint32_t t = ptx::thread_index();
      for (int i = 0; i < 4; ++i) {
        ptx::st_shared_f32(ptx::dynamic_smem() + 4 * t, 1.0f);
        seen.push_back(t);
      }
    });
    return seen;
  };
  for (const Policy policy : kAllPolicies) {
    EXPECT_EQ(order(policy, 3), order(policy, 3)) << to_string(policy);
  }
  EXPECT_NE(order(Policy::random, 3), order(Policy::random, 4));
  EXPECT_NE(order(Policy::adversarial, 3), order(Policy::adversarial, 4));
  EXPECT_NE(order(Policy::round_robin, 1), order(Policy::reverse, 1));
}

// A CTA's schedule must not depend on which OS thread it runs on.
TEST(Launch, SameResultOverSeveralOsThreads) {
  const auto traces = [](int host_threads) {
    std::vector<std::vector<uint32_t>> seen(6);
    LaunchConfig config = config_of(64, 256);
    config.grid = 6;
    config.policy = Policy::random;
    config.host_threads = host_threads;
    launch(config, [&seen] {
      for (int i = 0; i < 3; ++i) {
        ptx::st_shared_f32(ptx::dynamic_smem() + 4 * ptx::thread_index(), 0.0f);
        seen[ptx::cta_index()].push_back(ptx::thread_index());
      }
    });
    return seen;
  };
  EXPECT_EQ(traces(1), traces(3));
}

TEST(Launch, ThrowsTheFaultOfTheFirstCta) {
  LaunchConfig config = config_of(32);
  config.grid = 9;
  const std::string text = fault_of(config, [] {
    if (ptx::cta_index() >= 4) ptx::bar_sync(16, 32);
  });
  EXPECT_THAT(text, HasSubstr("CTA 4, thread 0 (warp 0, lane 0): bar.sync: barrier: got 16"));
}

TEST(Launch, StepLimitEndsALivelock) {
  LaunchConfig config = config_of(64, 8);
  config.max_steps = 1000;
  const std::string text = fault_of(config, [] {
    for (;;) ptx::bar_sync(0, 64);
  });
  EXPECT_THAT(text, HasSubstr("livelock"));
}

TEST(Launch, InstructionsOutsideALaunchAreRefused) { EXPECT_THROW(ptx::thread_index(), Fault); }

// Depth of the frames of a fiber: what an unoptimised kernel with its fragments needs, and more.
TEST(Fibers, StacksHoldLargeFrames) {
  std::vector<uint32_t> sums(64);
  launch(config_of(64), [&sums] {
    volatile uint32_t frame[12000];
    for (uint32_t i = 0; i < 12000; ++i) frame[i] = i ^ ptx::thread_index();
    ptx::bar_sync(0, 64);
    uint32_t sum = 0;
    for (uint32_t i = 0; i < 12000; ++i) sum += frame[i] ^ ptx::thread_index();
    sums[ptx::thread_index()] = sum;
  });
  for (const uint32_t sum : sums) EXPECT_EQ(sum, 11999u * 12000u / 2u);
}

// Callee-saved registers and the floating-point state survive a switch.
TEST(Fibers, KeepTheirRegisters) {
  std::vector<double> results(128);
  LaunchConfig config = config_of(128);
  config.policy = Policy::random;
  launch(config, [&results] {
    const double t = ptx::thread_index();
    double a = t, b = t + 1, c = t + 2, d = t + 3, e = t + 4, f = t + 5, g = t + 6;
    for (int i = 0; i < 20; ++i) {
      ptx::vote_sync_any(false);
      a += b;
      b += c;
      c += d;
      d += e;
      e += f;
      f += g;
      g += 1.0;
    }
    results[ptx::thread_index()] = a + b + c + d + e + f + g;
  });
  for (int t = 0; t < 128; ++t) {
    double v[7];
    std::iota(v, v + 7, t);
    for (int i = 0; i < 20; ++i) {
      for (int j = 0; j < 6; ++j) v[j] += v[j + 1];
      v[6] += 1.0;
    }
    EXPECT_EQ(results[t], v[0] + v[1] + v[2] + v[3] + v[4] + v[5] + v[6]);
  }
}

// ---- the deadlock report -------------------------------------------------------------------

TEST(Report, NamesWarpBarrierParityAndCounts) {
  const std::string text = fault_of(config_of(96, 64), [] {
    const ptx::SmemAddr bar = ptx::dynamic_smem() + 16;
    if (ptx::thread_index() == 0) {
      ptx::mbarrier_init(bar, 3);
      ptx::fence_mbarrier_init();
    }
    ptx::bar_sync(0, 96);
    if (ptx::thread_index() / 32 == 0) {
      if (ptx::thread_index() == 4) ptx::mbarrier_arrive_expect_tx(bar, 512);
    } else if (ptx::thread_index() / 32 == 1) {
      ptx::mbarrier_wait_parity(bar, 0);
    } else {
      ptx::bar_sync(5, 64);
    }
  });
  EXPECT_THAT(text, HasSubstr("deadlock: 64 of 96 threads wait"));
  EXPECT_THAT(text, HasSubstr("warp 0: finished"));
  EXPECT_THAT(text, HasSubstr("warp 1: mbarrier.try_wait.parity on"));
  EXPECT_THAT(text, HasSubstr("(dynamic_smem + 16) for parity 0: phase 0 (parity 0) is incomplete, "
                              "pending arrivals 2 of 3, tx-count 512 bytes"));
  EXPECT_THAT(text, HasSubstr("warp 2: bar.sync barrier 5, 32 of 64 threads have come, warps 2"));
}

TEST(Report, GroupsTheLanesOfAWarp) {
  const std::string text = fault_of(config_of(32), [] {
    const uint32_t lane = ptx::thread_index();
    if (lane == 3 || lane > 29) return;
    ptx::vote_sync_any(true);
  });
  EXPECT_THAT(text,
              HasSubstr("warp 0 lanes 0-2, 4-29: vote.sync.any: the other lanes of the warp"));
  EXPECT_THAT(text, HasSubstr("warp 0 lanes 3, 30-31: finished"));
}

}  // namespace
}  // namespace vca::emu
