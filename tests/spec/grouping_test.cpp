// SPDX-License-Identifier: Apache-2.0
//
// Token grouping as a user of group_head sees it: always a bijection, never a masked token, the
// same every time. The steps against naive forms stand in grouping_steps_test.cpp.
#include "spec/grouping/grouping.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "spec/grouping_inputs.hpp"

namespace vca::spec {
namespace {

using test::Head;
using test::Lcg;

constexpr Grouping kAll[] = {Grouping::identity, Grouping::cubes,  Grouping::kdtree,
                             Grouping::vsmooth,  Grouping::kmeans, Grouping::balanced,
                             Grouping::automatic};

GroupingParams with(Grouping kind) {
  GroupingParams params;
  params.kind = kind;
  return params;
}

void expect_bijection(const GroupingInput& input, const GroupingResult& result) {
  ASSERT_EQ(result.order_by_segment.size(), input.valid_by_segment.size());
  for (size_t s = 0; s < input.valid_by_segment.size(); ++s) {
    std::vector<int64_t> sorted = result.order_by_segment[s];
    std::sort(sorted.begin(), sorted.end());
    ASSERT_EQ(sorted, input.valid_by_segment[s]) << "segment " << s;
  }
  EXPECT_TRUE(result.f_g >= 0.0 && result.f_g <= 1.0 + 1e-12) << result.f_g;
  EXPECT_EQ(result.state.order_by_segment, result.order_by_segment);
}

TEST(GroupingNames, RoundTripAndUnknown) {
  for (const Grouping kind : kAll) {
    Grouping back = Grouping::identity;
    ASSERT_TRUE(from_string(to_string(kind), &back));
    EXPECT_EQ(back, kind);
  }
  EXPECT_STREQ(to_string(Grouping::automatic), "auto");
  Grouping kept = Grouping::vsmooth;
  EXPECT_FALSE(from_string("automatic", &kept));
  EXPECT_FALSE(from_string("", &kept));
  EXPECT_EQ(kept, Grouping::vsmooth);
}

TEST(GroupingBijection, RandomShapesSegmentsAndMasks) {
  Lcg random(1);
  const int64_t sizes[] = {0, 1, 2, 127, 128, 129, 255, 256, 257, 640, 1000};
  for (int trial = 0; trial < 60; ++trial) {
    std::vector<int64_t> lens;
    const int segments = 1 + static_cast<int>(random.below(4));
    for (int s = 0; s < segments; ++s) lens.push_back(sizes[random.below(std::size(sizes))]);
    const int head_dim = 1 + static_cast<int>(random.below(128));
    const double keep = trial % 3 == 0 ? 1.0 : trial % 3 == 1 ? 0.6 : 0.02;
    const Head head = test::random_head(random, lens, head_dim, keep);
    for (const Grouping kind : kAll) {
      SCOPED_TRACE(std::string(to_string(kind)) + " trial " + std::to_string(trial));
      expect_bijection(head.input(), group_head(head.input(), with(kind), nullptr));
    }
  }
}

TEST(GroupingBijection, EveryLengthAroundOneAndTwoBlocks) {
  Lcg random(2);
  for (const int64_t n : {0, 1, 63, 65, 127, 128, 129, 191, 193, 255, 256, 257, 383, 385}) {
    const Head head = test::random_head(random, {n}, 64, 1.0);
    for (const Grouping kind : kAll)
      expect_bijection(head.input(), group_head(head.input(), with(kind), nullptr));
  }
}

TEST(GroupingBijection, NoSegmentsAtAll) {
  GroupingInput input;
  input.head_dim = 128;
  input.row = [](int64_t, float*) { FAIL() << "no token to read"; };
  for (const Grouping kind : kAll) {
    const GroupingResult result = group_head(input, with(kind), nullptr);
    EXPECT_TRUE(result.order_by_segment.empty());
    EXPECT_EQ(result.f_g, 0.0);
  }
}

// Values that break scales, means or comparisons somewhere.
TEST(GroupingHardInput, AlwaysABijection) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  struct Case {
    const char* name;
    void (*change)(std::vector<float>& v);
  };
  static const float huge = 3e38f, tiny = 1e-38f;
  static const float specials[] = {inf, -inf, nan};
  const Case cases[] = {
      {"zero", [](auto& v) { std::fill(v.begin(), v.end(), 0.0f); }},
      {"constant", [](auto& v) { std::fill(v.begin(), v.end(), 0.75f); }},
      {"one outlier 1e4", [](auto& v) { v[v.size() / 2] = 1e4f; }},
      {"outlier in the first, sampled row", [](auto& v) { v[0] = 1e4f; }},
      {"all 1e4",
       [](auto& v) {
         for (float& x : v) x *= 1e4f;
       }},
      {"huge",
       [](auto& v) {
         for (float& x : v) x = x < 0.5f ? huge : -huge;
       }},
      {"tiny",
       [](auto& v) {
         for (float& x : v) x *= tiny;
       }},
      {"subnormal",
       [](auto& v) {
         for (float& x : v) x = 1e-45f;
       }},
      {"one huge among tiny",
       [](auto& v) {
         for (float& x : v) x *= tiny;
         v.back() = huge;
       }},
      {"not finite",
       [](auto& v) {
         for (size_t i = 0; i < 3; ++i) v[i * 700 + 5] = specials[i];
       }},
      {"all NaN", [](auto& v) { std::fill(v.begin(), v.end(), specials[2]); }},
  };
  Lcg random(3);
  const Head clean = test::random_head(random, {500, 77}, 40, 1.0);
  for (const Case& c : cases) {
    Head head = clean;
    c.change(head.values);
    for (const Grouping kind : kAll) {
      SCOPED_TRACE(std::string(c.name) + ", " + to_string(kind));
      expect_bijection(head.input(), group_head(head.input(), with(kind), nullptr));
    }
  }
}

TEST(GroupingHardInput, NonFiniteTokenOutsideTheSampleHasNoInfluence) {
  Lcg random(4);
  Head head = test::random_head(random, {5000}, 16, 1.0);
  // 2048 of 5000 rows are sampled: floor(i * 5000 / 2048) = 0, 2, 4, 7, ...; row 1 is not.
  for (int k = 0; k < 16; ++k) head.values[16 + k] = 0.0f;
  const auto zero = group_head(head.input(), with(Grouping::kdtree), nullptr);
  head.values[16] = std::numeric_limits<float>::quiet_NaN();
  const auto nan = group_head(head.input(), with(Grouping::kdtree), nullptr);
  EXPECT_EQ(zero.order_by_segment, nan.order_by_segment);
  EXPECT_EQ(zero.f_g, nan.f_g);
}

TEST(GroupingHardInput, RefusesShapesItCannotMean) {
  Lcg random(5);
  const Head head = test::random_head(random, {300}, 64, 1.0);
  for (const int head_dim : {0, -1, 129}) {
    GroupingInput input = head.input();
    input.head_dim = head_dim;
    EXPECT_THROW(group_head(input, with(Grouping::kdtree), nullptr), std::invalid_argument);
  }
  GroupingInput input = head.input();
  input.segments.resize(2);
  EXPECT_THROW(group_head(input, with(Grouping::cubes), nullptr), std::invalid_argument);
  input = head.input();
  input.n_tokens = 299;
  EXPECT_THROW(group_head(input, with(Grouping::cubes), nullptr), std::invalid_argument);
}

TEST(GroupingMask, MaskedTokensAreNeverRead) {
  Lcg random(6);
  const Head head = test::random_head(random, {700, 0, 300}, 32, 0.5);
  std::vector<char> valid(1000, 0);
  GroupingInput input = head.input();
  for (const auto& segment : input.valid_by_segment)
    for (const int64_t token : segment) valid[token] = 1;
  const auto read = input.row;
  input.row = [&](int64_t token, float* out) {
    ASSERT_TRUE(valid.at(token)) << token;
    read(token, out);
  };
  for (const Grouping kind : kAll) {
    const GroupingResult result = group_head(input, with(kind), nullptr);
    group_head(input, with(kind), &result.state);
    f_g_of_order(input, with(kind), result.order_by_segment);
  }
}

TEST(GroupingTies, EqualTokensKeepTheirOrder) {
  Lcg random(7);
  Head head = test::random_head(random, {1000, 130}, 48, 0.9);
  std::fill(head.values.begin(), head.values.end(), -2.5f);
  for (const Grouping kind : kAll) {
    const GroupingResult result = group_head(head.input(), with(kind), nullptr);
    if (kind != Grouping::balanced) {  // an auction moves equal tokens about
      EXPECT_EQ(result.order_by_segment, head.input().valid_by_segment) << to_string(kind);
    }
    EXPECT_EQ(result.f_g, 1.0) << to_string(kind);
  }
}

// Speckled classes of two blocks each can be separated without rest, and constant INT8 tokens make
// every full block's energy exact. (Plain k-means has no pair passes: it may start without a
// class.)
TEST(GroupingQuality, ConstantClustersGiveOne) {
  Lcg random(8);
  Head head = test::random_head(random, {2048}, 128, 1.0);
  std::vector<float> centers(8 * 128);
  for (float& x : centers) x = random.value();
  std::vector<int64_t> label(2048);
  for (size_t i = 0; i < label.size(); ++i) {
    label[i] = static_cast<int64_t>(i % 8);
    std::swap(label[i], label[random.below(i + 1)]);
  }
  for (int64_t i = 0; i < 2048; ++i)
    std::copy_n(centers.begin() + label[i] * 128, 128, head.values.begin() + i * 128);
  EXPECT_LT(group_head(head.input(), with(Grouping::identity), nullptr).f_g, 0.5);
  for (const Grouping kind :
       {Grouping::vsmooth, Grouping::kdtree, Grouping::automatic, Grouping::balanced})
    EXPECT_EQ(group_head(head.input(), with(kind), nullptr).f_g, 1.0) << to_string(kind);
}

TEST(GroupingQuality, FewerDistinctTokensThanClusters) {
  Lcg random(9);
  Head head = test::random_head(random, {2000}, 128, 1.0);
  for (int64_t i = 0; i < 2000; ++i)  // three distinct tokens, sixteen blocks
    std::copy_n(head.values.begin() + i % 3 * 128, 128, head.values.begin() + i * 128);
  for (const Grouping kind : kAll) {
    const GroupingResult result = group_head(head.input(), with(kind), nullptr);
    expect_bijection(head.input(), result);
    // At most two blocks of sixteen straddle two of the values.
    if (kind == Grouping::vsmooth || kind == Grouping::kmeans || kind == Grouping::balanced) {
      EXPECT_GT(result.f_g, 1.0 - 2.0 / 16.0) << to_string(kind);
    }
  }
}

TEST(GroupingQuality, AutoIsVsmooth) {
  Lcg random(10);
  const Head head = test::clustered_head(random, 1500, 64, 16, 0.5f);
  const auto smooth = group_head(head.input(), with(Grouping::vsmooth), nullptr);
  const auto chosen = group_head(head.input(), with(Grouping::automatic), nullptr);
  EXPECT_EQ(chosen.used, Grouping::vsmooth);
  EXPECT_EQ(chosen.order_by_segment, smooth.order_by_segment);
  EXPECT_EQ(chosen.f_g, smooth.f_g);
}

TEST(GroupingDeterminism, SameEveryTimeAndUnderOpenMp) {
  Lcg random(11);
  std::vector<Head> heads;
  for (int h = 0; h < 8; ++h) heads.push_back(test::clustered_head(random, 900, 128, 12, 0.5f));
  for (const Grouping kind : kAll) {
    std::vector<GroupingResult> serial, parallel(heads.size());
    for (const Head& head : heads) serial.push_back(group_head(head.input(), with(kind), nullptr));
#pragma omp parallel for schedule(dynamic, 1) num_threads(4)
    for (size_t h = 0; h < heads.size(); ++h)
      parallel[h] = group_head(heads[h].input(), with(kind), nullptr);
    for (size_t h = 0; h < heads.size(); ++h) {
      EXPECT_EQ(serial[h].order_by_segment, parallel[h].order_by_segment) << to_string(kind);
      EXPECT_EQ(serial[h].f_g, parallel[h].f_g);
      EXPECT_EQ(serial[h].state.serialise(), parallel[h].state.serialise());
    }
  }
}

// Sigma, clipping and everything after it only see x / sigma, and powers of two are exact.
TEST(GroupingDeterminism, PowersOfTwoChangeNothing) {
  Lcg random(12);
  const Head head = test::clustered_head(random, 700, 80, 9, 0.4f);
  for (const Grouping kind : {Grouping::kdtree, Grouping::vsmooth, Grouping::kmeans}) {
    const auto expected = group_head(head.input(), with(kind), nullptr);
    for (const int exponent : {-80, -1, 3, 100}) {
      Head scaled = head;
      for (float& x : scaled.values) x = std::ldexp(x, exponent);
      const auto result = group_head(scaled.input(), with(kind), nullptr);
      EXPECT_EQ(result.order_by_segment, expected.order_by_segment) << exponent;
      EXPECT_EQ(result.f_g, expected.f_g);
    }
  }
}

TEST(GroupingCubes, OrderOfAGridWithEdges) {
  Lcg random(13);
  Head head = test::random_head(random, {5 * 6 * 10, 50}, 8, 1.0);
  GroupingInput input = head.input();
  input.grid = {5, 6, 10};
  const auto result = group_head(input, with(Grouping::cubes), nullptr);
  // First cube: t 0..3, h 0..3, w 0..7 in raster order.
  int64_t at = 0;
  for (int64_t t = 0; t < 4; ++t)
    for (int64_t h = 0; h < 4; ++h)
      for (int64_t w = 0; w < 8; ++w)
        ASSERT_EQ(result.order_by_segment[0][at++], (t * 6 + h) * 10 + w);
  // Then its neighbour in w, then serpentine: the second row of cubes starts at the far w.
  EXPECT_EQ(result.order_by_segment[0][128], 8);
  EXPECT_EQ(result.order_by_segment[0][128 + 32], 4 * 10 + 8);
  // The text segment is no grid.
  EXPECT_EQ(result.order_by_segment[1], input.valid_by_segment[1]);
  for (const auto& grid : {std::array<int64_t, 3>{0, 0, 0}, std::array<int64_t, 3>{5, 6, 11},
                           std::array<int64_t, 3>{-5, -6, 10}}) {
    input.grid = grid;
    EXPECT_EQ(group_head(input, with(Grouping::cubes), nullptr).order_by_segment,
              input.valid_by_segment);
  }
}

TEST(GroupingFg, OfAnOrderEqualsThatOfTheResult) {
  Lcg random(14);
  const Head head = test::random_head(random, {700, 90, 260}, 100, 0.8);
  for (const Grouping kind : kAll) {
    auto result = group_head(head.input(), with(kind), nullptr);
    EXPECT_EQ(f_g_of_order(head.input(), with(kind), result.order_by_segment), result.f_g);
    result.order_by_segment[0][0] = result.order_by_segment[0][1];
    EXPECT_THROW(f_g_of_order(head.input(), with(kind), result.order_by_segment),
                 std::invalid_argument);
  }
}

// 131 blocks and 3: every second of the first segment is watched, the tail among them, and the
// whole second one. The same number comes from these tokens alone: values of +-1 have one sigma.
TEST(GroupingFg, WatchedBlocksAreEverySecondOf131) {
  static_assert(watch_stride(127) == 1 && watch_stride(128) == 2 && watch_stride(191) == 2 &&
                watch_stride(192) == 3 && watch_stride(591) == 9);
  Lcg random(15);
  Head head = test::random_head(random, {130 * 128 + 50, 300}, 6, 1.0);
  for (float& x : head.values) x = random.below(3) == 0 ? -1.0f : 1.0f;
  const auto all = shares_of_order(head.input(), {}, head.valid);
  Head watched = head;
  watched.valid[0].clear();
  for (const int64_t token : head.valid[0])
    if (token / 128 % 2 == 0) watched.valid[0].push_back(token);
  EXPECT_EQ(all.f_watched, f_g_of_order(watched.input(), {}, watched.valid));
  EXPECT_NE(all.f_watched, all.f_g);
}

TEST(GroupingFg, DecayThreshold) {
  EXPECT_TRUE(decayed(0.35, 0.4));
  EXPECT_FALSE(decayed(0.37, 0.4));
  EXPECT_TRUE(decayed(0.37, 0.4, 0.95));
  EXPECT_FALSE(decayed(0.0, 0.0));
}

}  // namespace
}  // namespace vca::spec
