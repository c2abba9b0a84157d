// SPDX-License-Identifier: Apache-2.0
// Public bug reports about masks, lengths and sequences: what is not valid must not matter. Each
// test is named after the report's line in the bug log; the input is synthetic. Most compare bits
// with a call that never had the rest.
#include "tests/core/support.hpp"

namespace vca::test {
namespace {

// Keys and values [0, n) of the call as a call of its own.
void truncated(const Call& from, int64_t n, Call& to) {
  for (int64_t b = 0; b < from.shape.b; ++b)
    for (int64_t h = 0; h < from.shape.h_kv; ++h)
      for (int64_t s = 0; s < n; ++s)
        for (int64_t d = 0; d < from.shape.d; ++d) {
          to.k.set(b, h, s, d, from.k.get(b, h, s, d));
          to.v.set(b, h, s, d, from.v.get(b, h, s, d));
        }
}

// No causal mask exists, so no corner can be the wrong one: with more keys than queries every query
// sees every key. V marks the first and the last keys.
TEST(BugB20, CrossAttentionHasNoCorner) {
  Call c({1, 1, 1, 64, 192, 64}, VCA_FP32);
  c.q.fill([](int64_t, int64_t, int64_t, int64_t) { return 0.0f; });
  c.v.fill([](int64_t, int64_t, int64_t s, int64_t d) {
    return (d == 0 && s == 0) || (d == 1 && s == 191) ? 192.0f : 0.0f;
  });
  expect_ok(c.run());
  for (int64_t row = 0; row < 64; ++row)
    for (int64_t d = 0; d < 2; ++d)
      // One key of 192 with uniform P; E4M3 keeps it to 2^-4.
      ASSERT_NEAR(c.o.get(0, 0, row, d), 1.0f, 0.0625f) << row << " " << d;
}

class EveryRecipe : public testing::TestWithParam<int32_t> {};

TEST_P(EveryRecipe, BugB29MaskedKeysNeverLeak) {
  Call masked({1, 1, 1, 30, 256, 64});
  masked.desc.recipe = GetParam();
  std::vector<uint8_t> mask(256, 0);
  std::fill_n(mask.begin(), 37, uint8_t{1});
  masked.desc.key_mask = mask.data();
  Call alone({1, 1, 1, 30, 37, 64});
  alone.desc.recipe = GetParam();
  truncated(masked, 37, alone);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t s = 37; s < 256; ++s)
    for (int64_t d = 0; d < 64; ++d) {
      masked.k.set(0, 0, s, d, s % 2 == 0 ? 1e4f : nan);
      masked.v.set(0, 0, s, d, s % 2 == 0 ? 1e4f : nan);
    }
  masked.with_lse();
  alone.with_lse();
  expect_ok(masked.run());
  expect_ok(alone.run());
  EXPECT_EQ(masked.o.bytes(), alone.o.bytes());
  EXPECT_EQ(masked.lse, alone.lse);
  // The same keys by length.
  const int32_t length = 37;
  masked.desc.key_mask = nullptr;
  masked.desc.kv_lens = &length;
  expect_ok(masked.run());
  EXPECT_EQ(masked.o.bytes(), alone.o.bytes());
  // And with the rest as a padding segment.
  const vca_segment segments[] = {{0, 37, VCA_SEGMENT_VIDEO, 0}, {37, 219, VCA_SEGMENT_PADDING, 0}};
  masked.desc.kv_lens = nullptr;
  masked.desc.segments = segments;
  masked.desc.n_segments = 2;
  expect_ok(masked.run());
  EXPECT_EQ(masked.o.bytes(), alone.o.bytes());
}

TEST_P(EveryRecipe, BugB33NothingToAttendTo) {
  Call no_keys({1, 2, 2, 9, 0, 64});
  no_keys.desc.recipe = GetParam();
  no_keys.with_lse();
  expect_ok(no_keys.run());
  for (int64_t i = 0; i < 2 * 9 * 64; ++i)
    ASSERT_EQ(no_keys.o.bits(0, i / 576, i / 64 % 9, i % 64), 0u);
  for (const float x : no_keys.lse) EXPECT_EQ(x, -std::numeric_limits<float>::infinity());

  Call no_queries({1, 2, 2, 0, 9, 64});
  no_queries.desc.recipe = GetParam();
  expect_ok(no_queries.run());
  Call no_batch({0, 2, 2, 5, 9, 64});
  no_batch.desc.recipe = GetParam();
  expect_ok(no_batch.run());
  Call no_heads({1, 0, 0, 5, 9, 64});
  no_heads.desc.recipe = GetParam();
  expect_ok(no_heads.run());

  // Sequences of 0, 0 and 128 tokens; and a batch whose neighbour has no key.
  const vca_segment segments[] = {{0, 0, VCA_SEGMENT_SEQUENCE, 0},
                                  {0, 0, VCA_SEGMENT_SEQUENCE, 0},
                                  {0, 128, VCA_SEGMENT_SEQUENCE, 0}};
  Call ragged({1, 1, 1, 128, 128, 64}), whole({1, 1, 1, 128, 128, 64});
  ragged.desc.recipe = whole.desc.recipe = GetParam();
  ragged.desc.segments = segments;
  ragged.desc.n_segments = 3;
  expect_ok(ragged.run());
  expect_ok(whole.run());
  EXPECT_EQ(ragged.o.bytes(), whole.o.bytes());

  Call two({2, 1, 1, 20, 50, 64});
  two.desc.recipe = GetParam();
  two.with_lse();
  expect_ok(two.run());
  std::vector<uint32_t> second;
  for (int64_t i = 0; i < 20 * 64; ++i) second.push_back(two.o.bits(1, 0, i / 64, i % 64));
  const int32_t lengths[] = {0, 50};
  two.desc.kv_lens = lengths;
  expect_ok(two.run());
  for (int64_t i = 0; i < 20 * 64; ++i) {
    ASSERT_EQ(two.o.bits(0, 0, i / 64, i % 64), 0u);
    ASSERT_EQ(two.o.bits(1, 0, i / 64, i % 64), second[static_cast<size_t>(i)]);
  }
  EXPECT_EQ(two.lse_at(0, 0, 7), -std::numeric_limits<float>::infinity());
}

// Two sequences with K means of +20 and -20: each has statistics of its own, so each gives the bits
// of a call alone.
TEST_P(EveryRecipe, BugB38SequencesDoNotShareStatistics) {
  constexpr int64_t kFirst = 300, kSecond = 77;
  Call both({1, 1, 1, kFirst + kSecond, kFirst + kSecond, 64}, VCA_FP32);
  both.desc.recipe = GetParam();
  std::mt19937 generator(4);
  std::normal_distribution<float> normal;
  both.k.fill([&](int64_t, int64_t, int64_t s, int64_t) {
    return (s < kFirst ? 20.0f : -20.0f) + normal(generator);
  });
  const vca_segment segments[] = {{0, kFirst, VCA_SEGMENT_SEQUENCE, 0},
                                  {kFirst, kSecond, VCA_SEGMENT_SEQUENCE, 0}};
  both.desc.segments = segments;
  both.desc.n_segments = 2;
  expect_ok(both.run());
  int64_t begin = 0;
  for (const int64_t n : {kFirst, kSecond}) {
    Call alone({1, 1, 1, n, n, 64}, VCA_FP32);
    alone.desc.recipe = GetParam();
    for (int64_t s = 0; s < n; ++s)
      for (int64_t d = 0; d < 64; ++d) {
        alone.q.set(0, 0, s, d, both.q.get(0, 0, begin + s, d));
        alone.k.set(0, 0, s, d, both.k.get(0, 0, begin + s, d));
        alone.v.set(0, 0, s, d, both.v.get(0, 0, begin + s, d));
      }
    expect_ok(alone.run());
    int64_t wrong = 0;
    for (int64_t i = 0; i < n * 64; ++i)
      wrong += alone.o.bits(0, 0, i / 64, i % 64) != both.o.bits(0, 0, begin + i / 64, i % 64);
    EXPECT_EQ(wrong, 0) << "sequence at " << begin;
    begin += n;
  }
}

INSTANTIATE_TEST_SUITE_P(All, EveryRecipe, testing::Range(1, 12),
                         [](const testing::TestParamInfo<int32_t>& info) {
                           std::string name = vca_recipe_str(info.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace vca::test
