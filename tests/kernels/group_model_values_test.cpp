// SPDX-License-Identifier: Apache-2.0
// The grouping kernels on the emulator, on values as models have them: the captured head of the
// bundled DiT, and the calibrated families over falling noise. Orders and f are the
// specification's.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "accuracy/calibrated.hpp"
#include "kernels/group_emulator.hpp"
#include "kernels/group_problem.hpp"
#include "spec/codes.hpp"
#include "tools/vcattn/safetensors.hpp"

namespace vca {
namespace {

using namespace kernels;
using spec::Grouping;
using tests::GroupCase;
using tests::GroupProblem;

// One head of `n` tokens whose values the caller gives, and the device's memory for it.
class Head {
 public:
  Head(Grouping kind, int64_t n, std::array<int64_t, 3> grid, const core::Policy& policy)
      : problem_({.name = "", .kind = kind, .lens = {n}, .grid = grid}),
        reference_(problem_, policy),
        request_(problem_.request()),
        layout_(request_, problem_.layout_shape()),
        buffers_(layout_) {
    request_.state = buffers_.state();
    request_.state_hash = 5;
    request_.policy = policy;
    request_.step = &step_;
    const group::Params p = params();
    *p.state = {group::kStateMagic, 5, layout_.n_units, 0};
    std::fill_n(p.unit_state, layout_.n_units, group::UnitState{});
  }
  Head(const Head&) = delete;
  Head& operator=(const Head&) = delete;

  // f of the step; the order and f of the device are compared with the specification's.
  double run(int32_t step, const uint16_t* values) {
    step_ = step;
    std::memcpy(problem_.bytes.data(), values, problem_.bytes.size());
    reference_.run(step);
    group::run_passes(request_, layout_, problem_.params(), buffers_.scratch(), group::Part::all,
                      launcher_);
    const auto& expected = reference_.unit(0);
    EXPECT_EQ(tests::compare_order(problem_, 0, 0, expected.order, params().out_order), "");
    EXPECT_EQ(params().units[0].f, expected.f);
    return expected.f;
  }

 private:
  group::Params params() {
    return group::device_params(request_, layout_, problem_.params(), buffers_.scratch());
  }

  GroupProblem problem_;
  tests::PolicyReference reference_;
  group::Request request_;
  group::Layout layout_;
  tests::GroupBuffers buffers_;
  tests::GroupEmulator launcher_;
  int32_t step_ = 0;
};

core::Policy every_step(int32_t steps) {
  core::Policy policy;
  policy.steps = policy.window = steps;
  return policy;
}

TEST(GroupModelValues, CapturedHeadOfTheDit) {
  const tools::SafetensorsFile file(std::string(VCA_SOURCE_DIR) +
                                    "/tests/golden/dit_capture_l2_s3.safetensors");
  const auto* values = static_cast<const uint16_t*>(file.data(file.require("v")));
  double f[2] = {};
  const Grouping kinds[] = {Grouping::kmeans, Grouping::vsmooth};
  for (int i = 0; i < 2; ++i) {
    SCOPED_TRACE(spec::to_string(kinds[i]));
    f[i] = Head(kinds[i], 14 * 13 * 23, {14, 13, 23}, every_step(1)).run(0, values);
    std::printf("%s: f_g %.3f\n", spec::to_string(kinds[i]), f[i]);
  }
  EXPECT_GT(f[1], 1.25 * f[0]);  // as on the calibrated tensors
}

// A cold start, then warm ones while the noise falls from twice to half of the calibrated one.
TEST(GroupModelValues, CalibratedFamiliesAtSeveralNoiseLevels) {
  const test::Grid grid = {4, 16, 32};
  for (const test::Family family : test::kFamilies) {
    Head head(Grouping::vsmooth, 4 * 16 * 32, {4, 16, 32}, every_step(3));
    double last = 0.0;
    for (int32_t step = 0; step < 3; ++step) {
      SCOPED_TRACE(std::string(test::to_string(family)) + " step " + std::to_string(step));
      const double gain = 2.0 - 0.75 * step;
      const auto v = test::make_calibrated_v(family, grid, 1, {gain, static_cast<uint64_t>(step)});
      std::vector<uint16_t> values;
      for (const float x : v) values.push_back(spec::bf16_encode(x));
      const double f = head.run(step, values.data());
      EXPECT_GT(f, last);  // less noise, more to remove
      last = f;
    }
  }
}

}  // namespace
}  // namespace vca
