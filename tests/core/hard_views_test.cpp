// SPDX-License-Identifier: Apache-2.0
// Views and settings that are allowed and hard: odd strides, expanded inputs, empty views, scales,
// thread counts, workspaces.
#include "tests/core/hard.hpp"

namespace vca::test {
namespace {

// Views that are not contiguous: fused QKV, expanded batches and heads, and an output inside a
// larger buffer.
TEST(HardViews, StridedViews) {
  constexpr int64_t kTokens = 140, kHeads = 3;
  constexpr int kDim = 40;
  Call plain({2, kHeads, kHeads, kTokens, kTokens, kDim});
  expect_ok(plain.run());
  // [B, S, 4, H, D] with q, k, v and o in the third dimension.
  std::vector<uint16_t> fused(static_cast<size_t>(2 * kTokens * 4 * kHeads * kDim), 0x7FC0);
  const auto view = [&](int64_t which) {
    vca_tensor t = plain.desc.q;
    t.data = fused.data() + which * kHeads * kDim;
    const int64_t stride[4] = {kTokens * 4 * kHeads * kDim, kDim, 4 * kHeads * kDim, 1};
    std::copy_n(stride, 4, t.stride);
    return t;
  };
  const auto at = [&](int64_t which, int64_t b, int64_t h, int64_t s, int64_t d) -> uint16_t& {
    return fused[static_cast<size_t>((((b * kTokens + s) * 4 + which) * kHeads + h) * kDim + d)];
  };
  const Tensor* inputs[] = {&plain.q, &plain.k, &plain.v};
  for (int64_t which = 0; which < 3; ++which)
    for (int64_t i = 0; i < 2 * kHeads * kTokens * kDim; ++i) {
      const int64_t d = i % kDim, s = i / kDim % kTokens, h = i / (kDim * kTokens) % kHeads,
                    b = i / (kDim * kTokens * kHeads);
      at(which, b, h, s, d) = static_cast<uint16_t>(inputs[which]->bits(b, h, s, d));
    }
  vca_attn_desc desc = plain.desc;
  desc.q = view(0);
  desc.k = view(1);
  desc.v = view(2);
  desc.o = view(3);
  expect_ok(vca_attn_run(&desc, nullptr, 0, nullptr));
  int64_t wrong = 0;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t s = 0; s < kTokens; ++s)
        for (int64_t d = 0; d < kDim; ++d) wrong += at(3, b, h, s, d) != plain.o.bits(b, h, s, d);
  EXPECT_EQ(wrong, 0);
  // An output that reaches into the fused inputs is still refused.
  desc.o.data = fused.data() + kHeads * kDim - kDim;
  expect_refused(vca_attn_run(&desc, nullptr, 0, nullptr), VCA_ERR_INVALID_ARGUMENT,
                 {"output o overlaps"});
}

TEST(HardViews, ExpandedInputs) {
  // Batch 1's view is batch 0 again, heads share one, and every token is the same token.
  Call c({2, 2, 2, 50, 130, 64});
  c.desc.q.stride[0] = c.desc.k.stride[0] = c.desc.v.stride[0] = 0;
  expect_ok(c.run());
  for (int64_t i = 0; i < 2 * 50 * 64; ++i)
    ASSERT_EQ(c.o.bits(0, i / 3200, i / 64 % 50, i % 64),
              c.o.bits(1, i / 3200, i / 64 % 50, i % 64));
  c.desc.k.stride[2] = c.desc.v.stride[2] = 0;
  expect_ok(c.run());
  for (int64_t i = 0; i < 50 * 64; ++i)
    // One token 130 times: its value, to the output's own rounding.
    ASSERT_EQ(c.o.bits(0, 0, i / 64, i % 64), c.v.bits(0, 0, 0, i % 64));
}

// Scale 0 attends to everything alike; a negative scale to the least similar.
TEST(HardViews, ZeroAndNegativeScales) {
  for (const int32_t recipe : kCodeRecipes)
    for (const double scale : {0.0, -0.3}) {
      Call c({1, 1, 1, 30, 200, 64}, VCA_FP32);
      c.desc.recipe = recipe;
      c.desc.has_scale = 1;
      c.desc.scale = scale;
      c.q.fill_normal(1, 0.4f);
      expect_ok(c.run());
      EXPECT_LT(rel_l2(c, oracle(c)), kUnitNormalError) << vca_recipe_str(recipe) << " " << scale;
    }
}

// OpenMP takes the memory of a team from the stack of the caller and ends the process when a thread
// cannot be had.
TEST(HardViews, ThreadCountsBeyondAnyMachine) {
  Call few({300, 1, 1, 2, 3, 8});
  few.desc.num_threads = 1;
  expect_ok(few.run());
  for (const int32_t threads : {100000, std::numeric_limits<int32_t>::max()}) {
    Call c({300, 1, 1, 2, 3, 8});
    c.desc.num_threads = threads;
    expect_ok(c.run());
    EXPECT_EQ(c.o.bytes(), few.o.bytes()) << threads;
  }
}

// numpy gives an empty array zero strides.
TEST(HardViews, StridesOfEmptyViewsMeanNothing) {
  Call c({2, 2, 1, 0, 5, 8});
  for (vca_tensor* t : {&c.desc.q, &c.desc.o}) std::fill_n(t->stride, 4, int64_t{0});
  expect_ok(c.run());
  Call no_keys({2, 2, 1, 3, 0, 8});
  for (vca_tensor* t : {&no_keys.desc.k, &no_keys.desc.v}) std::fill_n(t->stride, 4, int64_t{-1});
  no_keys.with_lse();
  expect_ok(no_keys.run());
  for (const float x : no_keys.lse) EXPECT_EQ(x, -kInf);
}

// What sizes are asked for need not exist: an answer costs neither a list of the tokens nor a table
// of their angles (here 17 GB a batch, and 1 TB).
TEST(HardViews, SizesOfLengthsThatNoTensorBacks) {
  constexpr int64_t kLong = std::numeric_limits<int32_t>::max();
  for (const int64_t batches : {int64_t{1}, int64_t{1} << 20}) {
    Call c({1, 1, 1, 1, 1, 128});
    vca_rope rope{};
    rope.struct_size = sizeof(rope);
    rope.convention = VCA_ROPE_HALF;
    rope.axis_dim[0] = 128;
    rope.theta = 10000.0;
    rope.grid[0] = kLong;
    rope.grid[1] = rope.grid[2] = 1;
    c.desc.rope = &rope;
    for (vca_tensor* t : {&c.desc.q, &c.desc.k, &c.desc.v, &c.desc.o}) {
      t->data = nullptr;
      t->shape[0] = batches;
      t->shape[2] = kLong;
      t->stride[0] = kLong * 128;
    }
    vca_attn_info info{};
    info.struct_size = sizeof(info);
    expect_ok(vca_attn_query(&c.desc, &info));
    EXPECT_GT(info.workspace_bytes, static_cast<size_t>(batches * kLong * 3 * 128));
    int64_t n_valid = 0, n_blocks = 0;
    expect_ok(vca_ref_blocks(&c.desc, batches - 1, &n_valid, &n_blocks));
    EXPECT_EQ(n_valid, kLong);
    EXPECT_EQ(n_blocks, int64_t{1} << 24);
    const std::vector<int32_t> lens(static_cast<size_t>(batches), 129);
    c.desc.kv_lens = lens.data();
    expect_ok(vca_ref_blocks(&c.desc, 0, &n_valid, &n_blocks));
    EXPECT_EQ(n_valid, 129);
    EXPECT_EQ(n_blocks, 2);
  }
}

// The largest number of heads, none with a token: a call ends, and reports for each.
TEST(HardViews, AMillionHeadsWithoutTokens) {
  constexpr int64_t kBatches = int64_t{1} << 20;
  for (const int32_t recipe : {VCA_RECIPE_VC4, VCA_RECIPE_EXACT}) {
    Call c({1, 1, 1, 0, 0, 64});
    c.desc.recipe = recipe;
    for (vca_tensor* t : {&c.desc.q, &c.desc.k, &c.desc.v, &c.desc.o}) t->shape[0] = kBatches;
    std::vector<float> energy(static_cast<size_t>(kBatches), 7.0f);
    c.desc.energy_removed = energy.data();
    expect_ok(c.run());
    EXPECT_EQ(std::count_if(energy.begin(), energy.end(), [](float x) { return std::isnan(x); }),
              kBatches);
  }
}

// A workspace that lies over a tensor is refused before a byte of it changes.
TEST(HardViews, WorkspaceOverATensor) {
  Call c({1, 2, 1, 40, 300, 64});
  c.with_lse();
  size_t bytes = 0;
  expect_ok(vca_attn_workspace(&c.desc, &bytes));
  std::vector<uint8_t> memory(2 * bytes + 64, 0x3C);  // valid tensors, too
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  uint8_t* const workspace = memory.data() + (64 - address % 64) % 64;
  const std::vector<uint8_t> before = memory;
  const vca_attn_desc apart = c.desc;
  for (vca_tensor vca_attn_desc::*tensor :
       {&vca_attn_desc::q, &vca_attn_desc::k, &vca_attn_desc::v, &vca_attn_desc::o}) {
    c.desc = apart;
    (c.desc.*tensor).data = workspace + bytes - 2;  // the last element of the workspace
    EXPECT_EQ(vca_attn_run(&c.desc, workspace, bytes, nullptr), VCA_ERR_INVALID_ARGUMENT);
    EXPECT_NE(std::string(vca_last_error()).find("overlaps"), std::string::npos);
    EXPECT_EQ(memory, before);
    (c.desc.*tensor).data = workspace + bytes;
    expect_ok(vca_attn_run(&c.desc, workspace, bytes, nullptr));
    memory = before;
  }
  c.desc = apart;
  c.desc.lse = reinterpret_cast<float*>(workspace);
  EXPECT_EQ(vca_attn_run(&c.desc, workspace, bytes, nullptr), VCA_ERR_INVALID_ARGUMENT);
  EXPECT_EQ(memory, before);
}

}  // namespace
}  // namespace vca::test
