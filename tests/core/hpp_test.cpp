// SPDX-License-Identifier: Apache-2.0
// vca.hpp does what the C calls do, and turns their failures into exceptions.
#include <gtest/gtest.h>

#include <cmath>

#include "vca/vca.hpp"

namespace {

struct Data {
  std::array<int64_t, 4> shape{1, 2, 150, 64};
  std::vector<float> q = make(1), k = make(2), v = make(3), o = std::vector<float>(2 * 150 * 64);
  static std::vector<float> make(int seed) {
    std::vector<float> x(2 * 150 * 64);
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = std::sin(static_cast<float>(i * 7 + static_cast<size_t>(seed)) * 0.37f);
    return x;
  }
  vca_attn_desc desc(const vca::Options& options = {}) {
    return vca::describe(vca::view(q.data(), shape), vca::view(k.data(), shape),
                         vca::view(v.data(), shape), vca::view(o.data(), shape), options);
  }
};

TEST(Hpp, RunPrepareAttendAgree) {
  Data d;
  vca::run(vca::view(d.q.data(), d.shape), vca::view(d.k.data(), d.shape),
           vca::view(d.v.data(), d.shape), vca::view(d.o.data(), d.shape),
           {.recipe = VCA_RECIPE_VC8_HQ, .scale = 0.2, .num_threads = 1});
  const std::vector<float> want = d.o;
  const vca_attn_desc desc = d.desc({.recipe = VCA_RECIPE_VC8_HQ, .scale = 0.2});
  vca::Workspace workspace;
  vca::prepare(desc, workspace);
  std::fill(d.q.begin(), d.q.end(), 0.0f);
  std::fill(d.o.begin(), d.o.end(), 0.0f);
  vca::Workspace moved = std::move(workspace);
  vca::attend(desc, moved);
  EXPECT_EQ(d.o, want);
}

TEST(Hpp, LayoutsAreStrides) {
  const float x = 0;
  const vca_tensor hnd = vca::view(&x, {2, 3, 5, 7}),
                   nhd = vca::view(&x, {2, 3, 5, 7}, vca::Layout::nhd);
  EXPECT_EQ(std::vector<int64_t>(hnd.stride, hnd.stride + 4),
            (std::vector<int64_t>{105, 35, 7, 1}));
  EXPECT_EQ(std::vector<int64_t>(nhd.stride, nhd.stride + 4),
            (std::vector<int64_t>{105, 7, 21, 1}));
  EXPECT_EQ(hnd.dtype, VCA_FP32);
  const vca::Bf16 half{};
  EXPECT_EQ(vca::view(&half, {1, 1, 1, 1}).dtype, VCA_BF16);
}

TEST(Hpp, FailuresThrow) {
  Data d;
  vca_attn_desc desc = d.desc();
  desc.recipe = 99;
  try {
    vca::run(desc);
    FAIL() << "no exception";
  } catch (const vca::Error& error) {
    EXPECT_EQ(error.status(), VCA_ERR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.what()).find("recipe"), std::string::npos) << error.what();
  }
  const std::vector<int32_t> lens = {1, 2};
  EXPECT_THROW(d.desc({.kv_lens = lens}), vca::Error);
}

TEST(Hpp, QueryExplainAndState) {
  Data d;
  vca_attn_desc desc = d.desc();
  EXPECT_EQ(vca::query(desc).recipe, VCA_RECIPE_VC8);
  EXPECT_NE(vca::explain(desc).find("chosen"), std::string::npos);
  vca::GroupState state(desc);
  const vca_policy policy = vca::policy(8);
  int32_t step = 0;
  std::vector<uint8_t> regrouped(2, 9);
  desc.policy = &policy;
  desc.state = state.data();
  desc.step = &step;
  desc.regrouped = regrouped.data();
  vca::run(desc);
  EXPECT_EQ(regrouped, (std::vector<uint8_t>{1, 1}));
  const std::vector<uint8_t> blob = state.save();
  state.reset();
  state.load(desc, blob);
  step = 5;
  vca::run(desc);
  EXPECT_EQ(regrouped, (std::vector<uint8_t>{0, 0}));
}

TEST(Hpp, RopeIsTheCStruct) {
  const vca_rope r = vca::rope(VCA_ROPE_HALF, {32, 16, 16}, {2, 5, 15});
  EXPECT_EQ(r.struct_size, sizeof(vca_rope));
  Data d;
  vca_attn_desc desc = d.desc({.rope = &r});
  vca::run(desc);
  const std::vector<float> rotated = d.o;
  desc.rope = nullptr;
  vca::run(desc);
  EXPECT_NE(d.o, rotated);
}

}  // namespace
