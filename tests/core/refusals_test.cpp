// SPDX-License-Identifier: Apache-2.0
// Bad input through the C ABI: refused with what, got, allowed and hint, and nothing written.
#include "gpu/backend.hpp"
#include "tests/core/support.hpp"

namespace vca::test {
namespace {

constexpr Shape kSmall{1, 2, 1, 8, 24, 64};

// Runs the call, expects the refusal, and that neither O nor LSE was touched.
void refused(Call& c, vca_status status, const std::vector<std::string>& words) {
  c.with_lse();
  std::fill(c.o.bytes().begin(), c.o.bytes().end(), uint8_t{0x5A});
  const std::vector<uint8_t> before = c.o.bytes();
  expect_refused(c.run(), status, words);
  EXPECT_EQ(c.o.bytes(), before) << "the output was written";
  for (const float x : c.lse) EXPECT_EQ(x, 777.0f) << "the LSE was written";
}

void invalid(const std::function<void(Call&)>& spoil, const std::vector<std::string>& words) {
  Call c(kSmall);
  spoil(c);
  refused(c, VCA_ERR_INVALID_ARGUMENT, words);
}

TEST(Refusals, StructSize) {
  invalid([](Call& c) { c.desc.struct_size = 0; }, {"struct_size", "got 0", "hint"});
  invalid([](Call& c) { c.desc.struct_size = 100000; }, {"struct_size", "100000"});
  expect_refused(vca_attn_run(nullptr, nullptr, 0, nullptr), VCA_ERR_INVALID_ARGUMENT, {"NULL"});
}

TEST(Refusals, NewerCallerWithUnknownFields) {
  struct Newer {
    vca_attn_desc desc;
    uint64_t future;
  };
  Call c(kSmall);
  Newer newer{c.desc, 0};
  newer.desc.struct_size = sizeof(Newer);
  expect_ok(vca_attn_run(&newer.desc, nullptr, 0, nullptr));
  newer.future = 1;
  expect_refused(vca_attn_run(&newer.desc, nullptr, 0, nullptr), VCA_ERR_INVALID_ARGUMENT,
                 {"does not know", "offset"});
}

TEST(Refusals, DTypes) {
  invalid([](Call& c) { c.desc.k.dtype = 7; }, {"k.dtype", "got 7", "VCA_BF16", "hint"});
  invalid([](Call& c) { c.desc.v.dtype = VCA_FP16; }, {"differ in dtype", "FP16"});
  invalid([](Call& c) { c.desc.q.reserved = 3; }, {"q.reserved", "got 3"});
}

TEST(Refusals, HeadDim) {
  invalid([](Call& c) { c.desc.q.shape[3] = 0; }, {"head_dim", "got 0", "1 .. 128", "hint"});
  invalid(
      [](Call& c) {
        c.desc.q.shape[3] = 129;
        c.desc.q.stride[2] = 129;
      },
      {"head_dim", "got 129", "1 .. 128"});
  invalid([](Call& c) { c.desc.v.shape[3] = 32; }, {"D_v != D_qk", "got 32", "allowed: 64"});
  invalid([](Call& c) { c.desc.k.shape[3] = 32; }, {"k.shape[3]", "got 32"});
}

TEST(Refusals, Shapes) {
  invalid([](Call& c) { c.desc.q.shape[2] = -1; },
          {"q.shape[2] (S)", "negative", "got -1", ">= 0"});
  invalid([](Call& c) { c.desc.k.shape[0] = 2; }, {"k.shape[0] (B)", "got 2", "allowed: 1"});
  invalid([](Call& c) { c.desc.v.shape[2] = 23; }, {"v.shape[2]", "got 23", "allowed: 24"});
  invalid([](Call& c) { c.desc.o.shape[2] = 7; }, {"o's shape", "got 7", "allowed: 8"});
  invalid([](Call& c) { c.desc.v.shape[1] = 0; }, {"v.shape[1] (H_kv)", "got 0"});
}

TEST(Refusals, HeadsMustDivide) {
  Call c({1, 3, 2, 4, 4, 64});
  refused(c, VCA_ERR_INVALID_ARGUMENT, {"H_q % H_kv", "H_q = 3", "H_kv = 2", "multiple"});
}

// Without tokens no tensor backs these counts, and each head costs a few hundred bytes.
TEST(Refusals, MoreHeadsThanTheLibraryKeepsStateFor) {
  const auto with = [](int64_t b, int64_t h_q, int64_t h_kv, const char* axis) {
    Call c(kSmall);
    for (vca_tensor* t : {&c.desc.q, &c.desc.k, &c.desc.v, &c.desc.o}) {
      const bool query = t == &c.desc.q || t == &c.desc.o;
      t->shape[0] = b;
      t->shape[1] = query ? h_q : h_kv;
      t->shape[2] = 0;
    }
    const std::vector<std::string> words = {axis, "batches times heads", "1048576",
                                            "several calls"};
    expect_refused(c.run(), VCA_ERR_INVALID_ARGUMENT, words);
    size_t bytes = 0;
    expect_refused(vca_attn_workspace(&c.desc, &bytes), VCA_ERR_INVALID_ARGUMENT, words);
    expect_refused(vca_group_state_bytes(&c.desc, &bytes), VCA_ERR_INVALID_ARGUMENT, words);
  };
  with((int64_t{1} << 20) + 1, 1, 1, "q has");
  with(1, (int64_t{1} << 20) + 2, 2, "q has");
  with(1 << 11, 1 << 10, 1, "q has");
  with(int64_t{1} << 50, 0, 0, "q has");
  with(1, 0, int64_t{1} << 30, "k has");

  std::vector<vca_segment> sequences(600000, {0, 0, VCA_SEGMENT_SEQUENCE, 0});
  Call ragged({1, 2, 1, 24, 24, 64});
  sequences.back().len = 24;
  ragged.desc.segments = sequences.data();
  ragged.desc.n_segments = static_cast<int64_t>(sequences.size());
  refused(ragged, VCA_ERR_INVALID_ARGUMENT, {"too many sequences", "600000 segments", "1048576"});
}

TEST(Refusals, Strides) {
  invalid([](Call& c) { c.desc.q.stride[2] = -64; },
          {"q.stride[2] (S)", "negative", "got -64", "contiguous copy"});
  invalid([](Call& c) { c.desc.k.stride[3] = 2; }, {"k.stride[3] (D)", "got 2", "allowed: 1"});
}

TEST(Refusals, OverflowingShapesAndStrides) {
  const int64_t huge = int64_t{1} << 62;
  invalid(
      [&](Call& c) {
        c.desc.q.shape[0] = huge;
        c.desc.q.shape[1] = huge;
      },
      {"q.shape", "63 bits"});
  invalid([&](Call& c) { c.desc.k.stride[2] = huge; }, {"k", "63 bits", "strides"});
  invalid([&](Call& c) { c.desc.o.stride[1] = huge; }, {"o", "63 bits"});
}

TEST(Refusals, NullAndMisalignedData) {
  invalid([](Call& c) { c.desc.v.data = nullptr; }, {"v.data is NULL", "{1, 1, 24, 64}", "hint"});
  invalid([](Call& c) { c.desc.k.data = static_cast<char*>(c.desc.k.data) + 1; },
          {"k.data", "aligned", "leaves 1 modulo 2"});
}

TEST(Refusals, OutputOverlaps) {
  invalid([](Call& c) { c.desc.o.stride[1] = 0; }, {"o overlaps itself", "stride 0"});
  invalid([](Call& c) { c.desc.o.stride[2] = 63; }, {"o overlaps itself"});
  invalid([](Call& c) { c.desc.o.data = c.desc.q.data; }, {"output o overlaps q", "in place"});
  invalid([](Call& c) { c.desc.energy_removed = static_cast<float*>(c.desc.v.data); },
          {"output energy_removed overlaps v"});
}

TEST(Refusals, LseOverlapsOutput) {
  Call c(kSmall);
  c.output(VCA_FP32);
  c.desc.lse = static_cast<float*>(c.desc.o.data);
  expect_refused(c.run(), VCA_ERR_INVALID_ARGUMENT, {"overlaps", "lse"});
}

TEST(Refusals, Scalars) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  invalid(
      [&](Call& c) {
        c.desc.has_scale = 1;
        c.desc.scale = nan;
      },
      {"scale is not finite"});
  for (const double scale : {1e34, -1e300}) {
    invalid(
        [&](Call& c) {
          c.desc.has_scale = 1;
          c.desc.scale = scale;
        },
        {"scale", "too large", "2^112"});
  }
  invalid([](Call& c) { c.desc.has_scale = 2; }, {"has_scale", "got 2"});
  invalid([](Call& c) { c.desc.recipe = 99; }, {"recipe is unknown", "got 99", "vc8-hq"});
  invalid([](Call& c) { c.desc.grouping = -1; }, {"grouping is unknown", "kdtree"});
  invalid([](Call& c) { c.desc.hadamard = 2; }, {"hadamard", "got 2", "-1, 0 or 1"});
  invalid([](Call& c) { c.desc.flags = 8; }, {"flags", "got 8", "VCA_CHECK_FINITE"});
  invalid([](Call& c) { c.desc.num_threads = -3; }, {"num_threads", "got -3"});
  invalid([](Call& c) { c.desc.target = 42; }, {"target is unknown", "sm90"});
}

TEST(Refusals, WhatThisBuildCannotRun) {
  Call c(kSmall);
  c.desc.device = 0;  // with CUDA kernels: tests/core/device_test.cpp
  if (!gpu::built())
    refused(c, VCA_ERR_UNSUPPORTED, {"this build has no CUDA kernels", "got 0", "hint"});
  c.desc.device = VCA_DEVICE_CPU;
  c.desc.target = VCA_TARGET_SM90;
  refused(c, VCA_ERR_UNSUPPORTED, {"target cannot run: ", "sm90", "vca_ref_attn"});
  c.desc.target = VCA_TARGET_CPU;
  const uint8_t block_mask = 2;
  c.desc.block_mask = &block_mask;
  refused(c, VCA_ERR_INVALID_ARGUMENT, {"block_mask", "not a boolean", "0 or 1"});
}

TEST(Refusals, StreamsAreForCuda) {
  Call c(kSmall);
  int stream = 0;
  expect_refused(vca_attn_run(&c.desc, nullptr, 0, &stream), VCA_ERR_INVALID_ARGUMENT, {"stream"});
}

TEST(Refusals, KeyLengthsAndMasks) {
  const int32_t too_long = 25, negative = -1;
  invalid([&](Call& c) { c.desc.kv_lens = &too_long; }, {"kv_lens[0]", "got 25", "S_kv = 24"});
  invalid([&](Call& c) { c.desc.kv_lens = &negative; }, {"kv_lens[0]", "got -1"});
  std::vector<uint8_t> mask(24, 1);
  mask[5] = 255;
  invalid([&](Call& c) { c.desc.key_mask = mask.data(); }, {"key_mask[0, 5]", "got 255", "0 or 1"});
}

TEST(Refusals, Segments) {
  const auto with = [](std::vector<vca_segment> s, const std::vector<std::string>& words) {
    invalid(
        [&](Call& c) {
          c.desc.segments = s.data();
          c.desc.n_segments = static_cast<int64_t>(s.size());
        },
        words);
  };
  with({{0, 10, 0, 0}}, {"do not cover", "end at 10", "S_kv = 24"});
  with({{0, 10, 0, 0}, {11, 13, 0, 0}}, {"segments[1].begin", "gap", "got 11", "allowed: 10"});
  with({{0, 10, 0, 0}, {9, 15, 0, 0}}, {"segments[1].begin", "got 9"});
  with({{0, -1, 0, 0}}, {"segments[0].len", "negative"});
  with({{0, 24, 9, 0}}, {"segments[0].kind", "got 9", "SEQUENCE"});
  with({{0, 24, 3, 0}}, {"as many queries as keys", "S_q = 8", "S_kv = 24"});
  with({{0, 12, 3, 0}, {12, 12, 0, 0}}, {"mix SEQUENCE"});
  invalid([](Call& c) { c.desc.n_segments = 2; }, {"n_segments", "segments is NULL"});
  const vca_segment one{0, 24, 0, 0};
  invalid([&](Call& c) { c.desc.segments = &one; }, {"n_segments", "got 0"});
}

TEST(Refusals, Grid) {
  invalid([](Call& c) { c.desc.grouping = VCA_GROUPING_CUBES; }, {"cubes", "needs the grid"});
  invalid([](Call& c) { c.desc.grid[0] = 3; }, {"grid", "below 1", "{3, 0, 0}"});
  invalid([](Call& c) { std::fill_n(c.desc.grid, 3, 3); }, {"grid does not fit", "27", "24"});
}

TEST(Refusals, Rope) {
  const auto with = [](const std::function<void(vca_rope&)>& spoil,
                       const std::vector<std::string>& words, int64_t s_q = 24) {
    Call c({1, 1, 1, s_q, 24, 64});
    vca_rope rope{};
    rope.struct_size = sizeof(rope);
    rope.convention = VCA_ROPE_HALF;
    rope.axis_dim[0] = 64;
    rope.theta = 10000;
    rope.grid[0] = 24;
    rope.grid[1] = rope.grid[2] = 1;
    spoil(rope);
    c.desc.rope = &rope;
    refused(c, VCA_ERR_INVALID_ARGUMENT, words);
  };
  const float table[2] = {};
  with([](vca_rope& r) { r.struct_size = 8; }, {"vca_rope.struct_size"});
  with([](vca_rope& r) { r.convention = 5; }, {"rope.convention", "got 5"});
  with([](vca_rope& r) { r.axis_dim[0] = 3; }, {"rope.axis_dim[0]", "got 3", "even"});
  with([](vca_rope& r) { r.axis_dim[1] = 2; }, {"rope.axis_dim", "66", "head_dim = 64"});
  with([](vca_rope& r) { r.axis_dim[0] = 0; }, {"rope.axis_dim", "got 0"});
  with([](vca_rope& r) { r.theta = 0; }, {"rope.theta", "> 0"});
  with([](vca_rope& r) { r.grid[1] = 0; }, {"rope.grid[1]"});
  with([](vca_rope& r) { r.begin = 1; }, {"inside the sequence", "[1, 25)", "24"});
  with([&](vca_rope& r) { r.cos = table; }, {"one table of two"});
  with([](vca_rope&) {}, {"as many queries as keys"}, 8);
}

TEST(Refusals, PolicyAndState) {
  Call sizes(kSmall);
  size_t bytes = 0;
  expect_ok(vca_group_state_bytes(&sizes.desc, &bytes));
  std::vector<uint64_t> state(bytes / 8 + 1);
  expect_ok(vca_group_state_init(&sizes.desc, state.data(), bytes, nullptr));
  const int32_t step = 0, before = -1;
  const auto with = [&](const std::function<void(vca_policy&)>& spoil,
                        const std::vector<std::string>& words) {
    Call c(kSmall);
    vca_policy policy{};
    policy.struct_size = sizeof(policy);
    spoil(policy);
    c.desc.policy = &policy;
    c.desc.state = state.data();
    c.desc.step = &step;
    refused(c, VCA_ERR_INVALID_ARGUMENT, words);
  };
  with([](vca_policy& p) { p.steps = -1; }, {"policy.steps", "got -1"});
  with([](vca_policy& p) { p.window = -2; }, {"policy.window", "got -2"});
  with([](vca_policy& p) { p.refresh = -1; }, {"policy.refresh"});
  with([](vca_policy& p) { p.after = 3; }, {"policy.after", "REUSE"});
  with([](vca_policy& p) { p.decay = 1.5f; }, {"policy.decay", "got 1.5"});
  with([](vca_policy& p) { p.share_cfg = 2; }, {"policy.share_cfg"});
  vca_policy policy{};
  policy.struct_size = sizeof(policy);
  invalid([&](Call& c) { c.desc.policy = &policy; }, {"policy needs", "no state", "no step"});
  invalid([&](Call& c) { c.desc.state = state.data(); }, {"state without step"});
  invalid([&](Call& c) { c.desc.step = &step; }, {"step without state"});
  invalid(
      [&](Call& c) {
        c.desc.state = state.data();
        c.desc.step = &before;
      },
      {"*step", "got -1"});
}

TEST(Refusals, NonFiniteInputsAreNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  Call c({2, 2, 2, 9, 9, 16}, VCA_FP32);
  c.desc.flags = VCA_CHECK_FINITE;
  expect_ok(c.run());
  c.k.set(1, 1, 8, 15, nan);
  refused(c, VCA_ERR_NON_FINITE, {"k holds", "k[1, 1, 8, 15]", "nan"});
  c.k.set(1, 0, 3, 2, inf);  // an earlier one, in another head
  refused(c, VCA_ERR_NON_FINITE, {"k[1, 0, 3, 2]", "inf"});
  c.q.set(1, 1, 0, 0, -inf);  // q is looked at first
  refused(c, VCA_ERR_NON_FINITE, {"q[1, 1, 0, 0]", "-inf"});
  Call v({1, 1, 1, 3, 3, 5}, VCA_FP16);
  v.desc.flags = VCA_CHECK_FINITE;
  v.v.set(0, 0, 2, 4, inf);
  refused(v, VCA_ERR_NON_FINITE, {"v[0, 0, 2, 4]"});
}

TEST(Refusals, ForcedUnit) {
  Call c(kSmall);
  const ForcedIsa forced("sse9");
  refused(c, VCA_ERR_INVALID_ARGUMENT,
          {"VCATTN_CPU_ISA", "sse9", "portable, avx2, avx512", "unset"});
}

TEST(Refusals, Names) {
  int32_t recipe = 0, hadamard = 0;
  expect_refused(vca_recipe_parse("VC8", &recipe, &hadamard), VCA_ERR_INVALID_ARGUMENT,
                 {"\"VC8\"", "vc8-turbo", "lower case"});
  expect_refused(vca_grouping_parse("tree", &recipe), VCA_ERR_INVALID_ARGUMENT, {"kdtree"});
  expect_refused(vca_target_parse("sm80", &recipe), VCA_ERR_INVALID_ARGUMENT, {"sm89"});
  expect_refused(vca_recipe_parse(nullptr, &recipe, &hadamard), VCA_ERR_INVALID_ARGUMENT, {"NULL"});
}

}  // namespace
}  // namespace vca::test
