// SPDX-License-Identifier: Apache-2.0
// vca_ref_attn: the specification through the C ABI, its outputs, injections and targets.
#include <chrono>

#include "tests/core/support.hpp"

namespace vca::test {
namespace {

vca_ref_io empty_io() {
  vca_ref_io io{};
  io.struct_size = sizeof(io);
  return io;
}

struct Buffers {
  int64_t n_valid = 0, n_blocks = 0;
  std::vector<int64_t> order;
  std::vector<int32_t> s;
  std::vector<uint8_t> codes;
  std::vector<float> m, r, o, lse;
  std::vector<double> o_exact;
  vca_ref_io io = empty_io();

  Buffers(const vca_attn_desc& desc, int64_t nrows, int64_t b = 0) {
    expect_ok(vca_ref_blocks(&desc, b, &n_valid, &n_blocks));
    const auto rows = static_cast<size_t>(nrows), blocks = static_cast<size_t>(n_blocks);
    order.assign(blocks * 128, -7);
    s.assign(rows * blocks * 128, -7);
    codes.assign(rows * blocks * 128, 0xEE);
    m.assign(rows * blocks, -7);
    r.assign(rows * blocks, -7);
    o.assign(rows * static_cast<size_t>(desc.q.shape[3]), -7);
    lse.assign(rows, -7);
    o_exact.assign(o.size(), -7);
  }
  vca_ref_io& all() {
    io.order = order.data();
    io.s = s.data();
    io.codes = codes.data();
    io.m = m.data();
    io.r = r.data();
    io.o = o.data();
    io.lse = lse.data();
    return io;
  }
};

TEST(Ref, IsWhatTheBackendRuns) {
  Call c({2, 4, 2, 50, 300, 64});
  c.output(VCA_FP32);
  c.with_lse();
  expect_ok(c.run());
  Buffers x(c.desc, 7, 1);
  EXPECT_EQ(x.n_valid, 300);
  EXPECT_EQ(x.n_blocks, 3);
  x.all();
  x.io.o_exact = x.o_exact.data();
  expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 1, 3, 20, 7, &x.io));
  for (int64_t row = 0; row < 7; ++row) {
    for (int i = 0; i < 64; ++i)
      EXPECT_EQ(x.o[static_cast<size_t>(row * 64 + i)], c.o.get(1, 3, 20 + row, i));
    EXPECT_EQ(x.lse[static_cast<size_t>(row)], c.lse_at(1, 3, 20 + row));
  }
  const Answer a = oracle(c);
  for (int64_t row = 0; row < 7; ++row)
    for (int i = 0; i < 64; ++i)
      // Both are FP64 sums of 300 terms in different orders: 300 * 2^-53 relative to values of
      // order 1.
      EXPECT_NEAR(x.o_exact[static_cast<size_t>(row * 64 + i)],
                  a.o[static_cast<size_t>(((1 * 4 + 3) * 50 + 20 + row) * 64 + i)], 1e-12);
  // The order lists every token once, pads behind.
  std::vector<int64_t> tokens(x.order.begin(), x.order.begin() + 300);
  std::sort(tokens.begin(), tokens.end());
  for (int64_t i = 0; i < 300; ++i) EXPECT_EQ(tokens[static_cast<size_t>(i)], i);
  for (size_t i = 300; i < 384; ++i) EXPECT_EQ(x.order[i], -1);
  // Codes never exceed 0x7E, and the scores are the integers they came from.
  EXPECT_LE(*std::max_element(x.codes.begin(), x.codes.end()), 0x7E);
  EXPECT_GT(*std::max_element(x.codes.begin(), x.codes.end()), 0x70);
}

TEST(Ref, TakesAPermutation) {
  Call c({1, 1, 1, 5, 200, 64});
  c.output(VCA_FP32);
  c.desc.grouping = VCA_GROUPING_IDENTITY;
  expect_ok(c.run());
  std::vector<int64_t> identity(200), reversed(200);
  for (int64_t i = 0; i < 200; ++i)
    identity[static_cast<size_t>(i)] = i, reversed[static_cast<size_t>(i)] = 199 - i;
  Buffers x(c.desc, 5);
  x.all();
  x.io.permutation = identity.data();
  expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 0, 5, &x.io));
  for (int i = 0; i < 5 * 64; ++i)
    EXPECT_EQ(x.o[static_cast<size_t>(i)], c.o.get(0, 0, i / 64, i % 64));
  x.io.permutation = reversed.data();
  expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 0, 5, &x.io));
  EXPECT_EQ(x.order[0], 199);
  for (auto* bad : {&identity, &reversed}) {
    (*bad)[7] = (*bad)[8];
    x.io.permutation = bad->data();
    expect_refused(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 0, 5, &x.io),
                   VCA_ERR_INVALID_ARGUMENT, {"permutation", "bijection", "segment 0"});
  }
}

// Feeding the specification its own codes and sums changes nothing; feeding others does.
TEST(Ref, TakesInjectedCodes) {
  for (const int32_t recipe : {VCA_RECIPE_VC8, VCA_RECIPE_SAGE2, VCA_RECIPE_VC8_HQ}) {
    Call c({1, 1, 1, 6, 260, 64});
    c.desc.recipe = recipe;
    Buffers own(c.desc, 6);
    own.all();
    expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 0, 6, &own.io));
    Buffers fed(c.desc, 6);
    fed.all();
    fed.io.codes_in = own.codes.data();
    fed.io.sums_in = recipe == VCA_RECIPE_VC8 ? nullptr : own.r.data();
    expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 0, 6, &fed.io));
    EXPECT_EQ(fed.o, own.o) << vca_recipe_str(recipe);
    std::vector<uint8_t> other = own.codes;
    for (uint8_t& code : other) code = static_cast<uint8_t>(code / 2);
    fed.io.codes_in = other.data();
    expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 0, 6, &fed.io));
    EXPECT_NE(fed.o, own.o) << vca_recipe_str(recipe);
  }
}

TEST(Ref, FollowsOtherTargets) {
  Call c({1, 1, 1, 16, 400, 64});
  std::vector<float> first;
  for (int32_t t = VCA_TARGET_CPU; t <= VCA_TARGET_SM120; ++t) {
    Buffers x(c.desc, 16);
    x.all();
    expect_ok(vca_ref_attn(&c.desc, t, 0, 0, 0, 16, &x.io));
    if (first.empty()) first = x.o;
    double error = 0, norm = 0;
    for (size_t i = 0; i < x.o.size(); ++i) {
      error += std::pow(static_cast<double>(x.o[i] - first[i]), 2);
      norm += std::pow(static_cast<double>(first[i]), 2);
    }
    // Chips differ in the rounding of the PV accumulator only. Hopper's, the coarsest, truncates to
    // 13 bits below the largest term at every 32 keys: 4 truncations of 2^-13 a block, each at most
    // the block's own magnitude.
    EXPECT_LE(std::sqrt(error / norm), 4 * 0x1p-13 * 4) << vca_target_str(t);
  }
}

TEST(Ref, SequencesAndEmptyRows) {
  const vca_segment segments[] = {{0, 40, VCA_SEGMENT_SEQUENCE, 0},
                                  {40, 200, VCA_SEGMENT_SEQUENCE, 0},
                                  {240, 16, VCA_SEGMENT_PADDING, 0}};
  Call c({1, 1, 1, 256, 256, 64});
  c.desc.segments = segments;
  c.desc.n_segments = 3;
  c.output(VCA_FP32);
  expect_ok(c.run());
  Buffers x(c.desc, 2);
  EXPECT_EQ(x.n_valid, 200);
  EXPECT_EQ(x.n_blocks, 2);
  x.all();
  expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 38, 2, &x.io));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(x.o[static_cast<size_t>(i)], c.o.get(0, 0, 38, i));
  EXPECT_EQ(x.order[39] >= 0, true);
  for (size_t i = 40; i < x.order.size(); ++i) EXPECT_EQ(x.order[i], -1);
  for (size_t i = 128; i < 256; ++i) EXPECT_EQ(x.codes[i], 0) << "beyond this sequence's blocks";
  expect_refused(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 39, 2, &x.io),
                 VCA_ERR_INVALID_ARGUMENT, {"border of a sequence", "[39, 41)"});
  expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_CPU, 0, 0, 250, 2, &x.io));
  for (int i = 0; i < 64; ++i) EXPECT_EQ(x.o[static_cast<size_t>(i)], 0.0f) << "padding rows";
}

TEST(Ref, Refusals) {
  Call c({1, 2, 2, 10, 20, 64});
  Buffers x(c.desc, 10);
  x.all();
  const auto refused = [&](int32_t target, int64_t b, int64_t h, int64_t row0, int64_t n,
                           const std::vector<std::string>& words) {
    expect_refused(vca_ref_attn(&c.desc, target, b, h, row0, n, &x.io), VCA_ERR_INVALID_ARGUMENT,
                   words);
  };
  refused(VCA_TARGET_CPU, 1, 0, 0, 1, {"b is out of range", "got 1"});
  refused(VCA_TARGET_CPU, 0, 2, 0, 1, {"h is out of range", "got 2"});
  refused(VCA_TARGET_CPU, 0, 0, 5, 6, {"rows are out of range", "S_q = 10"});
  refused(VCA_TARGET_CPU, 0, 0, -1, 1, {"rows"});
  refused(77, 0, 0, 0, 1, {"target is unknown"});
  c.desc.recipe = VCA_RECIPE_BF16;
  refused(VCA_TARGET_CPU, 0, 0, 0, 1, {"bf16", "codes"});
  c.desc.recipe = VCA_RECIPE_EXACT;
  refused(VCA_TARGET_CPU, 0, 0, 0, 1, {"exact"});
  x.io.struct_size = 0;
  refused(VCA_TARGET_CPU, 0, 0, 0, 1, {"vca_ref_io.struct_size"});
  expect_refused(vca_ref_blocks(&c.desc, 3, nullptr, nullptr), VCA_ERR_INVALID_ARGUMENT,
                 {"b is out"});
}

TEST(Ref, OneRowOfALongProblemInSeconds) {
  // 75,600 tokens of one head (Wan2.2 at 720p); identity grouping, the grouping has tests of its
  // own.
  Call c({1, 1, 1, 75600, 75600, 128});
  c.desc.grouping = VCA_GROUPING_IDENTITY;
  Buffers x(c.desc, 1);
  x.io.o = x.o.data();
  x.io.o_exact = x.o_exact.data();
  const auto begin = std::chrono::steady_clock::now();
  expect_ok(vca_ref_attn(&c.desc, VCA_TARGET_SM90, 0, 0, 75599, 1, &x.io));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  EXPECT_LT(seconds.count(), 30.0) << "even on a busy machine";
  double error = 0, norm = 0;
  for (size_t i = 0; i < x.o.size(); ++i) {
    error += std::pow(static_cast<double>(x.o[i]) - x.o_exact[i], 2);
    norm += std::pow(x.o_exact[i], 2);
  }
  // Uncorrelated unit normals: E4M3 rounds each value by at most 2^-4 relative, and P likewise; the
  // mean over many keys shrinks signal and error alike, so the ratio stays below sqrt(2) * 2^-4
  // (worst case of both).
  EXPECT_LT(std::sqrt(error / norm), std::sqrt(2.0) / 16.0);
}

}  // namespace
}  // namespace vca::test
