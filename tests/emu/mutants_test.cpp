// SPDX-License-Identifier: Apache-2.0
// The small pipelined kernel equals the specification under every scheduler; with any one of its
// planted faults it does not get through.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ostream>
#include <string>
#include <vector>

#include "emu/launch.hpp"
#include "emu/pipeline_kernel.hpp"
#include "emu/random.hpp"
#include "spec/arith.hpp"
#include "spec/codes.hpp"
#include "spec/mma_model.hpp"
#include "spec/tiles.hpp"

namespace vca::tests {
namespace {

constexpr int kBlocks = 8;

struct Aligned {
  std::vector<uint8_t> raw;
  uint8_t* data;
  size_t bytes;
  explicit Aligned(size_t n) : raw(n + 1024), bytes(n) {
    data = raw.data() + (1024 - reinterpret_cast<uintptr_t>(raw.data()) % 1024) % 1024;
  }
};

// Inputs, and what must come out.
struct Problem {
  Aligned q{PipelineKernel::kQBytes};
  Aligned k{size_t{kBlocks} * PipelineKernel::kKBytes};
  Aligned v{size_t{kBlocks} * PipelineKernel::kVBytes};
  Aligned scale{size_t{kBlocks} * 16};
  std::vector<float> mu = std::vector<float>(128 * 8);
  std::vector<float> out = std::vector<float>(64 * 136);
  std::vector<int32_t> maxima = std::vector<int32_t>(64);

  Problem() {
    emu::Random random(42);
    const auto code = [&random] { return static_cast<uint8_t>(random.next() >> 32); };
    std::vector<uint8_t> q_codes(128 * 128), k_codes(128 * 128), v_codes(128 * 128);
    std::vector<uint8_t> q_tile(128 * 128);
    const std::vector<uint8_t> valid(128, 1);
    for (uint8_t& x : q_codes) x = code();
    spec::t128_store_qk(q_codes.data(), 128, q_tile.data());
    std::memcpy(q.data, q_tile.data(), q.bytes);  // its first 64 rows
    for (float& x : mu) x = spec::bf16_round(static_cast<float>(code()) / 64.0f - 2.0f);

    const spec::MmaModel pv = spec::mma_model(spec::Target::sm90, spec::Instr::pv_e4m3);
    std::fill(maxima.begin(), maxima.end(), INT32_MIN);
    std::vector<float> o(64 * 136, 0.0f);
    for (int j = 0; j < kBlocks; ++j) {
      for (uint8_t& x : k_codes) x = code();
      for (uint8_t& x : v_codes) {
        x = code();
        if ((x & 0x7F) == 0x7F) x = 0;
      }
      spec::t128_store_qk(k_codes.data(), 128, k.data + j * PipelineKernel::kKBytes);
      spec::t128_store_v(v_codes.data(), valid.data(), 128, j % 8,
                         v.data + j * PipelineKernel::kVBytes);
      float scales[4];
      for (float& x : scales) x = 0x1p-16f * (1.0f + static_cast<float>(code()) / 256.0f);
      std::memcpy(scale.data + 16 * j, scales, 16);

      // B of PV: 128 columns (tile order) x 136.
      std::vector<float> b(128 * 136, 0.0f);
      for (int column = 0; column < 128; ++column) {
        const int key = spec::v_key_of_column(column);
        for (int d = 0; d < 128; ++d) {
          b[column * 136 + d] = spec::e4m3_decode(v_codes[key * 128 + d]);
        }
        b[column * 136 + 128 + j % 8] = 1.0f;
      }
      for (int row = 0; row < 64; ++row) {
        float p[128];
        for (int column = 0; column < 128; ++column) {
          const int key = spec::v_key_of_column(column);
          int32_t score = 0;
          for (int i = 0; i < 128; ++i) {
            score += static_cast<int8_t>(q_codes[row * 128 + i]) *
                     static_cast<int8_t>(k_codes[key * 128 + i]);
          }
          maxima[row] = std::max(maxima[row], score);
          const float x =
              spec::fma_rn(static_cast<float>(score), scales[key % 8 / 2], PipelineKernel::kBias);
          p[column] = spec::e4m3_decode(spec::f2ip_code(x));
        }
        spec::mma_accumulate_f32(pv, p, b.data(), 136, 128, 136, o.data() + row * 136);
      }
    }
    // Indicator column c of o holds the sum of block c; column q of mu's tile pairs with it as the
    // registers do: (64, 66, 65, 67) are columns 2q, 2q of row + 8, 2q + 1, ...
    const spec::MmaModel tf32 = spec::mma_model(spec::Target::sm90, spec::Instr::mean_tf32);
    std::vector<float> b(8 * 128);
    for (int i = 0; i < 8; ++i) {
      for (int d = 0; d < 128; ++d) b[i * 128 + d] = mu[d * 8 + i];
    }
    for (int row = 0; row < 64; ++row) {
      float a[8];
      for (int q = 0; q < 4; ++q) {
        a[q] = spec::rna_tf32(o[row * 136 + 128 + 2 * q]);
        a[q + 4] = spec::rna_tf32(o[row * 136 + 128 + 2 * q + 1]);
      }
      spec::mma_accumulate_f32(tf32, a, b.data(), 128, 8, 128, o.data() + row * 136);
    }
    out = o;
  }
};

const Problem& problem() {
  static const Problem p;
  return p;
}

// "" when all is as it must be; else what was noticed.
std::string run(Mutation mutation, emu::Policy policy, uint64_t seed) {
  const Problem& p = problem();
  std::vector<float> out(p.out.size(), -1.0f);
  std::vector<int32_t> maxima(64, -1);
  const PipelineKernel kernel{
      p.q.data,    p.k.data,   p.v.data,      reinterpret_cast<const float*>(p.scale.data),
      p.mu.data(), out.data(), maxima.data(), kBlocks,
      mutation};
  emu::LaunchConfig config;
  config.threads = PipelineKernel::kThreads;
  config.smem_bytes = PipelineKernel::kSmemBytes;
  config.registers = 144;  // 2 x 144 = 40 + 248: the consumer's share needs the producer's
  config.policy = policy;
  config.seed = seed;
  config.readable = {{p.q.data, p.q.bytes},
                     {p.k.data, p.k.bytes},
                     {p.v.data, p.v.bytes},
                     {p.scale.data, p.scale.bytes}};
  try {
    emu::launch(config, [&kernel] { kernel(); });
  } catch (const emu::Fault& fault) {
    return fault.what();
  }
  if (std::memcmp(out.data(), p.out.data(), out.size() * sizeof(float)) != 0) return "wrong output";
  if (maxima != p.maxima) return "wrong maxima";
  return "";
}

struct Schedule {
  emu::Policy policy;
  uint64_t seed;
};
constexpr Schedule kSchedules[] = {{emu::Policy::round_robin, 1}, {emu::Policy::reverse, 1},
                                   {emu::Policy::random, 1},      {emu::Policy::random, 2},
                                   {emu::Policy::adversarial, 1}, {emu::Policy::adversarial, 2}};

TEST(Pipeline, EqualsTheSpecificationUnderEverySchedule) {
  for (const emu::Policy policy : emu::kAllPolicies) {
    for (uint64_t seed = 1; seed <= 5; ++seed) {
      EXPECT_EQ(run(Mutation::none, policy, seed), "") << to_string(policy) << ", seed " << seed;
    }
  }
}

// What the emulator must say about a mutant: each schedule shows one of these texts.
struct Mutant {
  Mutation mutation;
  const char* name;
  std::vector<const char*> texts;
};

constexpr const char* kDeadlock = "deadlock";
constexpr const char* kReadRace = "race: reads what a bulk copy wrote";
constexpr const char* kOverwritesRead = "race: overwrites what thread";
constexpr const char* kOverwritesCopy = "race: overwrites what a bulk copy wrote";
constexpr const char* kTooManyArrivals = "more arrivals than the mbarrier";
constexpr const char* kUnexpectedBytes = "which expects fewer";
constexpr const char* kNotFenced = "no fence.proxy.async since";
constexpr const char* kLocked = "writes what a wgmma reads that has not been waited for";
constexpr const char* kAccumulatorOwned = "accumulator: written while a wgmma that owns it";
constexpr const char* kFragmentOwned = "A fragment: written while a wgmma that owns it";
constexpr const char* kNotAligned = "not aligned to the swizzle pattern";
constexpr const char* kWrong = "wrong output";

const std::vector<Mutant>& mutants() {
  using M = Mutation;
  static const std::vector<Mutant> table = {
      {M::no_init_fence, "no_init_fence", {"no fence.mbarrier_init since"}},
      {M::no_sync_after_init, "no_sync_after_init", {"was initialised by thread 0"}},
      {M::init_twice, "init_twice", {"initialise it once"}},
      {M::empty_count_plus_one, "empty_count_plus_one", {kDeadlock}},
      {M::empty_count_minus_one, "empty_count_minus_one", {kOverwritesRead, kTooManyArrivals}},
      {M::full_count_two, "full_count_two", {kDeadlock}},
      {M::consumer_parity_swapped, "consumer_parity_swapped", {kDeadlock}},
      {M::producer_parity_swapped, "producer_parity_swapped", {kDeadlock}},
      {M::producer_does_not_wait,
       "producer_does_not_wait",
       {kOverwritesCopy, kTooManyArrivals, kOverwritesRead, kLocked}},
      {M::consumer_does_not_wait_for_k, "consumer_does_not_wait_for_k", {kReadRace, "in flight"}},
      {M::consumer_does_not_wait_for_v, "consumer_does_not_wait_for_v", {kReadRace, "in flight"}},
      {M::no_release_of_v, "no_release_of_v", {kDeadlock}},
      {M::released_twice, "released_twice", {kDeadlock, kOverwritesRead, kTooManyArrivals}},
      {M::wrong_named_barrier, "wrong_named_barrier", {kDeadlock}},
      {M::wrong_named_barrier_count, "wrong_named_barrier_count", {"came with some lanes only"}},
      {M::tx_too_small, "tx_too_small", {kUnexpectedBytes}},
      {M::tx_too_large, "tx_too_large", {kDeadlock}},
      {M::no_expect_tx, "no_expect_tx", {kUnexpectedBytes}},
      {M::tx_on_the_other_barrier, "tx_on_the_other_barrier", {kUnexpectedBytes, kTooManyArrivals}},
      {M::copy_beyond_source, "copy_beyond_source", {"outside every buffer"}},
      {M::copy_beyond_shared_memory, "copy_beyond_shared_memory", {"out of bounds"}},
      {M::copy_of_odd_size, "copy_of_odd_size", {"multiples of 16"}},
      {M::copy_into_next_stage, "copy_into_next_stage", {kOverwritesCopy, "in flight"}},
      {M::scale_read_before_wait, "scale_read_before_wait", {kReadRace, "in flight", "uninit"}},
      {M::scale_never_loaded, "scale_never_loaded", {"reads uninitialised shared memory"}},
      {M::released_before_scale_is_read, "released_before_scale_is_read", {kOverwritesRead}},
      {M::no_proxy_fence, "no_proxy_fence", {kNotFenced}},
      {M::operand_not_synchronised,
       "operand_not_synchronised",
       {"with no synchronisation between the two", "uninitialised"}},
      {M::operand_written_late, "operand_written_late", {kNotFenced}},
      {M::wrong_swizzle, "wrong_swizzle", {kNotAligned}},
      {M::wrong_k_advance, "wrong_k_advance", {kWrong}},
      {M::wrong_tile, "wrong_tile", {kReadRace, "in flight", "uninitialised"}},
      {M::unaligned_tile, "unaligned_tile", {kNotAligned}},
      {M::scores_released_before_wait,
       "scores_released_before_wait",
       {kLocked, "race: writes what a wgmma of warpgroup 1 read"}},
      {M::no_wait_for_scores, "no_wait_for_scores", {kAccumulatorOwned}},
      {M::no_wait_for_values, "no_wait_for_values", {kFragmentOwned, kLocked}},
      {M::no_commit, "no_commit", {kAccumulatorOwned}},
      {M::no_fence, "no_fence", {"no wgmma.fence before the first wgmma"}},
      {M::no_fence_after_first_block, "no_fence_after_first_block", {"since the last wgmma.fence"}},
      {M::fence_before_last_write,
       "fence_before_last_write",
       {"A fragment: written since the last wgmma.fence"}},
      {M::codes_packed_before_wait, "codes_packed_before_wait", {kFragmentOwned}},
      {M::accumulator_written_in_flight, "accumulator_written_in_flight", {kAccumulatorOwned}},
      {M::scores_not_restarted, "scores_not_restarted", {kWrong}},
      {M::one_warp_skips_a_product,
       "one_warp_skips_a_product",
       {"threads of the warpgroup differ", "of others after"}},
      {M::never_waited, "never_waited", {"were never waited for"}},
      {M::lane_missing_in_shuffle, "lane_missing_in_shuffle", {"the other lanes of the warp"}},
      {M::lanes_disagree, "lanes_disagree", {"other lanes of the warp are at shfl.sync.bfly"}},
      {M::registers_from_nowhere, "registers_from_nowhere", {"setmaxnreg.inc to 248: free 0"}},
      {M::registers_of_one_warp, "registers_of_one_warp", {"setmaxnreg.dec: the other warps"}},
  };
  return table;
}

std::ostream& operator<<(std::ostream& out, const Mutant& m) { return out << m.name; }

class Mutants : public testing::TestWithParam<Mutant> {};

TEST_P(Mutants, IsNoticedInEverySchedule) {
  for (const Schedule& s : kSchedules) {
    const std::string noticed = run(GetParam().mutation, s.policy, s.seed);
    bool as_expected = false;
    for (const char* text : GetParam().texts) {
      as_expected = as_expected || noticed.find(text) != std::string::npos;
    }
    EXPECT_TRUE(as_expected) << to_string(s.policy) << ", seed " << s.seed << ": \"" << noticed
                             << '"';
  }
}

INSTANTIATE_TEST_SUITE_P(Emulator, Mutants, testing::ValuesIn(mutants()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(MutantTable, HasEveryMutationOnce) {
  ASSERT_EQ(mutants().size(), static_cast<size_t>(kMutations - 1));
  for (int i = 1; i < kMutations; ++i) {
    EXPECT_EQ(static_cast<int>(mutants()[static_cast<size_t>(i - 1)].mutation), i);
  }
}

}  // namespace
}  // namespace vca::tests
