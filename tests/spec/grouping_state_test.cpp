// SPDX-License-Identifier: Apache-2.0
//
// Warm starts and the bytes of a head's state.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "spec/grouping/grouping.hpp"
#include "spec/grouping_inputs.hpp"

namespace vca::spec {
namespace {

using test::Head;
using test::Lcg;

GroupingParams with(Grouping kind) {
  GroupingParams params;
  params.kind = kind;
  return params;
}

void expect_equal(const HeadState& a, const HeadState& b) {
  EXPECT_EQ(a.used, b.used);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.f_watched, b.f_watched);
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.order_by_segment, b.order_by_segment);
}

// The next step: the same signal, other noise.
Head drifted(const Head& head, Lcg& random, float amount) {
  Head out = head;
  for (float& x : out.values) x += amount * random.value();
  return out;
}

TEST(GroupingWarm, NeverBelowTheOldOrder) {
  Lcg random(1);
  for (const Grouping kind : {Grouping::kdtree, Grouping::vsmooth, Grouping::automatic}) {
    for (const float amount : {0.0f, 0.1f, 0.5f, 3.0f}) {
      const Head head = test::clustered_head(random, 2000, 128, 14, 0.4f);
      const auto first = group_head(head.input(), with(kind), nullptr);
      const Head next = drifted(head, random, amount);
      const double kept = f_g_of_order(next.input(), with(kind), first.order_by_segment);
      const auto second = group_head(next.input(), with(kind), &first.state);
      EXPECT_EQ(second.used, first.used);
      // Under noise of six times the spread of the clusters the start is cold, and nothing is to be
      // won or lost.
      EXPECT_GE(second.f_g, amount < 1.0f ? kept : 0.9 * kept);
      auto sorted = second.order_by_segment[0];
      std::sort(sorted.begin(), sorted.end());
      EXPECT_EQ(sorted, next.valid[0]);
    }
  }
}

TEST(GroupingWarm, RecoversWhenTheTokensAreNew) {
  Lcg random(2);
  for (const Grouping kind : {Grouping::kdtree, Grouping::vsmooth}) {
    const Head head = test::clustered_head(random, 3000, 64, 20, 0.3f);
    Head other = head;  // the same clusters, every token in another one
    const int64_t n = 3000;
    for (int64_t i = 0; i < n; ++i)
      std::copy_n(head.values.begin() + (i * 1357 + 11) % n * 64, 64,
                  other.values.begin() + i * 64);
    const auto old = group_head(head.input(), with(kind), nullptr);
    const double kept = f_g_of_order(other.input(), with(kind), old.order_by_segment);
    const auto warm = group_head(other.input(), with(kind), &old.state);
    const auto cold = group_head(other.input(), with(kind), nullptr);
    EXPECT_LT(kept, 0.3 * old.f_g);                          // nothing is left of the old order,
    EXPECT_GT(warm.f_g, 0.9 * cold.f_g) << to_string(kind);  // so the fresh start wins
  }
}

TEST(GroupingWarm, StateThatDoesNotFitMeansAColdStart) {
  Lcg random(3);
  const Head head = test::clustered_head(random, 1000, 64, 9, 0.4f);
  const auto cold = group_head(head.input(), with(Grouping::kdtree), nullptr);
  std::vector<HeadState> misfits(8, cold.state);
  misfits[0].head_dim = 63;
  misfits[1].order_by_segment[0].pop_back();
  misfits[2].order_by_segment[0][5] = misfits[2].order_by_segment[0][6];
  misfits[3].order_by_segment[0][5] = 1000;
  misfits[4].order_by_segment[0][5] = -1;
  misfits[5].order_by_segment.emplace_back();
  misfits[6].used = Grouping::vsmooth;
  misfits[7] = HeadState{};
  for (const HeadState& state : misfits)
    EXPECT_EQ(group_head(head.input(), with(Grouping::kdtree), &state).order_by_segment,
              cold.order_by_segment);
}

// warm_share of what the order removed when it was made is the border.
TEST(GroupingWarm, AnOrderThatLostAQuarterIsGivenUp) {
  Lcg random(4);
  const Head head = test::clustered_head(random, 1500, 64, 9, 0.4f);
  const auto cold = group_head(head.input(), with(Grouping::vsmooth), nullptr);
  HeadState state = cold.state;
  const double now = f_g_of_order(head.input(), with(Grouping::vsmooth), state.order_by_segment);
  std::swap(state.order_by_segment[0][0], state.order_by_segment[0][1200]);
  const double swapped =
      f_g_of_order(head.input(), with(Grouping::vsmooth), state.order_by_segment);
  ASSERT_LT(swapped, now);
  state.f_watched = swapped / 0.75 * (1.0 - 1e-12);
  const auto kept = group_head(head.input(), with(Grouping::vsmooth), &state);
  state.f_watched = swapped / 0.75 * (1.0 + 1e-12);
  const auto given_up = group_head(head.input(), with(Grouping::vsmooth), &state);
  EXPECT_EQ(given_up.order_by_segment, cold.order_by_segment);
  EXPECT_NE(kept.order_by_segment, cold.order_by_segment);
}

// A cold start that a warm one follows makes four passes, another one eight.
TEST(GroupingWarm, AFollowedColdStartLeavesPassesToTheNext) {
  Lcg random(6);
  const Head head = test::clustered_head(random, 4000, 64, 40, 0.6f);
  for (const Grouping kind : {Grouping::kdtree, Grouping::vsmooth}) {
    GroupingParams followed = with(kind), four = with(kind);
    followed.followed = true;
    four.pair_passes = 4;
    const auto first = group_head(head.input(), followed, nullptr);
    EXPECT_EQ(first.order_by_segment, group_head(head.input(), four, nullptr).order_by_segment);
    const auto alone = group_head(head.input(), with(kind), nullptr);
    EXPECT_LT(first.f_g, alone.f_g);
    EXPECT_GT(group_head(head.input(), followed, &first.state).f_g, first.f_g);
  }
}

TEST(GroupingWarm, MaskChangeMeansAColdStart) {
  Lcg random(5);
  Head head = test::clustered_head(random, 1000, 64, 9, 0.4f);
  const auto old = group_head(head.input(), with(Grouping::automatic), nullptr);
  head.valid[0].erase(head.valid[0].begin() + 400);
  const auto warm = group_head(head.input(), with(Grouping::automatic), &old.state);
  const auto cold = group_head(head.input(), with(Grouping::automatic), nullptr);
  EXPECT_EQ(warm.order_by_segment, cold.order_by_segment);
}

TEST(GroupingWarm, KindsWithoutAStateIgnoreIt) {
  Lcg random(6);
  const Head head = test::clustered_head(random, 600, 64, 5, 0.4f);
  for (const Grouping kind : {Grouping::identity, Grouping::cubes, Grouping::kmeans}) {
    const auto cold = group_head(head.input(), with(kind), nullptr);
    EXPECT_EQ(group_head(head.input(), with(kind), &cold.state).order_by_segment,
              cold.order_by_segment);
  }
}

TEST(GroupingState, RoundTrip) {
  Lcg random(7);
  const Head head = test::random_head(random, {700, 0, 129}, 100, 0.9);
  for (const Grouping kind : {Grouping::identity, Grouping::kdtree, Grouping::vsmooth}) {
    HeadState state = group_head(head.input(), with(kind), nullptr).state;
    state.step = 17;
    HeadState back;
    ASSERT_TRUE(HeadState::deserialise(state.serialise(), &back));
    expect_equal(state, back);
  }
  HeadState wide;  // token numbers beyond 2^32, negative step
  wide.order_by_segment = {{5, int64_t{1} << 40}};
  wide.step = -1;
  HeadState back;
  ASSERT_TRUE(HeadState::deserialise(wide.serialise(), &back));
  expect_equal(wide, back);
}

TEST(GroupingState, EveryDamagedByteIsRefused) {
  Lcg random(8);
  const Head head = test::random_head(random, {300}, 8, 1.0);
  const auto blob = group_head(head.input(), with(Grouping::vsmooth), nullptr).state.serialise();
  HeadState out;
  out.step = 99;
  for (size_t i = 0; i < blob.size(); ++i) {
    auto damaged = blob;
    damaged[i] ^= static_cast<uint8_t>(1u << (i % 8));
    ASSERT_FALSE(HeadState::deserialise(damaged, &out)) << i;
  }
  for (size_t n = 0; n < blob.size(); ++n)
    ASSERT_FALSE(HeadState::deserialise(std::span(blob).first(n), &out)) << n;
  auto longer = blob;
  longer.push_back(0);
  EXPECT_FALSE(HeadState::deserialise(longer, &out));
  EXPECT_EQ(out.step, 99);
  EXPECT_TRUE(HeadState::deserialise(blob, &out));
}

// Bytes of the blob with a right checksum, so that only the field itself can be refused.
std::vector<uint8_t> resealed(std::vector<uint8_t> blob) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i + 8 < blob.size(); ++i) hash = (hash ^ blob[i]) * 0x100000001b3u;
  for (int i = 0; i < 8; ++i) blob[blob.size() - 8 + i] = static_cast<uint8_t>(hash >> (8 * i));
  return blob;
}

TEST(GroupingState, WrongFieldsAreRefusedEvenWithARightChecksum) {
  HeadState state;
  state.order_by_segment = {{1, 0, 2}};
  const auto blob = state.serialise();
  EXPECT_EQ(resealed(blob), blob);
  struct Change {
    size_t at;
    uint8_t value;
  };
  // magic, version, kind, head_dim 128 is the most, token width, counts too large for the blob
  for (const Change c : {Change{0, 'X'}, Change{4, 1}, Change{8, 7}, Change{12, 129}, Change{32, 5},
                         Change{36, 9}, Change{43, 255}, Change{44, 200}}) {
    auto changed = blob;
    changed[c.at] = c.value;
    HeadState out;
    EXPECT_FALSE(HeadState::deserialise(resealed(changed), &out)) << c.at;
  }
}

TEST(GroupingState, LittleEndianLayout) {
  HeadState state;
  state.used = Grouping::kdtree;
  state.head_dim = 128;
  state.step = 3;
  state.order_by_segment = {{258}};
  const auto blob = state.serialise();
  const std::vector<uint8_t> head(blob.begin(), blob.begin() + 16);
  EXPECT_EQ(head, (std::vector<uint8_t>{'V', 'C', 'A', 'G', 3, 0, 0, 0, 2, 0, 0, 0, 128, 0, 0, 0}));
  EXPECT_EQ(blob[24], 3);
  EXPECT_EQ(blob[36 + 8 + 8], 2);  // 258 = 0x0102 after width, segment count, length
  EXPECT_EQ(blob[36 + 8 + 8 + 1], 1);
}

}  // namespace
}  // namespace vca::spec
