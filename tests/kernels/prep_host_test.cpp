// SPDX-License-Identifier: Apache-2.0
// The preprocessing passes, run by loops on the host, against the specification: every byte of
// every operand. Same sources as on the device.
#include <gtest/gtest.h>

#include "kernels/host_launcher.hpp"
#include "kernels/prep_compare.hpp"

namespace vca {
namespace {

using namespace kernels;

using tests::HostLauncher;

class Prep : public testing::TestWithParam<tests::PrepCase> {};

TEST_P(Prep, EqualsTheSpecification) {
  tests::PrepProblem host(GetParam());
  std::vector<float> energy(host.problem.subs.size() * static_cast<size_t>(GetParam().h_kv), -1.0f);
  host.request.energy_removed = energy.data();
  const prep::Layout layout(host.request);
  tests::AlignedBytes workspace;
  constexpr size_t kGuard = 4096;
  workspace.resize(static_cast<size_t>(layout.bytes) + kGuard);
  std::memset(workspace.data, 0xA5, workspace.size);
  HostLauncher launcher(7);
  prep::run_passes(host.request, workspace.data, launcher);
  const AttentionParams got = prep::attention_params(host.request, workspace.data);
  const auto* k_offset = reinterpret_cast<const float*>(workspace.data + layout.k_offset);
  EXPECT_EQ(tests::PrepComparison(host, got, k_offset, energy.data()).run(), "");
  // The case that is there for the overflow exponent must have one.
  if (GetParam().magnitude > 1e20) {
    EXPECT_GT(got.exponent[0], 0);
  }
  for (size_t i = 0; i < kGuard; ++i)
    ASSERT_EQ(workspace.data[static_cast<size_t>(layout.bytes) + i], 0xA5);
}

INSTANTIATE_TEST_SUITE_P(Cases, Prep, testing::ValuesIn(tests::prep_cases()));

// The comparison must see a single wrong byte in any operand.
TEST(PrepComparison, SeesOneByte) {
  tests::PrepProblem host(
      {.name = "one byte", .h_q = 2, .h_kv = 2, .s_q = 200, .s_kv = 300, .d = 64});
  std::vector<float> energy(2);
  host.request.energy_removed = energy.data();
  const prep::Layout layout(host.request);
  tests::AlignedBytes workspace;
  workspace.resize(static_cast<size_t>(layout.bytes));
  HostLauncher launcher(1);
  prep::run_passes(host.request, workspace.data, launcher);
  const AttentionParams got = prep::attention_params(host.request, workspace.data);
  const auto* k_offset = reinterpret_cast<const float*>(workspace.data + layout.k_offset);
  for (const int64_t at :
       {layout.q_tiles + 128 * 64 + 3, layout.k_tiles + 5 * 128 * 64 + 9,
        layout.v_tiles + 72 * 128 - 1, layout.mu_tiles + 64, layout.q_unit + 8, layout.k_scale + 4,
        layout.s_v + 1, layout.exponent, layout.qk_offset + 4, layout.k_offset + 2,
        layout.block_valid,
        layout.descriptors + static_cast<int64_t>(offsetof(SubInfo, n_blocks))}) {
    workspace.data[at] ^= 1u;
    EXPECT_NE(tests::PrepComparison(host, got, k_offset, energy.data()).run(), "") << at;
    workspace.data[at] ^= 1u;
  }
  EXPECT_EQ(tests::PrepComparison(host, got, k_offset, energy.data()).run(), "");
}

TEST(ZeroRows, OnlyRowsWithoutKeys) {
  for (const OutType type : {OutType::bf16, OutType::fp16, OutType::fp32}) {
    SubInfo subs[2] = {};
    subs[0].q_len = 200;
    subs[0].n_blocks = 3;
    subs[1].q_begin = 200;
    subs[1].q_len = 140;
    for (SubInfo& sub : subs) sub.n_q_tiles = 2;
    constexpr int64_t kRowsAll = 360, kPitch = 9, kHeads = 2;
    const size_t bytes = type == OutType::fp32 ? 4 : 2;
    std::vector<uint8_t> o(kHeads * kRowsAll * kPitch * bytes, 0x5A);
    std::vector<float> lse(kHeads * kRowsAll, 3.0f);
    AttentionParams p{};
    p.subs = subs;
    p.o = o.data();
    p.o_stride_h = kRowsAll * kPitch;
    p.o_stride_s = kPitch;
    p.lse = lse.data();
    p.lse_s = kRowsAll;
    p.n_subs = 2;
    p.h_q = 2;
    p.h_kv = 1;
    p.max_q_tiles = 2;
    p.head_dim = 7;
    p.o_type = type;
    HostLauncher launcher(3);
    launcher.launch<prep::ZeroRows>(p, 8);
    for (int64_t row = 0; row < kHeads * kRowsAll; ++row) {
      const int64_t s = row % kRowsAll;
      const bool empty = s >= 200 && s < 340;
      EXPECT_EQ(lse[static_cast<size_t>(row)], empty ? -INFINITY : 3.0f) << row;
      for (int64_t i = 0; i < kPitch; ++i)
        for (size_t c = 0; c < bytes; ++c)
          ASSERT_EQ(o[static_cast<size_t>(row * kPitch + i) * bytes + c],
                    empty && i < 7 ? 0 : 0x5A);
    }
  }
}

}  // namespace
}  // namespace vca
