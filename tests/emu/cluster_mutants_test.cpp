// SPDX-License-Identifier: Apache-2.0
// Planted faults of a ring that two CTAs share: the emulator notices each in every schedule.
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "ptx/cluster_cases.hpp"

namespace vca::tests {
namespace {

constexpr uint32_t kRows = 13;

// "" when all is as it must be; else what was noticed.
std::string run(ClusterMutation mutation, emu::Policy policy, uint64_t seed) {
  static const ClusterRingProblem problem(2, kRows);
  Buffer<float> in(problem.in), own(problem.own), out(problem.out.size());
  in.upload();
  own.upload();
  const ClusterRingKernel kernel{in.device(), own.device(), out.device(), kRows, mutation};
  emu::LaunchConfig config;
  config.grid = config.cluster = 2;
  config.threads = ClusterRingKernel::kThreads;
  config.smem_bytes = ClusterRingKernel::kSmemBytes;
  config.policy = policy;
  config.seed = seed;
  config.readable = {{in.device(), in.bytes()}, {own.device(), own.bytes()}};
  try {
    emu::launch(config, [&kernel] { kernel(); });
  } catch (const emu::Fault& fault) {
    return fault.what();
  }
  return std::memcmp(out.device(), problem.out.data(), out.bytes()) == 0 ? "" : "wrong output";
}

TEST(ClusterRing, EqualsItsInputUnderEverySchedule) {
  for (const emu::Policy policy : emu::kAllPolicies)
    for (uint64_t seed = 1; seed <= 10; ++seed)
      EXPECT_EQ(run(ClusterMutation::none, policy, seed), "") << to_string(policy) << ' ' << seed;
}

// Each schedule shows one of these texts.
struct Mutant {
  ClusterMutation mutation;
  const char* name;
  std::vector<const char*> texts;
};

const std::vector<Mutant>& mutants() {
  using M = ClusterMutation;
  constexpr const char* kDeadlock = "deadlock";
  constexpr const char* kAfterExit = "it might come after the exit";
  constexpr const char* kArrivesExited = "which has exited";
  constexpr const char* kReadRace = "race: reads what a bulk copy wrote";
  constexpr const char* kOverwritesRead = "race: overwrites what thread";
  constexpr const char* kOverwritesCopy = "race: overwrites what a bulk copy wrote";
  constexpr const char* kInFlight = "in flight";
  constexpr const char* kTooManyArrivals = "more arrivals than the mbarrier";
  static const std::vector<Mutant> table = {
      {M::no_init_fence, "no_init_fence", {"no fence.mbarrier_init since"}},
      {M::no_barrier_at_start,
       "no_barrier_at_start",
       {"no mbarrier has been initialised at", "with no synchronisation since"}},
      {M::no_barrier_at_exit, "no_barrier_at_exit", {kAfterExit, kArrivesExited}},
      {M::no_wait_at_exit, "no_wait_at_exit", {kAfterExit, kArrivesExited}},
      {M::no_remote_arrival, "no_remote_arrival", {kDeadlock}},
      {M::counts_own_consumers_only,
       "counts_own_consumers_only",
       {kOverwritesRead, kOverwritesCopy, kInFlight}},
      {M::arrives_twice_at_home,
       "arrives_twice_at_home",
       {kOverwritesRead, kOverwritesCopy, kInFlight, kTooManyArrivals}},
      {M::arrives_beyond_cluster, "arrives_beyond_cluster", {"mapa: CTA rank: got 2"}},
      {M::own_mask_only, "own_mask_only", {kDeadlock}},
      {M::mask_beyond_cluster, "mask_beyond_cluster", {"CTA mask: got 7, allowed 1 to 3"}},
      {M::expects_own_bytes_only,
       "expects_own_bytes_only",
       {"which expects fewer", "in this phase than were expected", kOverwritesCopy, kInFlight,
        "uninitialised"}},
      {M::expects_too_much, "expects_too_much", {kDeadlock}},
      {M::producer_does_not_wait,
       "producer_does_not_wait",
       {kOverwritesRead, kOverwritesCopy, kInFlight, kTooManyArrivals}},
      {M::consumer_does_not_wait,
       "consumer_does_not_wait",
       {kReadRace, kInFlight, "uninitialised"}},
      {M::same_half_twice, "same_half_twice", {kInFlight, kOverwritesCopy}},
  };
  return table;
}

std::ostream& operator<<(std::ostream& out, const Mutant& m) { return out << m.name; }

class ClusterMutants : public testing::TestWithParam<Mutant> {};

TEST_P(ClusterMutants, IsNoticedInEverySchedule) {
  for (const emu::Policy policy : emu::kAllPolicies)
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      const std::string noticed = run(GetParam().mutation, policy, seed);
      bool as_expected = false;
      for (const char* text : GetParam().texts)
        as_expected = as_expected || noticed.find(text) != std::string::npos;
      EXPECT_TRUE(as_expected) << to_string(policy) << ", seed " << seed << ": \"" << noticed
                               << '"';
    }
}

INSTANTIATE_TEST_SUITE_P(Emulator, ClusterMutants, testing::ValuesIn(mutants()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(ClusterMutantTable, HasEveryMutationOnce) {
  ASSERT_EQ(mutants().size(), static_cast<size_t>(kClusterMutations - 1));
  for (int i = 1; i < kClusterMutations; ++i)
    EXPECT_EQ(static_cast<int>(mutants()[static_cast<size_t>(i - 1)].mutation), i);
}

}  // namespace
}  // namespace vca::tests
