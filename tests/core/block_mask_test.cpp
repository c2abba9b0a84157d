// SPDX-License-Identifier: Apache-2.0
// Block masks (docs/numerics.md D5): every unit gives the specification's bits with every recipe
// and grouping, and the specification means what the mask says.
#include <cmath>
#include <cstring>
#include <random>

#include "tests/core/bounds.hpp"
#include "tests/core/support.hpp"

namespace vca::test {
namespace {

// 4 blocks of queries, 5 of keys, tails in both.
constexpr int64_t kQueries = 3 * 128 + 40, kKeys = 4 * 128 + 70, kBlocksQ = 4, kBlocksKv = 5;

std::vector<uint8_t> random_mask(int64_t heads, int percent, uint32_t seed) {
  std::mt19937 g(seed);
  std::vector<uint8_t> mask(static_cast<size_t>(heads * kBlocksQ * kBlocksKv));
  for (uint8_t& m : mask) m = g() % 100 < static_cast<uint32_t>(percent);
  return mask;
}

void check_units(Call& c, const std::string& what) {
  c.with_lse();
  const SpecAnswer want = specification(c);
  for (const std::string& isa : usable_isas()) {
    const ForcedIsa forced(isa);
    std::fill(c.o.bytes().begin(), c.o.bytes().end(), uint8_t{0x7F});
    expect_ok(c.run());
    expect_bits(c, want, what + " on " + isa);
  }
}

TEST(BlockMask, EveryRecipeOnEveryUnitGivesTheSpecificationsBits) {
  const std::vector<uint8_t> mask = random_mask(2, 50, 1);
  for (const spec::Recipe& r : spec::kRecipes) {
    if (r.id == spec::RecipeId::exact) continue;
    Call c({1, 2, 1, kQueries, kKeys, 64});
    c.desc.recipe = static_cast<int32_t>(r.id);
    c.desc.block_mask = mask.data();
    c.output(VCA_FP32);
    check_units(c, std::string(r.name));
  }
}

// The first blocks of keys are left out, more of them in every block of queries, while block maxima
// move around what O's lazy reference tolerates (128 code units): it starts at the first allowed
// block.
TEST(BlockMask, ReferenceStartsAtTheFirstAllowedBlock) {
  std::vector<uint8_t> mask(kBlocksQ * kBlocksKv);
  for (size_t i = 0; i < mask.size(); ++i) mask[i] = i % kBlocksKv > i / kBlocksKv;
  for (const int32_t recipe :
       {VCA_RECIPE_VC8, VCA_RECIPE_VC8_TURBO, VCA_RECIPE_VC8_EXP, VCA_RECIPE_VC8_HQ})
    for (const float codes : {1.0f, 127.9375f, 128.0625f, 300.0f, 1008.0f, -128.0625f, -1009.0f}) {
      Call c({1, 1, 1, kQueries, kKeys, 64}, VCA_FP32);
      c.desc.recipe = recipe;
      c.desc.grouping = VCA_GROUPING_IDENTITY;
      c.desc.block_mask = mask.data();
      c.desc.has_scale = 1;
      c.desc.scale = std::log(2.0) / 8;  // a code unit for each unit of q.k
      c.q.fill([](int64_t, int64_t, int64_t, int64_t d) { return d == 0 ? 1.0f : 0.0f; });
      c.k.fill([&](int64_t, int64_t, int64_t s, int64_t d) {
        return d == 0 ? codes * static_cast<float>(s / 128) : 0.0f;
      });
      c.v.fill([](int64_t, int64_t, int64_t, int64_t) { return 3.0f; });
      const std::string what = std::string(vca_recipe_str(recipe)) + " " + std::to_string(codes);
      check_units(c, what);
      for (int64_t row = 0; row < kQueries; ++row)  // one group of blocks: docs/numerics.md F5
        ASSERT_NEAR(c.o.get(0, 0, row, 5), 3.0f, 3 * 33 * 0x1p-24f) << what << ", row " << row;
    }
}

TEST(BlockMask, EveryGroupingGivesTheSpecificationsBits) {
  const std::vector<uint8_t> mask = random_mask(1, 40, 2);
  for (int32_t grouping = VCA_GROUPING_IDENTITY; grouping <= VCA_GROUPING_AUTO; ++grouping)
    for (const int32_t recipe : {VCA_RECIPE_VC8, VCA_RECIPE_VC8_TURBO, VCA_RECIPE_VC4}) {
      Call c({1, 1, 1, kQueries, kKeys, 64});
      c.desc.recipe = recipe;
      c.desc.grouping = grouping;
      c.desc.grid[0] = kKeys / 6;
      c.desc.grid[1] = 2;
      c.desc.grid[2] = 3;
      c.desc.block_mask = mask.data();
      check_units(c, std::string(vca_grouping_str(grouping)) + " " + vca_recipe_str(recipe));
    }
}

// With segments, masks and ragged sequences that start inside a block of queries.
TEST(BlockMask, ComposesWithKeyMasksAndRaggedBatches) {
  constexpr int64_t kTokens = 420;
  std::mt19937 g(3);
  std::vector<uint8_t> mask(4 * 4), keys(kTokens);
  for (uint8_t& m : mask) m = g() % 3 != 0;
  for (uint8_t& k : keys) k = g() % 5 != 0;
  const std::vector<vca_segment> segments = {{0, 170, VCA_SEGMENT_SEQUENCE, 0},
                                             {170, 100, VCA_SEGMENT_SEQUENCE, 0},
                                             {270, 150, VCA_SEGMENT_SEQUENCE, 0}};
  for (const int32_t recipe : {VCA_RECIPE_VC8, VCA_RECIPE_SAGE2, VCA_RECIPE_SAGE3}) {
    Call c({1, 1, 1, kTokens, kTokens, 64});
    c.desc.recipe = recipe;
    c.desc.block_mask = mask.data();
    c.desc.key_mask = keys.data();
    c.desc.segments = segments.data();
    c.desc.n_segments = 3;
    check_units(c, vca_recipe_str(recipe));
  }
}

TEST(BlockMask, AllOnesChangeNothing) {
  const std::vector<uint8_t> ones(2 * kBlocksQ * kBlocksKv, 1);
  for (const spec::Recipe& r : spec::kRecipes) {
    Call c({1, 2, 2, kQueries, kKeys, 40});
    c.desc.recipe = static_cast<int32_t>(r.id);
    c.with_lse();
    expect_ok(c.run());
    const std::vector<uint8_t> want = c.o.bytes();
    const std::vector<float> lse = c.lse;
    c.desc.block_mask = ones.data();
    expect_ok(c.run());
    EXPECT_EQ(c.o.bytes(), want) << r.name;
    EXPECT_EQ(c.lse, lse) << r.name;
  }
}

// The same mask for all queries is a key mask. FP64: equal to the order of sums.
TEST(BlockMask, MeansWhatItSays) {
  const std::vector<uint8_t> mask = random_mask(1, 50, 4);
  Call c({1, 1, 1, kQueries, kKeys, 64}, VCA_FP32);
  c.desc.recipe = VCA_RECIPE_EXACT;
  c.desc.block_mask = mask.data();
  c.with_lse();
  expect_ok(c.run());
  for (int64_t block = 0; block < kBlocksQ; ++block) {
    Call one({1, 1, 1, kQueries, kKeys, 64}, VCA_FP32);
    std::vector<uint8_t> keys(kKeys);
    for (int64_t t = 0; t < kKeys; ++t)
      keys[static_cast<size_t>(t)] = mask[static_cast<size_t>(block * kBlocksKv + t / 128)];
    one.desc.recipe = VCA_RECIPE_EXACT;
    one.desc.key_mask = keys.data();
    one.with_lse();
    expect_ok(one.run());
    for (int64_t row = block * 128; row < std::min(kQueries, block * 128 + 128); ++row) {
      ASSERT_FLOAT_EQ(c.lse_at(0, 0, row), one.lse_at(0, 0, row));
      for (int d = 0; d < 64; ++d)
        ASSERT_NEAR(c.o.get(0, 0, row, d), one.o.get(0, 0, row, d), 1e-6);
    }
  }
}

// Quantised recipes stay within their usual error of masked FP64 attention, whatever the order.
TEST(BlockMask, EveryGroupingIsNearFp64) {
  const std::vector<uint8_t> mask = random_mask(1, 50, 5);
  Call exact({1, 1, 1, kQueries, kKeys, 64}, VCA_FP32);
  exact.desc.recipe = VCA_RECIPE_EXACT;
  exact.desc.block_mask = mask.data();
  expect_ok(exact.run());
  for (int32_t grouping = VCA_GROUPING_IDENTITY; grouping <= VCA_GROUPING_AUTO; ++grouping) {
    if (grouping == VCA_GROUPING_CUBES) continue;  // needs a grid
    Call c({1, 1, 1, kQueries, kKeys, 64}, VCA_FP32);
    c.desc.grouping = grouping;
    c.desc.block_mask = mask.data();
    expect_ok(c.run());
    double num = 0, den = 0;
    for (int64_t row = 0; row < kQueries; ++row)
      for (int d = 0; d < 64; ++d) {
        const double want = exact.o.get(0, 0, row, d);
        num += std::pow(c.o.get(0, 0, row, d) - want, 2);
        den += want * want;
      }
    EXPECT_LT(std::sqrt(num / den), kUnitNormalError) << vca_grouping_str(grouping);
  }
}

TEST(BlockMask, QueriesWithoutAKeyGiveZeroAndMinusInfinity) {
  for (const spec::Recipe& r : spec::kRecipes) {
    std::vector<uint8_t> mask(kBlocksQ * kBlocksKv, 1);
    for (int64_t j = 0; j < kBlocksKv; ++j) mask[static_cast<size_t>(kBlocksKv + j)] = 0;
    Call c({1, 1, 1, kQueries, kKeys, 64});
    c.desc.recipe = static_cast<int32_t>(r.id);
    c.desc.block_mask = mask.data();
    c.with_lse();
    expect_ok(c.run());
    for (int64_t row = 100; row < 300; ++row) {
      const bool none = row / 128 == 1;
      EXPECT_EQ(std::isinf(c.lse_at(0, 0, row)), none) << r.name << " " << row;
      for (int d = 0; none && d < 64; ++d) ASSERT_EQ(c.o.get(0, 0, row, d), 0.0f) << r.name;
    }
  }
}

}  // namespace
}  // namespace vca::test
