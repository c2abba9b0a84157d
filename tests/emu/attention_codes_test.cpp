// SPDX-License-Identifier: Apache-2.0
// Codes of the sm_90a kernels on the emulator, recovered through one-hot values, against the
// specification's codes. O alone would not tell a wrong code from a wrong sum.
#include <gtest/gtest.h>

#include "emu/launch.hpp"
#include "kernels/one_hot_values.hpp"
#include "kernels/sm90/kernel.cuh"
// The test programs are one source each; this helper is shared with the device tests.
#include "kernels/packed_problem.cpp"

namespace vca::tests {
namespace {

using kernels::sm90::Config;
using kernels::sm90::config_of;
using kernels::sm90::Form;

// One CTA, or a cluster of two of the forms that have it.
void run_kernel(const PackedProblem& p, float* o, float* lse, bool cluster = false) {
  emu::LaunchConfig config;
  config.threads = Config::kThreads;
  Form form{};
  ASSERT_TRUE(kernels::sm90::find_form(*p.problem.recipe, form));
  const kernels::AttentionParams params = p.params(o, lse, kernels::OutType::fp32);
  kernels::sm90::with_config(form, p.problem.d_pad, [&]<Config kConfig>() {
    const auto launch = [&]<Config kLaunched>() {
      config.cluster = config.grid = kLaunched.cluster;
      config.smem_bytes = kLaunched.smem_bytes();
      emu::launch(config, [&params] { kernels::sm90::attention_body<kLaunched>(params); });
    };
    constexpr bool kMayCluster = kConfig.form == Form::local || kConfig.form == Form::running;
    if (cluster && kMayCluster)
      launch.template operator()<config_of(kConfig.d, kConfig.form, kMayCluster ? 2u : 1u)>();
    else
      launch.template operator()<config_of(kConfig.d, kConfig.form, 1)>();
  });
}

struct CodesCase {
  const char* recipe;
  int d;
  bool cluster = false;
};
std::ostream& operator<<(std::ostream& out, const CodesCase& c) {
  return out << c.recipe << " d" << c.d << (c.cluster ? " cluster" : "");
}
class CodesSm90 : public testing::TestWithParam<CodesCase> {};

TEST_P(CodesSm90, RecoveredThroughOneHotValues) {
  const auto& [recipe, d, cluster] = GetParam();
  for (const int64_t keys : {128, 77})
    for (const double logit_std : {2.0, 12.0}) {
      ProblemShape shape;
      shape.s_q = 40;
      shape.s_kv = keys;
      shape.d = d;
      shape.logit_std = logit_std;
      PackedProblem p;
      make_problem(shape, *spec::find_recipe(recipe), 3, p);
      int64_t compared = 0;
      for (int first_key = 0; first_key < keys; first_key += d) {
        set_one_hot_values(p, first_key);
        std::vector<float> o(static_cast<size_t>(shape.s_q * d)),
            lse(static_cast<size_t>(shape.s_q));
        run_kernel(p, o.data(), lse.data(), cluster);
        EXPECT_EQ(compare_codes(p, o.data(), first_key, &compared), "") << keys << " keys";
      }
      EXPECT_EQ(compared, shape.s_q * keys);
    }
}

std::vector<CodesCase> codes_cases() {
  std::vector<CodesCase> out;
  for (const char* recipe : {"vc8", "vc8-turbo", "vc8-paper", "vc8-exp", "sage2", "fp8"})
    for (const int d : {64, 128}) out.push_back({recipe, d});
  for (const char* recipe : {"vc8", "vc8-turbo"})
    for (const int d : {64, 128}) out.push_back({recipe, d, true});
  return out;
}
INSTANTIATE_TEST_SUITE_P(Emulator, CodesSm90, testing::ValuesIn(codes_cases()));

// The comparison must see one wrong code, here one too low by one.
TEST(CodesSm90, SeesOneWrongCode) {
  ProblemShape shape;
  shape.s_q = 2;
  PackedProblem p;
  make_problem(shape, *spec::find_recipe("sage2"), 3, p);
  set_one_hot_values(p, 0);
  std::vector<float> o(256), lse(2);
  run_kernel(p, o.data(), lse.data());
  int64_t compared = 0;
  ASSERT_EQ(compare_codes(p, o.data(), 0, &compared), "");
  *std::max_element(o.begin() + 128, o.end()) *= 0.875f;  // 1.75·2^8 to the next code below
  EXPECT_NE(compare_codes(p, o.data(), 0, &compared), "");
}

}  // namespace
}  // namespace vca::tests
