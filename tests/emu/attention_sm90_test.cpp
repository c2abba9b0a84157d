// SPDX-License-Identifier: Apache-2.0
// The sm_90a attention kernel, its own source, on the emulator: O equals the specification under
// the sm90 chip model bit for bit, under every scheduler, with no rule of the instruction set
// broken.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "emu/launch.hpp"
#include "kernels/sm90/kernel.cuh"
// The test programs are one source each; this helper is shared with the device tests.
#include "kernels/packed_problem.cpp"

namespace vca::tests {
namespace {

using kernels::OutType;
using kernels::sm90::Config;
using kernels::sm90::config_of;
using kernels::sm90::Form;

struct AttentionCase {
  const char* name;
  const char* recipe;
  ProblemShape shape;
  OutType type = OutType::fp32;
  uint32_t grid = 1;
  int schedules = 1;  // per policy
};

std::ostream& operator<<(std::ostream& out, const AttentionCase& c) { return out << c.name; }

ProblemShape shape_of(int64_t s_q, int64_t s_kv, int d = 128, double logit_std = 2.0) {
  ProblemShape shape;
  shape.s_q = s_q;
  shape.s_kv = s_kv;
  shape.d = d;
  shape.logit_std = logit_std;
  return shape;
}

ProblemShape grouped_heads() {
  ProblemShape shape = shape_of(200, 300);
  shape.h_q = 4;
  shape.h_kv = 2;
  return shape;
}

ProblemShape ragged_batch() {
  ProblemShape shape = shape_of(130, 700, 64);
  shape.b = 3;
  shape.kv_lens = {700, 0, 385};
  return shape;
}

// Tail blocks in the middle of a head.
ProblemShape segments() {
  ProblemShape shape = shape_of(70, 400, 64);
  shape.segments = {130, 1, 269};
  return shape;
}

// Block maxima that move by about that many code units.
ProblemShape ramp_of(double code_units, double logit_std, int64_t s_kv = 640, int d = 64) {
  ProblemShape shape = shape_of(66, s_kv, d, logit_std);
  shape.ramp = code_units;
  return shape;
}

ProblemShape equal_keys(double logit_std) {
  ProblemShape shape = shape_of(40, 300, 64, logit_std);
  shape.equal_keys = true;
  return shape;
}

// Seven query heads on one of keys, many more queries than keys.
ProblemShape many_queries() {
  ProblemShape shape = shape_of(390, 3, 64);
  shape.h_q = 7;
  return shape;
}

const std::vector<AttentionCase>& cases() {
  static const std::vector<AttentionCase> table = {
      {"vc8_d128", "vc8", shape_of(128, 640), OutType::fp32, 1, 2},
      {"turbo_d128", "vc8-turbo", shape_of(128, 640), OutType::fp32, 1, 2},
      {"paper_d128", "vc8-paper", shape_of(128, 300)},
      // More than one group of 8 blocks, the second a tail.
      {"vc8_two_groups", "vc8", shape_of(64, 1300)},
      {"turbo_two_groups", "vc8-turbo", shape_of(64, 1300)},
      // Peaked rows: maxima move by more than a factor's range.
      {"vc8_peaked", "vc8", shape_of(128, 520, 128, 40.0)},
      {"turbo_peaked", "vc8-turbo", shape_of(128, 520, 128, 40.0)},
      {"vc8_d64", "vc8", shape_of(128, 300, 64)},
      {"turbo_d64", "vc8-turbo", shape_of(128, 300, 64)},
      {"vc8_d80", "vc8", shape_of(100, 300, 80)},
      {"turbo_d72_bf16", "vc8-turbo", shape_of(100, 140, 72), OutType::bf16},
      {"vc8_fp16", "vc8", shape_of(65, 127), OutType::fp16},
      {"one_key", "vc8", shape_of(1, 1)},
      {"one_key_turbo", "vc8-turbo", shape_of(1, 1)},
      {"one_block_exactly", "vc8", shape_of(129, 128)},
      {"several_tiles_a_cta", "vc8", grouped_heads(), OutType::fp32, 3},
      {"several_tiles_a_cta_turbo", "vc8-turbo", grouped_heads(), OutType::fp32, 3},
      // Real exponentials: sums in FP32, tail blocks masked.
      {"sage2_d128", "sage2", shape_of(128, 640), OutType::fp32, 1, 2},
      {"fp8_d128", "fp8", shape_of(128, 640), OutType::fp32, 1, 2},
      {"exp_d128", "vc8-exp", shape_of(128, 640), OutType::fp32, 1, 2},
      {"sage2_two_groups_tail", "sage2", shape_of(64, 1301)},
      {"fp8_two_groups_tail", "fp8", shape_of(64, 1301)},
      {"exp_two_groups_tail", "vc8-exp", shape_of(64, 1301)},
      {"sage2_peaked", "sage2", shape_of(128, 520, 128, 40.0)},
      {"fp8_peaked", "fp8", shape_of(128, 520, 128, 40.0)},
      {"exp_peaked", "vc8-exp", shape_of(128, 1100, 128, 40.0)},
      {"sage2_d64", "sage2", shape_of(128, 300, 64)},
      {"fp8_d64", "fp8", shape_of(128, 300, 64)},
      {"exp_d64", "vc8-exp", shape_of(128, 300, 64)},
      {"sage2_d72_bf16", "sage2", shape_of(100, 129, 72), OutType::bf16},
      {"fp8_d80_fp16", "fp8", shape_of(65, 127, 80), OutType::fp16},
      {"exp_d40_bf16", "vc8-exp", shape_of(65, 131, 40), OutType::bf16},
      {"one_key_sage2", "sage2", shape_of(1, 1)},
      {"one_key_fp8", "fp8", shape_of(1, 1)},
      {"one_key_exp", "vc8-exp", shape_of(1, 1)},
      {"several_tiles_a_cta_sage2", "sage2", grouped_heads(), OutType::fp32, 3},
      {"several_tiles_a_cta_fp8", "fp8", grouped_heads(), OutType::fp32, 3},
      {"several_tiles_a_cta_exp", "vc8-exp", grouped_heads(), OutType::fp32, 3},
      {"ragged_sage2", "sage2", ragged_batch(), OutType::fp32, 2},
      {"ragged_fp8", "fp8", ragged_batch(), OutType::fp32, 2},
      {"ragged_exp", "vc8-exp", ragged_batch(), OutType::fp32, 2},
      {"segments_sage2", "sage2", segments(), OutType::fp32, 2},
      {"segments_exp", "vc8-exp", segments(), OutType::fp32, 2},
      {"segments_vc8", "vc8", segments(), OutType::fp32, 2},
      {"ragged", "vc8", ragged_batch(), OutType::fp32, 2},
      {"ragged_turbo", "vc8-turbo", ragged_batch(), OutType::fp32, 2},
      // Around the edge where O's reference follows (128 code units), the largest factor that is
      // not 0 (1,008), and slow rises that the reference ignores for many blocks.
      {"vc8_rising_by_128", "vc8", ramp_of(128.0, 0.0)},
      {"vc8_rising_by_128_noisy", "vc8", ramp_of(128.0, 2.0)},
      {"vc8_rising_by_64", "vc8", ramp_of(64.0, 0.0, 1300)},
      {"vc8_rising_by_3", "vc8", ramp_of(3.0, 0.5, 1300)},
      {"vc8_rising_by_1008", "vc8", ramp_of(1008.0, 0.0)},
      {"vc8_falling_by_1008", "vc8", ramp_of(-1008.0, 0.0)},
      {"vc8_falling_by_128", "vc8", ramp_of(-128.0, 0.0)},
      {"turbo_rising_by_128", "vc8-turbo", ramp_of(128.0, 0.0)},
      {"turbo_falling_by_1008", "vc8-turbo", ramp_of(-1008.0, 2.0)},
      {"exp_rising_by_1008", "vc8-exp", ramp_of(1008.0, 0.0)},
      {"sage2_rising_by_1008", "sage2", ramp_of(1008.0, 0.0)},
      // Scores beyond 2^23 code units: an exponent e > 0 (B6).
      {"vc8_overflow_exponent", "vc8", shape_of(66, 400, 64, 3e6)},
      {"vc8_overflow_exponent_rising", "vc8", ramp_of(1e7, 1e5)},
      {"turbo_overflow_exponent", "vc8-turbo", shape_of(66, 400, 64, 3e6)},
      {"exp_overflow_exponent", "vc8-exp", shape_of(66, 400, 64, 3e6)},
      {"fp8_overflow_exponent", "fp8", shape_of(66, 400, 64, 3e6)},
      {"vc8_equal_keys", "vc8", equal_keys(2.0)},
      {"vc8_all_zero_queries_and_equal_keys", "vc8", equal_keys(0.0)},
      {"turbo_equal_keys", "vc8-turbo", equal_keys(2.0)},
      {"sage2_equal_keys", "sage2", equal_keys(2.0)},
      {"vc8_many_queries_few_keys", "vc8", many_queries(), OutType::bf16, 2},
      {"turbo_many_queries_few_keys", "vc8-turbo", many_queries(), OutType::fp16, 2},
      {"vc8_d1", "vc8", shape_of(40, 200, 1), OutType::bf16},
      {"vc8_d63", "vc8", shape_of(40, 200, 63), OutType::fp16},
      {"turbo_d65", "vc8-turbo", shape_of(40, 200, 65), OutType::bf16},
      {"vc8_d127", "vc8", shape_of(40, 200, 127), OutType::bf16},
  };
  return table;
}

template <Config kConfig>
void launch_as(emu::LaunchConfig config, const kernels::AttentionParams& params) {
  config.cluster = kConfig.cluster;
  config.grid *= kConfig.cluster;
  config.threads = Config::kThreads;
  config.smem_bytes = kConfig.smem_bytes();
  emu::launch(config, [&params] { kernels::sm90::attention_body<kConfig>(params); });
}

bool has_clusters(const char* recipe) {
  Form form{};
  return kernels::sm90::find_form(*spec::find_recipe(recipe), form) &&
         (form == Form::local || form == Form::running);
}

// Clusters of that many CTAs, config.grid of them, whatever the launcher would take.
void launch(const emu::LaunchConfig& config, uint32_t cluster, const PackedProblem& p,
            const kernels::AttentionParams& params) {
  Form form{};
  ASSERT_TRUE(kernels::sm90::find_form(*p.problem.recipe, form));
  kernels::sm90::with_config(form, p.problem.d_pad, [&]<Config kConfig>() {
    if (cluster == 1) return launch_as<config_of(kConfig.d, kConfig.form, 1)>(config, params);
    if constexpr (!kConfig.real_exp())
      launch_as<config_of(kConfig.d, kConfig.form, 2)>(config, params);
  });
}

// Output elements as bits, row-major [b][h][s][d]; `written` is false for rows without keys, which
// another kernel fills.
struct Expected {
  std::vector<uint32_t> bits;
  std::vector<bool> written;
  std::vector<float> lse, offset;  // [b][h][s]; offset: what LSE adds for the K mean
};

uint32_t out_bits(float x, OutType type) {
  if (type == OutType::bf16) return spec::bf16_encode(x);
  if (type == OutType::fp16) return spec::fp16_encode(x);
  return spec::float_bits(x);
}

Expected expected_of(const PackedProblem& packed, OutType type) {
  const spec::Problem& p = packed.problem;
  const size_t rows = static_cast<size_t>(p.batches * p.h_q * p.s_q);
  Expected out{std::vector<uint32_t>(rows * static_cast<size_t>(p.d)), std::vector<bool>(rows),
               std::vector<float>(rows), std::vector<float>(rows)};
  std::vector<float> o(static_cast<size_t>(p.s_q * p.d));
  for (size_t i = 0; i < p.subs.size(); ++i) {
    if (p.subs[i].n_blocks() == 0) continue;
    for (int64_t h = 0; h < p.h_q; ++h) {
      spec::RowOutputs part;
      const size_t row0 = static_cast<size_t>((p.subs[i].batch * p.h_q + h) * p.s_q);
      part.o = o.data();
      part.lse = out.lse.data() + row0;
      const size_t kv = i * static_cast<size_t>(p.h_kv) + static_cast<size_t>(p.kv_head(h));
      const size_t q = i * static_cast<size_t>(p.h_q) + static_cast<size_t>(h);
      spec::attention_rows(p, packed.kv[kv]->view, packed.q[q]->view, spec::Target::sm90, 0, p.s_q,
                           nullptr, part);
      std::copy_n(packed.q[q]->view.qk_offset, p.s_q,
                  out.offset.begin() + static_cast<ptrdiff_t>(row0));
      for (size_t r = 0; r < static_cast<size_t>(p.s_q); ++r) {
        out.written[row0 + r] = true;
        for (size_t c = 0; c < static_cast<size_t>(p.d); ++c) {
          const size_t d = static_cast<size_t>(p.d);
          out.bits[(row0 + r) * d + c] = out_bits(o[r * d + c], type);
        }
      }
    }
  }
  return out;
}

// The kernel adds m's part, ln(l/p_max) (below 8 here) and the offset in FP32: four roundings and a
// logarithm good to an ulp, each relative to no more than the sum of the three magnitudes.
void expect_lse(const Expected& want, const std::vector<float>& lse) {
  for (size_t row = 0; row < lse.size(); ++row) {
    if (!want.written[row]) continue;
    const float magnitude = std::fabs(want.lse[row]) + 2.0f * std::fabs(want.offset[row]) + 16.0f;
    ASSERT_NEAR(lse[row], want.lse[row], 6 * 0x1p-24f * magnitude) << "LSE of row " << row;
  }
}

class AttentionSm90 : public testing::TestWithParam<AttentionCase> {};

void expect_specification(const AttentionCase& c, uint32_t cluster) {
  PackedProblem p;
  make_problem(c.shape, *spec::find_recipe(c.recipe), 1, p);
  const Expected want = expected_of(p, c.type);
  const size_t element_bytes = c.type == OutType::fp32 ? 4 : 2;
  constexpr uint8_t kPoison = 0xA5;  // every element of a written row must be written
  std::vector<uint8_t> o(want.bits.size() * element_bytes);
  std::vector<float> lse(want.written.size());

  emu::LaunchConfig config;
  config.grid = c.grid;
  config.readable = {{p.q_tiles.data, p.q_tiles.size},
                     {p.k_tiles.data, p.k_tiles.size},
                     {p.v_tiles.data, p.v_tiles.size},
                     {p.mu_tiles.data, p.mu_tiles.size},
                     {p.k_scale.data(), p.k_scale.size() * sizeof(float)}};
  for (const emu::Policy policy : emu::kAllPolicies) {
    for (int seed = 1; seed <= c.schedules; ++seed) {
      SCOPED_TRACE(std::string(to_string(policy)) + ", seed " + std::to_string(seed));
      std::fill(o.begin(), o.end(), kPoison);
      config.policy = policy;
      config.seed = static_cast<uint64_t>(seed);
      try {
        launch(config, cluster, p, p.params(o.data(), lse.data(), c.type));
      } catch (const emu::Fault& fault) {
        FAIL() << fault.what();
      }
      const size_t d = static_cast<size_t>(p.problem.d);
      for (size_t i = 0; i < want.bits.size(); ++i) {
        uint32_t got = 0;
        std::memcpy(&got, &o[i * element_bytes], element_bytes);
        uint32_t expected = want.bits[i];
        if (!want.written[i / d]) std::memset(&expected, kPoison, element_bytes);
        ASSERT_EQ(got, expected) << "row " << i / d << ", column " << i % d;
      }
      expect_lse(want, lse);
    }
  }
}

TEST_P(AttentionSm90, EqualsTheSpecification) { expect_specification(GetParam(), 1); }

INSTANTIATE_TEST_SUITE_P(Emulator, AttentionSm90, testing::ValuesIn(cases()),
                         [](const auto& info) { return std::string(info.param.name); });

const AttentionCase& case_of(const std::string& name) {
  for (const AttentionCase& c : cases())
    if (name == c.name) return c;
  throw std::invalid_argument(name);
}

TEST(AttentionSm90Cases, OverflowNamesHaveAnExponent) {
  int seen = 0;
  for (const AttentionCase& c : cases()) {
    PackedProblem p;
    make_problem(c.shape, *spec::find_recipe(c.recipe), 1, p);
    const bool overflows = std::string(c.name).find("overflow") != std::string::npos;
    for (const int32_t e : p.exponent) EXPECT_EQ(e > 0, overflows) << c.name;
    seen += overflows;
  }
  EXPECT_GE(seen, 5);
}

// Rows whose second block lies above the reference by up to four code units more than the slack,
// and by up to four less.
TEST(AttentionSm90Cases, RisingBy128MeetsBothSidesOfTheEdge) {
  const AttentionCase& c = case_of("vc8_rising_by_128");
  PackedProblem p;
  make_problem(c.shape, *spec::find_recipe(c.recipe), 1, p);
  const size_t rows = static_cast<size_t>(c.shape.s_q),
               blocks = static_cast<size_t>(p.kv[0]->view.n_blocks);
  std::vector<float> m(rows * blocks), m_run(rows * blocks);
  spec::RowOutputs out;
  out.m = m.data();
  out.m_run = m_run.data();
  spec::attention_rows(p.problem, p.kv[0]->view, p.q[0]->view, spec::Target::sm90, 0, c.shape.s_q,
                       nullptr, out);
  int follows = 0, stays = 0;
  for (size_t row = 0; row < rows; ++row) {
    const float rise = m[row * blocks + 1] - m[row * blocks];
    const bool moved = m_run[row * blocks + 1] != m_run[row * blocks];
    EXPECT_EQ(moved, rise > spec::kLazySlack) << row;
    if (std::fabs(rise - spec::kLazySlack) <= 4.0f) (moved ? follows : stays) += 1;
  }
  EXPECT_GT(follows, 0);
  EXPECT_GT(stays, 0);
}

// The same of two CTAs that share K and V. Most cases have one query tile: their second CTA
// computes a dummy.
class AttentionSm90Cluster : public testing::TestWithParam<AttentionCase> {};

TEST_P(AttentionSm90Cluster, EqualsTheSpecification) { expect_specification(GetParam(), 2); }

std::vector<AttentionCase> cluster_cases() {
  std::vector<AttentionCase> out;
  for (const AttentionCase& c : cases())
    if (has_clusters(c.recipe)) out.push_back(c);
  // An even and an odd number of tiles beyond one pair; more stages than the ring has, so that it
  // wraps around several times across tiles.
  out.push_back({"two_pairs", "vc8-turbo", shape_of(512, 900, 64), OutType::fp32, 1});
  out.push_back({"a_pair_and_a_half", "vc8", shape_of(300, 1100, 64), OutType::bf16, 1});
  // An odd number of tiles in each of several heads.
  ProblemShape odd_heads = grouped_heads();
  odd_heads.s_q = 300;
  odd_heads.d = 64;
  out.push_back({"odd_heads", "vc8-turbo", odd_heads, OutType::fp32, 2});
  // More clusters than pairs: one does nothing.
  out.push_back({"idle_cluster", "vc8-turbo", shape_of(130, 130, 64), OutType::fp32, 2});
  return out;
}

INSTANTIATE_TEST_SUITE_P(Emulator, AttentionSm90Cluster, testing::ValuesIn(cluster_cases()),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vca::tests
