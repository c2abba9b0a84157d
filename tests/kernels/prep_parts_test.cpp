// SPDX-License-Identifier: Apache-2.0
// Host-side parts of preprocessing: division by multiplication, how a tensor is read, which way
// RoPE goes and what its table holds.
#include <gtest/gtest.h>

#include "kernels/prep/pipeline.hpp"

namespace vca {
namespace {

using namespace kernels::prep;

TEST(PrepDivider, IsTheQuotient) {
  std::vector<int64_t> divisors = {1, 2, 3, 5, 7, 40, 64, 80, 591, 3600, 65535, 65537, 1 << 30};
  divisors.push_back((int64_t{1} << 31) - 1);
  for (int64_t d = 1; d < 5000; d += 7) divisors.push_back(d);
  for (const int64_t d : divisors) {
    const Divider by = make_divider(d);
    const auto expect = [&](int64_t n) {
      if (n < 0 || n >= int64_t{1} << 31) return;
      ASSERT_EQ(by.divide(static_cast<uint32_t>(n)), static_cast<uint32_t>(n / d)) << n << "/" << d;
    };
    // Quotients change at multiples: their neighbours, small ones and the largest.
    for (int64_t q = 0; q < 300; ++q)
      for (int64_t off = -1; off <= 1; ++off) {
        expect(q * d + off);
        expect(((int64_t{1} << 31) / d - q) * d + off);
      }
    expect((int64_t{1} << 31) - 1);
  }
}

TEST(PrepRope, ModelsKeepVectors) {
  std::vector<float> table;
  std::vector<AngleGroup> groups;
  const auto path = [&](spec::RopeConvention c, std::array<int, 3> axes) {
    table.clear();
    return pack_rope(spec::make_rope(c, axes, 10000.0, {3, 5, 7}, 0), table, groups).path;
  };
  constexpr auto kInterleaved = spec::RopeConvention::interleaved;
  constexpr auto kHalf = spec::RopeConvention::half;
  EXPECT_EQ(path(kInterleaved, {44, 42, 42}), RopePath::interleaved);  // Wan2.2, LongCat
  EXPECT_EQ(path(kInterleaved, {16, 56, 56}), RopePath::interleaved);  // HunyuanVideo-1.5
  EXPECT_EQ(path(kHalf, {32, 32, 32}), RopePath::half);                // MiniMax-H3
  EXPECT_EQ(path(kInterleaved, {2, 2, 4}), RopePath::scalar);          // three axes in a group
  EXPECT_EQ(path(kInterleaved, {22, 20, 20}), RopePath::scalar);       // 62 dims
  EXPECT_EQ(path(kHalf, {24, 24, 24}), RopePath::scalar);              // halves of 36
}

TEST(PrepRope, UnalignedTablesAreReadByElement) {
  alignas(16) float values[64 * 4 + 1] = {};
  std::vector<float> none;
  std::vector<AngleGroup> no_groups;
  const auto path = [&](const float* cos) {
    return pack_rope(
               spec::make_rope_from_tables(spec::RopeConvention::interleaved, 128, cos, values, 4),
               none, no_groups)
        .path;
  };
  EXPECT_EQ(path(values), RopePath::interleaved);
  EXPECT_EQ(path(values + 1), RopePath::scalar);
}

// Every frequency of every position, where rope.hpp looks for it.
TEST(PrepRope, TableHoldsEveryFrequency) {
  for (const std::array<int, 3> axes :
       {std::array<int, 3>{44, 42, 42}, {16, 56, 56}, {0, 64, 64}, {2, 2, 4}}) {
    const spec::Rope in =
        spec::make_rope(spec::RopeConvention::interleaved, axes, 100.0, {3, 5, 7}, 0);
    std::vector<float> table;
    std::vector<AngleGroup> groups;
    const Rope out = pack_rope(in, table, groups);
    EXPECT_EQ(groups.size(), static_cast<size_t>((in.rotated / 2 + 3) / 4));
    int f = 0;
    for (size_t a = 0; a < 3; ++a)
      for (int i = 0; i < axes[a] / 2; ++i, ++f)
        for (int64_t at = 0; at < in.grid[a]; ++at) {
          const size_t where = out.axis_table[a] + static_cast<size_t>(at) * out.pitch +
                               static_cast<size_t>(f / 4 * 8 + f % 4);
          ASSERT_LT(where + 4, table.size());
          const auto from = static_cast<size_t>(at * (axes[a] / 2) + i);
          EXPECT_EQ(table[where], in.axis_cos[a][from]);
          EXPECT_EQ(table[where + 4], in.axis_sin[a][from]);
          // A group knows its first axis and the one after it.
          const AngleGroup& g = groups[static_cast<size_t>(f / 4)];
          const int which = f % 4 >= g.own() ? 1 : 0;
          if (out.path != RopePath::scalar) {
            EXPECT_EQ(g.axes >> (2 * which) & 3u, a);
            EXPECT_EQ(g.table[which] + at * out.pitch + f % 4, where);
          }
        }
  }
}

TEST(PrepSource, VectorsNeedAlignedRows) {
  alignas(16) uint16_t data[64] = {};
  spec::TensorView t;
  t.data = data;
  t.shape = {2, 2, 2, 72};
  t.stride = {800, 400, 80, 1};
  const auto vectors = [](const spec::TensorView& view) { return tensor_of(view).vectors; };
  EXPECT_TRUE(vectors(t));
  EXPECT_EQ(tensor_of(t).row_bytes, 160u);
  for (size_t i = 0; i < 3; ++i) {
    spec::TensorView odd = t;
    odd.stride[i] += 4;
    EXPECT_FALSE(vectors(odd)) << i;
    odd.shape[i] = 1;  // no second element: the stride does not matter
    EXPECT_TRUE(vectors(odd)) << i;
  }
  spec::TensorView odd = t;
  odd.shape[3] = 70;
  EXPECT_FALSE(vectors(odd));
  odd = t;
  odd.data = data + 4;
  EXPECT_FALSE(vectors(odd));
  odd = t;
  odd.stride[2] = int64_t{1} << 31;  // 2^32 bytes
  EXPECT_FALSE(vectors(odd));
}

}  // namespace
}  // namespace vca
