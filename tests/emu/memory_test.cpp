// SPDX-License-Identifier: Apache-2.0
// Rules of shared memory, mbarriers, bulk copies, named barriers and register budgets, one broken
// at a time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "emu/launch.hpp"
#include "ptx/ptx.hpp"

namespace vca::emu {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// Runs under every policy; all must say the same kind of thing.
void expect_fault(uint32_t threads, uint32_t smem_bytes, const std::function<void()>& kernel,
                  const testing::Matcher<const std::string&>& matcher) {
  for (const Policy policy : kAllPolicies) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      LaunchConfig config;
      config.threads = threads;
      config.smem_bytes = smem_bytes;
      config.policy = policy;
      config.seed = seed;
      std::string text = "no fault";
      try {
        launch(config, kernel);
      } catch (const Fault& fault) {
        text = fault.what();
      }
      EXPECT_THAT(text, matcher) << to_string(policy) << ", seed " << seed;
    }
  }
}

bool first() { return ptx::thread_index() == 0; }

TEST(SharedMemory, OutOfBounds) {
  expect_fault(
      32, 64, [] { ptx::ld_shared_f32(ptx::dynamic_smem() + 64); },
      HasSubstr("out of bounds: 4 bytes at"));
  expect_fault(
      32, 64, [] { ptx::st_shared_f32({ptx::dynamic_smem().value - 4}, 0.0f); },
      HasSubstr("(dynamic_smem + -4)"));
  expect_fault(
      32, 64, [] { ptx::ld_shared_f32({0}); }, HasSubstr("out of bounds"));
}

TEST(SharedMemory, Misaligned) {
  expect_fault(
      32, 64, [] { ptx::ld_shared_f32(ptx::dynamic_smem() + 2); }, HasSubstr("misaligned address"));
  expect_fault(
      32, 64, [] { ptx::mbarrier_init(ptx::dynamic_smem() + 4, 1); },
      HasSubstr("allowed multiples of 8"));
}

TEST(SharedMemory, Uninitialised) {
  expect_fault(
      32, 64, [] { ptx::ld_shared_f32(ptx::dynamic_smem() + 4 * ptx::thread_index()); },
      AnyOf(HasSubstr("reads uninitialised"), HasSubstr("out of bounds")));
}

TEST(SharedMemory, RaceOfWriterAndReader) {
  expect_fault(
      64, 256,
      [] {
        const uint32_t t = ptx::thread_index();
        ptx::st_shared_f32(ptx::dynamic_smem() + 4 * t, 1.0f);
        ptx::ld_shared_f32(ptx::dynamic_smem() + 4 * (t ^ 1u));
      },
      AnyOf(HasSubstr("race: reads what thread"), HasSubstr("uninitialised")));
}

TEST(SharedMemory, RaceOfReaderAndWriter) {
  expect_fault(
      64, 256,
      [] {
        const uint32_t t = ptx::thread_index();
        ptx::st_shared_f32(ptx::dynamic_smem() + 4 * t, 1.0f);
        ptx::bar_sync(0, 64);
        ptx::ld_shared_f32(ptx::dynamic_smem() + 4 * (t ^ 32u));
        ptx::st_shared_f32(ptx::dynamic_smem() + 4 * t, 2.0f);
      },
      AnyOf(HasSubstr("race: overwrites what thread"), HasSubstr("race: reads what thread")));
}

TEST(SharedMemory, RaceOfTwoWriters) {
  expect_fault(
      64, 4, [] { ptx::st_shared_f32(ptx::dynamic_smem(), 1.0f); },
      HasSubstr("race: overwrites what thread"));
}

// Not races: the same thread again, or a synchronisation of each kind between the two.
TEST(SharedMemory, SynchronisedAccessesAreNoRaces) {
  for (const Policy policy : kAllPolicies) {
    LaunchConfig config;
    config.threads = 64;
    config.smem_bytes = 512 + 16;
    config.policy = policy;
    launch(config, [] {
      const uint32_t t = ptx::thread_index();
      const ptx::SmemAddr mine = ptx::dynamic_smem() + 4 * t, bar = ptx::dynamic_smem() + 512;
      ptx::st_shared_f32(mine, 1.0f);
      ptx::st_shared_f32(mine, static_cast<float>(t));
      EXPECT_EQ(ptx::ld_shared_f32(mine), static_cast<float>(t));
      // A warp collective orders its lanes.
      ptx::vote_sync_any(false);
      EXPECT_EQ(ptx::ld_shared_f32(ptx::dynamic_smem() + 4 * (t ^ 1u)), static_cast<float>(t ^ 1u));
      if (first()) ptx::mbarrier_init(bar, 64);
      ptx::bar_sync(0, 64);
      EXPECT_EQ(ptx::ld_shared_f32(ptx::dynamic_smem() + 4 * (t ^ 32u)),
                static_cast<float>(t ^ 32u));
      ptx::mbarrier_arrive(bar);
      ptx::mbarrier_wait_parity(bar, 0);
      ptx::st_shared_f32(mine, 3.0f);
    });
  }
}

// ---- mbarriers -----------------------------------------------------------------------------

TEST(Mbarrier, WrongUse) {
  expect_fault(
      32, 64, [] { ptx::mbarrier_arrive(ptx::dynamic_smem()); },
      HasSubstr("no mbarrier has been initialised at"));
  expect_fault(
      32, 64,
      [] {
        if (first()) ptx::mbarrier_init(ptx::dynamic_smem(), 0);
      },
      HasSubstr("count: got 0"));
  const auto with_barrier = [](auto body) {
    return [body] {
      if (first()) {
        const ptx::SmemAddr bar = ptx::dynamic_smem();
        ptx::mbarrier_init(bar, 1);
        body(bar);
      }
    };
  };
  expect_fault(32, 64, with_barrier([](ptx::SmemAddr bar) { ptx::mbarrier_init(bar, 1); }),
               HasSubstr("initialise it once"));
  expect_fault(32, 64, with_barrier([](ptx::SmemAddr bar) { ptx::ld_shared_f32(bar); }),
               HasSubstr("reads an mbarrier object"));
  expect_fault(32, 64, with_barrier([](ptx::SmemAddr bar) { ptx::st_shared_f32(bar + 4, 0); }),
               HasSubstr("writes an mbarrier object"));
  expect_fault(32, 64,
               with_barrier([](ptx::SmemAddr bar) { (void)ptx::mbarrier_test_parity(bar, 2); }),
               HasSubstr("allowed 0 and 1"));
  expect_fault(32, 64, with_barrier([](ptx::SmemAddr bar) { ptx::mbarrier_wait_parity(bar, 2); }),
               HasSubstr("parity: got 2"));
  expect_fault(32, 64, with_barrier([](ptx::SmemAddr bar) {
                 ptx::mbarrier_arrive_expect_tx(bar, 16);
                 ptx::mbarrier_arrive(bar);
               }),
               HasSubstr("more arrivals than the mbarrier"));
  expect_fault(32, 64,
               with_barrier([](ptx::SmemAddr bar) { ptx::mbarrier_arrive_expect_tx(bar, 16); }),
               HasSubstr("still expects bytes"));
  expect_fault(32, 64, with_barrier([](ptx::SmemAddr bar) {
                 ptx::mbarrier_arrive_expect_tx(bar, 1u << 20);
               }),
               HasSubstr("tx-count above 1048575"));
}

TEST(Mbarrier, UseBeforeTheInitialisationIsPublished) {
  expect_fault(
      64, 64,
      [] {
        if (first()) ptx::mbarrier_init(ptx::dynamic_smem(), 64);
        ptx::mbarrier_arrive(ptx::dynamic_smem());
      },
      AnyOf(HasSubstr("with no synchronisation since"), HasSubstr("no mbarrier has been")));
}

TEST(Mbarrier, ParityOfAFreshBarrier) {
  LaunchConfig config;
  config.threads = 32;
  config.smem_bytes = 8;
  launch(config, [] {
    if (!first()) return;
    ptx::mbarrier_init(ptx::dynamic_smem(), 1);
    ptx::mbarrier_wait_parity(ptx::dynamic_smem(), 1);  // the phase before the first is over
    EXPECT_FALSE(ptx::mbarrier_test_parity(ptx::dynamic_smem(), 0));
    ptx::mbarrier_arrive(ptx::dynamic_smem());
    ptx::mbarrier_wait_parity(ptx::dynamic_smem(), 0);
    EXPECT_TRUE(ptx::mbarrier_test_parity(ptx::dynamic_smem(), 0));
    EXPECT_FALSE(ptx::mbarrier_test_parity(ptx::dynamic_smem(), 1));
  });
  expect_fault(
      32, 8,
      [] {
        if (!first()) return;
        ptx::mbarrier_init(ptx::dynamic_smem(), 1);
        ptx::mbarrier_wait_parity(ptx::dynamic_smem(), 0);
      },
      HasSubstr("deadlock"));
}

// ---- bulk copies ---------------------------------------------------------------------------

// Thread 0 runs `body(buffer, barrier)` with a published barrier behind 256 bytes of buffer.
template <class Body>
std::function<void()> with_copies(Body body) {
  return [body] {
    if (!first()) return;
    const ptx::SmemAddr bar = ptx::dynamic_smem() + 256;
    ptx::mbarrier_init(bar, 1);
    ptx::fence_mbarrier_init();
    body(ptx::dynamic_smem(), bar);
  };
}

alignas(16) const float kSource[64] = {1.0f, 2.0f, 3.0f};

TEST(BulkCopy, WrongUse) {
  using S = ptx::SmemAddr;
  const auto expect = [](auto body, const testing::Matcher<const std::string&>& matcher) {
    expect_fault(32, 264, with_copies(body), matcher);
  };
  expect([](S to, S bar) { ptx::cp_async_bulk_g2s(to, kSource, 8, bar); },
         HasSubstr("size: got 8 bytes"));
  expect([](S to, S bar) { ptx::cp_async_bulk_g2s(to, kSource, 0, bar); },
         HasSubstr("size: got 0 bytes"));
  expect([](S to, S bar) { ptx::cp_async_bulk_g2s(to, kSource + 1, 16, bar); },
         HasSubstr("misaligned global address"));
  expect([](S to, S bar) { ptx::cp_async_bulk_g2s(to + 8, kSource, 16, bar); },
         HasSubstr("destination: misaligned address"));
  expect([](S to, S bar) { ptx::cp_async_bulk_g2s(to + 256, kSource, 16, bar); },
         HasSubstr("destination: out of bounds"));
  expect([](S to, S) { ptx::cp_async_bulk_g2s(to, kSource, 16, to + 16); },
         HasSubstr("no mbarrier has been initialised"));
  expect(
      [](S to, S bar) {
        ptx::mbarrier_arrive_expect_tx(bar, 16);
        ptx::cp_async_bulk_g2s(to, kSource, 16, bar);
        ptx::ld_shared_f32(to);
      },
      AnyOf(HasSubstr("in flight"), HasSubstr("race: reads what a bulk copy wrote")));
  expect(
      [](S to, S bar) {
        ptx::mbarrier_arrive_expect_tx(bar, 32);
        ptx::cp_async_bulk_g2s(to, kSource, 16, bar);
        ptx::cp_async_bulk_g2s(to, kSource, 16, bar);
      },
      AnyOf(HasSubstr("in flight"), HasSubstr("race: overwrites what a bulk copy wrote")));
  expect(
      [](S to, S bar) {
        ptx::mbarrier_arrive_expect_tx(bar, 16);
        ptx::cp_async_bulk_g2s(to, kSource, 32, bar);
        ptx::mbarrier_wait_parity(bar, 0);
      },
      HasSubstr("which expects fewer"));
  expect(
      [](S to, S bar) {
        ptx::mbarrier_arrive_expect_tx(bar, 16);
        ptx::cp_async_bulk_g2s(to, kSource, 16, bar);
      },
      AnyOf(HasSubstr("still in flight"), HasSubstr("nobody waited for the last bulk copy")));
  expect(
      [](S to, S bar) {
        ptx::st_shared_f32(to, 1.0f);
        ptx::mbarrier_arrive_expect_tx(bar, 16);
        ptx::cp_async_bulk_g2s(to, kSource, 16, bar);
      },
      HasSubstr("no fence.proxy.async since"));
}

TEST(BulkCopy, LandsAfterAProxyFence) {
  LaunchConfig config;
  config.threads = 32;
  config.smem_bytes = 264;
  launch(config, with_copies([](ptx::SmemAddr to, ptx::SmemAddr bar) {
           ptx::st_shared_f32(to, 9.0f);
           ptx::fence_proxy_async_shared_cta();
           ptx::mbarrier_arrive_expect_tx(bar, 256);
           ptx::cp_async_bulk_g2s(to, kSource, 256, bar);
           ptx::mbarrier_wait_parity(bar, 0);
           EXPECT_EQ(ptx::ld_shared_f32(to), 1.0f);
           EXPECT_EQ(ptx::ld_shared_f32(to + 8), 3.0f);
           ptx::st_shared_f32(to, 4.0f);
           EXPECT_EQ(ptx::ld_shared_f32(to), 4.0f);
         }));
}

alignas(16) const uint32_t kWords[8] = {1, 2, 3, 4, 5, 6, 7, 8};
uint32_t* held() { return reinterpret_cast<uint32_t*>(ptx::dynamic_smem_pointer()); }

TEST(AsyncCopy, WrongUse) {
  expect_fault(
      32, 64, [] { ptx::cp_async_g2s_16(held() + 16, kWords); }, HasSubstr("out of bounds"));
  expect_fault(
      32, 64, [] { ptx::cp_async_g2s_16(held() + 1, kWords); }, HasSubstr("misaligned address"));
  expect_fault(
      32, 64, [] { ptx::cp_async_g2s_16(held(), kWords + 1); },
      HasSubstr("misaligned global address"));
  expect_fault(
      32, 64,
      [] {
        if (first()) ptx::cp_async_g2s_16(held(), kWords);
      },
      HasSubstr("thread 0: 1 cp.async were never waited for"));
}

TEST(AsyncCopy, IsThereAfterTheWaitOnly) {
  LaunchConfig config;
  config.threads = 32;
  config.smem_bytes = 64;
  launch(config, [] {
    if (!first()) return;
    held()[3] = 9;
    ptx::cp_async_g2s_16(held(), kWords + 4);
    EXPECT_EQ(held()[3], 9u);
    ptx::cp_async_wait_all();
    EXPECT_EQ(held()[3], 8u);
  });
}

// ---- named barriers, registers -------------------------------------------------------------

TEST(NamedBarrier, WrongUse) {
  expect_fault(
      64, 0, [] { ptx::bar_sync(16, 64); }, HasSubstr("barrier: got 16"));
  expect_fault(
      64, 0, [] { ptx::bar_sync(0, 48); }, HasSubstr("thread count: got 48"));
  expect_fault(
      64, 0, [] { ptx::bar_sync(0, 96); }, HasSubstr("thread count: got 96"));
  expect_fault(
      64, 0, [] { ptx::bar_sync(1, ptx::thread_index() < 32 ? 64 : 32); },
      AnyOf(HasSubstr("but others came to barrier 1"), HasSubstr("some lanes only"),
            HasSubstr("deadlock")));
  expect_fault(
      64, 0,
      [] {
        ptx::bar_arrive(1, 64);
        if (ptx::thread_index() < 32) ptx::bar_arrive(1, 64);
      },
      AnyOf(HasSubstr("has come already"), HasSubstr("a named barrier is incomplete")));
}

TEST(Registers, WrongUse) {
  LaunchConfig config;
  config.threads = 128;
  const auto text_of = [&config](const std::function<void()>& kernel) {
    try {
      launch(config, kernel);
    } catch (const Fault& fault) {
      return std::string(fault.what());
    }
    return std::string("no fault");
  };
  EXPECT_THAT(text_of([] { ptx::setmaxnreg_dec<20>(); }), HasSubstr("registers: got 20"));
  EXPECT_THAT(text_of([] { ptx::setmaxnreg_dec<36>(); }), HasSubstr("registers: got 36"));
  EXPECT_THAT(text_of([] { ptx::setmaxnreg_inc<40>(); }), HasSubstr("but the warpgroup has"));
  config.threads = 64;
  EXPECT_THAT(text_of([] { ptx::setmaxnreg_dec<40>(); }), HasSubstr("warpgroup is incomplete"));
}

}  // namespace
}  // namespace vca::emu
