// SPDX-License-Identifier: Apache-2.0
// Bug lines about sizes, on a device: offsets past 2^31, long sequences, many heads, short tails.
#include <cmath>

#include "device/bugs_support.hpp"

namespace vca::tests {
namespace {

// Tensors of many heads that would take minutes to make on the host: [S, H, D] BF16 on the device
// with the same numbers in every head, copied head by head from one host array.
class ManyHeads {
 public:
  ManyHeads(int64_t s, int64_t h, int64_t token_stride, int64_t first, const DeviceBytes& memory,
            const std::vector<uint16_t>& head)
      : s_(s), h_(h), stride_(token_stride), at_(memory.data() + first * 2) {
    const auto pitch = static_cast<size_t>(stride_) * 2;
    const DeviceBytes once(head.size() * 2);
    once.upload(head.data());
    for (int64_t i = 0; i < h_; ++i)
      check(cudaMemcpy2D(at_ + i * 256, pitch, once.data(), 256, 256, static_cast<size_t>(s_),
                         cudaMemcpyDeviceToDevice),
            "copy of a head");
  }
  vca_tensor view() const {
    vca_tensor t{};
    t.data = at_;
    t.dtype = VCA_BF16;
    const int64_t shape[4] = {1, h_, s_, 128}, stride[4] = {s_ * stride_, 128, stride_, 1};
    std::copy_n(shape, 4, t.shape);
    std::copy_n(stride, 4, t.stride);
    return t;
  }

 private:
  int64_t s_, h_, stride_;
  uint8_t* at_;
};

std::vector<uint16_t> random_head(int64_t s, uint64_t seed) {
  std::vector<uint16_t> out(static_cast<size_t>(s * 128));
  Random rng(seed);
  for (uint16_t& x : out) x = spec::bf16_encode(rng.normal());
  return out;
}

vca_tensor on_host(const std::vector<uint16_t>& head, int64_t s) {
  vca_tensor t = tensor(VCA_BF16, 1, 1, s, 128, false);
  t.data = const_cast<uint16_t*>(head.data());
  return t;
}

// Rows of one head of O on the device against the specification on that head alone, bit for bit.
int64_t wrong_values(const vca_tensor& o, int64_t h, int64_t row0, int64_t rows,
                     const std::vector<uint16_t>& q, const std::vector<uint16_t>& k,
                     const std::vector<uint16_t>& v) {
  vca_attn_desc d = vca_attn_desc_init();
  d.grouping = VCA_GROUPING_IDENTITY;
  d.num_threads = 1;
  d.q = on_host(q, o.shape[2]);
  d.k = on_host(k, static_cast<int64_t>(k.size()) / 128);
  d.v = on_host(v, static_cast<int64_t>(v.size()) / 128);
  std::vector<float> want(static_cast<size_t>(rows * 128));
  vca_ref_io io{};
  io.struct_size = sizeof io;
  io.o = want.data();
  EXPECT_EQ(vca_ref_attn(&d, VCA_TARGET_SM90, 0, 0, row0, rows, &io), VCA_OK) << vca_last_error();
  std::vector<uint16_t> got(static_cast<size_t>(rows * 128));
  check(cudaMemcpy2D(got.data(), 256,
                     static_cast<uint8_t*>(o.data) + (h * o.stride[1] + row0 * o.stride[2]) * 2,
                     static_cast<size_t>(o.stride[2]) * 2, 256, static_cast<size_t>(rows),
                     cudaMemcpyDeviceToHost),
        "copy out");
  int64_t wrong = 0;
  for (size_t i = 0; i < got.size(); ++i) wrong += got[i] == spec::bf16_encode(want[i]) ? 0 : 1;
  return wrong;
}

void run_on_device(const vca_attn_desc& d) {
  size_t bytes = 0;
  ASSERT_EQ(status_text(vca_attn_workspace(&d, &bytes)), "");
  const DeviceBytes workspace(bytes);
  workspace.fill(0xFF);
  ASSERT_EQ(status_text(vca_attn_run(&d, workspace.data(), bytes, nullptr)), "");
  wait_for_device();
  EXPECT_TRUE(workspace.guards_intact());
}

// The fused buffer of MiniMax-H3, [S, 3, 56, 128]: 2^31 elements are passed at token 99,865.
TEST(DeviceBugs, B01_B02_FusedViewPastTwoToThe31) {
  if (small_problems()) GTEST_SKIP() << "needs 8 GB; offsets of this size: kernels_prep_host_test";
  constexpr int64_t kHeads = 56, kStride = 3 * kHeads * 128;
  for (const int64_t s : {int64_t{99840}, int64_t{99904}}) {
    SCOPED_TRACE(s);
    const std::vector<uint16_t> q = random_head(s, 1), k = random_head(s, 2), v = random_head(s, 3);
    const std::vector<uint16_t> ones(v.size(), 0x3F80);
    const DeviceBytes fused(static_cast<size_t>(s * kStride) * 2);
    const DeviceBytes out(static_cast<size_t>(s * kHeads * 128) * 2);
    vca_attn_desc d = vca_attn_desc_init();
    d.device = 0;
    d.grouping = VCA_GROUPING_IDENTITY;
    d.q = ManyHeads(s, kHeads, kStride, 0, fused, q).view();
    d.k = ManyHeads(s, kHeads, kStride, kHeads * 128, fused, k).view();
    d.v = ManyHeads(s, kHeads, kStride, 2 * kHeads * 128, fused, ones).view();
    d.o = tensor(VCA_BF16, 1, kHeads, s, 128, true);
    d.o.data = out.data();
    out.fill(0xFF);
    run_on_device(d);
    // V = 1 comes back as 1.
    const std::vector<uint8_t> bytes = out.download();
    int64_t wrong = 0;
    for (size_t i = 0; i < bytes.size(); i += 2) wrong += bytes[i] != 0x80 || bytes[i + 1] != 0x3F;
    EXPECT_EQ(wrong, 0);
    // Rows of Q beyond 2^31 carry their own codes: random V tells them apart.
    d.v = ManyHeads(s, kHeads, kStride, 2 * kHeads * 128, fused, v).view();
    out.fill(0xFF);
    run_on_device(d);
    const std::vector<std::pair<int64_t, int64_t>> samples = {
        {0, 0}, {0, s - 8}, {31, s - 8}, {kHeads - 1, s / 2}, {kHeads - 1, s - 8}};
    for_each_in_parallel(samples, [&](const std::pair<int64_t, int64_t>& at) {
      EXPECT_EQ(wrong_values(d.o, at.first, at.second, 8, q, k, v), 0)
          << "head " << at.first << ", row " << at.second;
    });
    EXPECT_TRUE(fused.guards_intact() && out.guards_intact());
  }
}

// The same stride with 320,000 tokens: offsets of q, k and v reach 6.9e9 elements. Two heads at the
// end of each token's row, so that the attention itself stays short; every pass of the preparation
// (RoPE, Hadamard, LSE, an order of 2,500 blocks) must give what it gives for the same rows side by
// side.
TEST(DeviceBugs, B01_B02_ThreeHundredTwentyThousandTokens) {
  if (small_problems()) GTEST_SKIP() << "needs 16 GB; offsets of this size: kernels_prep_host_test";
  constexpr int64_t kTokens = 320000, kHeads = 56, kUsed = 2, kStride = 3 * kHeads * 128;
  const std::vector<uint16_t> head[3] = {random_head(kTokens, 7), random_head(kTokens, 8),
                                         random_head(kTokens, 9)};
  const DeviceBytes fused(static_cast<size_t>(kTokens * kStride) * 2);
  const DeviceBytes compact(static_cast<size_t>(kTokens * 3 * kUsed * 128) * 2);
  const DeviceBytes out(static_cast<size_t>(kTokens * kUsed * 128) * 2);
  const DeviceBytes lse(static_cast<size_t>(kTokens * kUsed) * 4);
  vca_tensor far[3], near[3];
  for (int64_t i = 0; i < 3; ++i) {
    far[i] =
        ManyHeads(kTokens, kUsed, kStride, ((i + 1) * kHeads - kUsed) * 128, fused, head[i]).view();
    near[i] = ManyHeads(kTokens, kUsed, 3 * kUsed * 128, i * kUsed * 128, compact, head[i]).view();
  }
  vca_rope rope{};
  rope.struct_size = sizeof rope;
  rope.convention = VCA_ROPE_INTERLEAVED;
  rope.theta = 10000.0;
  const int32_t axes[3] = {44, 42, 42};
  const int64_t grid[3] = {20, 100, 160};
  std::copy_n(axes, 3, rope.axis_dim);
  std::copy_n(grid, 3, rope.grid);
  vca_attn_desc d = vca_attn_desc_init();
  d.device = 0;
  d.recipe = VCA_RECIPE_VC8;
  d.o = tensor(VCA_BF16, 1, kUsed, kTokens, 128, true);
  d.o.data = out.data();
  d.lse = lse.as<float>();
  const auto outputs = [&](const vca_tensor(&from)[3]) {
    d.q = from[0], d.k = from[1], d.v = from[2];
    out.fill(0xFF);
    lse.fill(0xFF);
    run_on_device(d);
    return std::pair{out.download(), lse.download()};
  };
  for (const bool everything : {false, true}) {
    SCOPED_TRACE(everything ? "grouping, RoPE, Hadamard" : "token order");
    d.grouping = everything ? VCA_GROUPING_VSMOOTH : VCA_GROUPING_IDENTITY;
    d.rope = everything ? &rope : nullptr;
    d.hadamard = everything ? 1 : 0;
    const auto wanted = outputs(near), got = outputs(far);
    EXPECT_TRUE(got.first == wanted.first) << "O";
    EXPECT_TRUE(got.second == wanted.second) << "LSE";
    if (!everything) {
      EXPECT_EQ(wrong_values(d.o, 1, kTokens - 4, 4, head[0], head[1], head[2]), 0);
    }
  }
  EXPECT_TRUE(fused.guards_intact() && out.guards_intact() && lse.guards_intact());
}

TEST(DeviceBugs, B04_NothingQuadraticIsAsked) {
  Case c{.name = "B04", .memory = Memory::shared_heads};
  c.h_q = c.h_kv = size(8, 2), c.s_q = c.s_kv = size(73774, 200), c.o_gap = 0;
  const Problem p(c, 1);
  // Q, K and V codes, then at most 16 bytes a token (scales, token lists, LSE offsets), means and
  // scales of blocks and tails: 5 bytes a channel and token are far above it, and far below a
  // row of blocks.
  EXPECT_LT(p.workspace_bytes, static_cast<size_t>(c.h_q * (c.s_q + 1024) * 128 * 5));
  run_and_compare(p);
}

TEST(DeviceBugs, B05_BeyondThreeHundredThousandKeys) {
  constexpr int64_t kHeads = 56, kStride = kHeads * 128;
  if (small_problems()) GTEST_SKIP() << "needs 9 GB";
  for (const int64_t s_kv : {int64_t{299520}, int64_t{299648}}) {
    SCOPED_TRACE(s_kv);
    const std::vector<uint16_t> q = random_head(128, 4), k = random_head(s_kv, 5),
                                v = random_head(s_kv, 6);
    const DeviceBytes q_memory(128 * kStride * 2), out(128 * kStride * 2);
    const DeviceBytes k_memory(static_cast<size_t>(s_kv * kStride) * 2),
        v_memory(static_cast<size_t>(s_kv * kStride) * 2);
    vca_attn_desc d = vca_attn_desc_init();
    d.device = 0;
    d.recipe = VCA_RECIPE_VC8;  // AUTO declines 128 queries
    d.grouping = VCA_GROUPING_IDENTITY;
    d.q = ManyHeads(128, kHeads, kStride, 0, q_memory, q).view();
    d.k = ManyHeads(s_kv, kHeads, kStride, 0, k_memory, k).view();
    d.v = ManyHeads(s_kv, kHeads, kStride, 0, v_memory, v).view();
    d.o = tensor(VCA_BF16, 1, kHeads, 128, 128, true);
    d.o.data = out.data();
    out.fill(0xFF);
    run_on_device(d);
    for_each_in_parallel(std::vector<int64_t>{0, kHeads - 1}, [&](int64_t h) {
      EXPECT_EQ(wrong_values(d.o, h, 124, 4, q, k, v), 0) << "head " << h;
    });
  }
}

TEST(DeviceBugs, B06_ManyKeysAreNoNoise) {
  for (const int64_t s_kv : {size(160000, 300), size(170000, 400)}) {
    Case c{.name = "B06", .dtype = VCA_FP32, .o_dtype = VCA_FP32};
    c.s_q = 4, c.s_kv = s_kv, c.d = 32;
    Problem p(c, 2);
    p.fill(2, [](int64_t b, int64_t h, int64_t s, int64_t d) {
      return 0.5f + normal_at(3, b, h, s, d);
    });
    run_and_compare(p);
    p.fill(0, zero);
    run_and_compare(p);
    // Uniform scores: the mean of V. Only V's rounding is left, 0.0361 of a residual around 1,
    // averaged over all keys; five deviations.
    const Output o(p);
    for (int d = 0; d < c.d; ++d) {
      double mean = 0;
      for (int64_t s = 0; s < s_kv; ++s) mean += static_cast<double>(p.input(2, 0, 0, s, d));
      mean /= static_cast<double>(s_kv);
      ASSERT_NEAR(o.at(0, 0, 0, d), mean, 5 * 0.0361 / std::sqrt(static_cast<double>(s_kv))) << d;
    }
  }
}

TEST(DeviceBugs, B07_LengthMaskBeyond65536) {
  Case c{.name = "B07", .lens = true};
  c.s_q = 128, c.s_kv = size(65664, 264);
  Problem p(c, 3);
  const auto length = static_cast<int32_t>(c.s_kv - 64);
  p.lens[0] = length;
  p.fill(2, [length](int64_t b, int64_t h, int64_t s, int64_t d) {
    return s < length ? normal_at(4, b, h, s, d) : 1e4f;
  });
  run_and_compare(p);
}

TEST(DeviceBugs, B08_LongSequenceOfFortyHeadsCompletes) {
  Case c{.name = "B08", .memory = Memory::shared_heads};
  c.h_q = c.h_kv = size(40, 2), c.s_q = c.s_kv = size(178000, 200), c.o_gap = 0;
  Problem p(c, 4);
  p.fill(2, one);
  run(p);
  EXPECT_EQ(Output(p).rows_other_than(1.0f), 0);
  EXPECT_EQ(p.broken_guard(), "");
}

TEST(DeviceBugs, B09_TailSmallerThanABlock) {
  struct Shape {
    int64_t b, s_q, s_kv, h;
  };
  // [9, 20, 12, 128] and [1, 20, 9, 128] as the report has them, NHD.
  for (const Shape& s : {Shape{size(9, 2), 20, 20, size(12, 2)}, Shape{1, 20, 20, size(9, 1)},
                         Shape{1, size(1001, 40), size(503, 63), 1}}) {
    Case c{.name = "B09", .memory = Memory::nhd};
    c.b = s.b, c.h_q = c.h_kv = s.h, c.s_q = s.s_q, c.s_kv = s.s_kv;
    const Problem p(c, 5);  // outputs and workspace are full of NaN
    run_and_compare(p);
  }
}

TEST(DeviceBugs, B10_EveryTailOfABlock) {
  for (const int64_t tail : {1, 63, 64, 65, 100, 127}) {
    SCOPED_TRACE(tail);
    Case c{.name = "B10"};
    c.s_q = 40, c.s_kv = size(1024, 128) + tail;
    run_and_compare(Problem(c, 6));
  }
}

TEST(DeviceBugs, B34_MoreThan65535BatchesAndHeads) {
  for (const auto& [b, h] : {std::pair{size(70000, 70), int64_t{1}}, {5, size(14000, 14)}}) {
    Case c{.name = "B34", .memory = b > h ? Memory::shared_batches : Memory::shared_heads};
    c.b = b, c.h_q = c.h_kv = h, c.s_q = c.s_kv = 16, c.d = 64;
    run_and_compare(Problem(c, 7));
  }
}

}  // namespace
}  // namespace vca::tests
