// SPDX-License-Identifier: Apache-2.0
//
// Every step of the grouping against a naive form written from the specification: full sorts
// instead of selections, 64-bit sums everywhere, no early exits. A backend that differs from the
// library can be compared with these by eye.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "spec/grouping/axes.hpp"
#include "spec/grouping/kdtree.hpp"
#include "spec/grouping/objective.hpp"
#include "spec/grouping_naive.hpp"

namespace vca::spec::grouping {
namespace {

TEST(GroupingTokens, SigmaClippingAndRounding) {
  // 256 tokens of +1 and -1: sigma = 1, so 1 becomes RN(127/3) = 42 and 100 is clipped.
  test::Head head;
  head.head_dim = 4;
  head.valid.emplace_back();
  for (int i = 0; i < 256; ++i) {
    head.valid[0].push_back(i);
    for (int k = 0; k < 4; ++k) head.values.push_back((i + k) % 2 == 0 ? 1.0f : -1.0f);
  }
  Tokens tokens = quantise_tokens(head.input(), {});
  EXPECT_EQ(tokens.d_pad, 64);
  for (int32_t i = 0; i < tokens.size(); ++i)
    for (int k = 0; k < 64; ++k)
      EXPECT_EQ(tokens.row(i)[k], k >= 4 ? 0 : (i + k) % 2 == 0 ? 42 : -42);
  GroupingParams params;
  params.sigma_sample_rows = 128;  // even rows only: row 1 is outside the sample
  head.values[4] = 100.0f;
  head.values[5] = -100.0f;
  head.values[6] = 2.5f / 42.0f;
  tokens = quantise_tokens(head.input(), params);
  EXPECT_EQ(tokens.row(1)[0], 127);
  EXPECT_EQ(tokens.row(1)[1], -127);
  EXPECT_EQ(tokens.row(1)[2], 3);  // 2.5 * (127/3) / 42 = 2.52
}

TEST(GroupingTokens, RoundDivIsHalvesUp) {
  for (int64_t den = 1; den <= 9; ++den)
    for (int64_t num = -40; num <= 40; ++num)
      ASSERT_EQ(round_div(num, den), naive_round(num, den)) << num << "/" << den;
}

TEST(GroupingTokens, SortWordOrdersByKeyThenToken) {
  const int32_t keys[] = {INT32_MIN, -5, -1, 0, 1, 7, INT32_MAX};
  uint64_t last = 0;
  for (const int32_t key : keys)
    for (const int32_t token : {0, 1, INT32_MAX}) {
      const uint64_t word = sort_word(key, token);
      EXPECT_TRUE(word > last || (key == INT32_MIN && token == 0));
      EXPECT_EQ(sort_word_token(word), token);
      last = word;
    }
}

TEST(GroupingObjective, EqualsNaive) {
  Lcg random(1);
  const auto head = test::random_head(random, {300, 128, 40, 0, 257}, 100, 1.0);
  const Tokens tokens = quantise_tokens(head.input(), {});
  const Order order = iota(tokens);
  int64_t energy = 0, full = 0;
  double tails = 0.0;
  for (const Range& segment : tokens.segments)
    for (int32_t at = 0; at < segment.len; at += 128) {
      const int32_t n = std::min(128, segment.len - at);
      std::vector<int32_t> rows(n);
      std::iota(rows.begin(), rows.end(), segment.begin + at);
      for (const int32_t r : rows) energy += naive_dot(row_of(tokens, r), row_of(tokens, r));
      const Row sum = sum_of(tokens, rows);
      if (n == 128)
        full += naive_dot(sum, sum);
      else
        tails += static_cast<double>(naive_dot(sum, sum)) / n;
    }
  const double f = (static_cast<double>(full) / 128 + tails) / static_cast<double>(energy);
  EXPECT_EQ(removed_energy(tokens, order), f);
}

TEST(GroupingAxes, CovarianceEqualsNaive) {
  Lcg random(2);
  const Tokens tokens = clustered(random, 5000, 70, 5, 0.5f);
  for (const int64_t sample : {1, 100, 2048, 3000, 9999}) {
    const int64_t m = std::min<int64_t>(sample, tokens.size());
    Row sum(128, 0);
    std::vector<int64_t> products(128 * 128, 0);
    for (int64_t i = 0; i < m; ++i) {
      const Row x = row_of(tokens, static_cast<int32_t>(i * tokens.size() / m));
      for (int a = 0; a < 128; ++a) {
        sum[a] += x[a];
        for (int b = 0; b < 128; ++b) products[a * 128 + b] += x[a] * x[b];
      }
    }
    for (int a = 0; a < 128; ++a)
      for (int b = 0; b < 128; ++b)
        products[a * 128 + b] = m * products[a * 128 + b] - sum[a] * sum[b];
    EXPECT_EQ(sample_covariance(tokens, sample), products) << sample;
  }
}

TEST(GroupingAxes, FindTheDirectionsOfTheData) {
  // Eight orthogonal directions of falling variance, spread over all channels so that nothing is
  // clipped; each is half in and half outside the span of the start vectors.
  const auto sign = [](int row, int k) {
    return std::popcount(unsigned(row & k)) % 2 ? -1.0 : 1.0;
  };
  const auto direction = [&](int a, int k) {
    return (sign(a + 1, k) + sign(a + 20, k)) / std::sqrt(2.0 * 64.0);
  };
  test::Head head;
  head.head_dim = 64;
  head.valid.emplace_back();
  Lcg random(3);
  for (int i = 0; i < 2000; ++i) {
    head.valid[0].push_back(i);
    std::vector<double> x(64, 0.0);
    for (int a = 0; a < 8; ++a) {
      const double z = random.value() * std::pow(0.6, a);
      for (int k = 0; k < 64; ++k) x[k] += z * direction(a, k);
    }
    head.values.insert(head.values.end(), x.begin(), x.end());
  }
  const auto axes = principal_axes(quantise_tokens(head.input(), {}), {});
  for (int a = 0; a < kAxes; ++a) {
    double along = 0.0, norm2 = 0.0;
    for (int k = 0; k < 64; ++k) {
      along += axes[a * 64 + k] * direction(a, k);
      norm2 += axes[a * 64 + k] * axes[a * 64 + k];
    }
    // 8 iterations leave (0.36)^8 = 3e-4 of a neighbour; 2000 samples turn neighbours by about
    // 1/sqrt(2000) * 0.6/(1 - 0.36) = 0.02; INT8 rounding of values and axes adds less than 0.05
    // at the weakest axis, whose values are 36 times smaller than the first one's.
    EXPECT_GT(std::abs(along) / std::sqrt(norm2), 0.99) << a;
  }
}

TEST(GroupingAxes, NoVarianceGivesUnitVectors) {
  Tokens tokens;
  tokens.values.assign(64 * 300, 7);
  tokens.original.resize(300);
  const auto axes = principal_axes(tokens, {});
  for (int a = 0; a < kAxes; ++a)
    for (int k = 0; k < 64; ++k) EXPECT_EQ(axes[a * 64 + k], k == a ? 127 : 0);
}

void naive_tree(const Tokens& tokens, const std::vector<Row>& axes, std::vector<int32_t> rows,
                std::vector<std::vector<int32_t>>* leaves) {
  const int64_t n = static_cast<int64_t>(rows.size());
  if (n <= 128) {
    std::sort(rows.begin(), rows.end());
    leaves->push_back(rows);
    return;
  }
  int best = 0;
  int64_t best_variance = -1;
  for (size_t a = 0; a < axes.size(); ++a) {
    int64_t sum = 0, variance = 0;
    for (const int32_t r : rows) sum += naive_dot(row_of(tokens, r), axes[a]);
    const auto mean = static_cast<int64_t>(std::floor(static_cast<double>(sum) / n));
    for (const int32_t r : rows) {
      const int64_t diff = naive_dot(row_of(tokens, r), axes[a]) - mean;
      variance += diff * diff;
    }
    if (variance > best_variance) {
      best_variance = variance;
      best = static_cast<int>(a);
    }
  }
  std::sort(rows.begin(), rows.end(), [&](int32_t a, int32_t b) {
    return std::pair(naive_dot(row_of(tokens, a), axes[best]), a) <
           std::pair(naive_dot(row_of(tokens, b), axes[best]), b);
  });
  const int64_t blocks = (n + 127) / 128, left = (blocks + 1) / 2 * 128;
  naive_tree(tokens, axes, {rows.begin(), rows.begin() + left}, leaves);
  naive_tree(tokens, axes, {rows.begin() + left, rows.end()}, leaves);
}

TEST(GroupingKdtree, EqualsNaive) {
  Lcg random(4);
  for (const int64_t n : {129, 256, 700, 1500}) {
    const Tokens tokens = clustered(random, n, n % 2 == 0 ? 128 : 50, 7, 0.6f);
    const auto flat = principal_axes(tokens, {});
    std::vector<Row> axes;
    for (int a = 0; a < kAxes; ++a)
      axes.emplace_back(flat.begin() + a * tokens.d_pad, flat.begin() + (a + 1) * tokens.d_pad);
    std::vector<std::vector<int32_t>> leaves;
    naive_tree(tokens, axes, iota(tokens), &leaves);
    Order expected;
    for (const auto& leaf : leaves) expected.insert(expected.end(), leaf.begin(), leaf.end());
    EXPECT_EQ(kdtree_order(tokens, {}), expected) << n;
  }
}

}  // namespace
}  // namespace vca::spec::grouping
