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
#include "spec/grouping/kmeans.hpp"
#include "spec/grouping/objective.hpp"
#include "spec/grouping/pair_exchange.hpp"
#include "spec/grouping/vsmooth.hpp"
#include "spec/grouping_inputs.hpp"

namespace vca::spec::grouping {
namespace {

using test::Lcg;
using Row = std::vector<int64_t>;

Row row_of(const Tokens& tokens, int32_t i) {
  return Row(tokens.row(i), tokens.row(i) + tokens.d_pad);
}
int64_t naive_dot(const Row& a, const Row& b) {
  int64_t sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}
Row minus(const Row& a, const Row& b) {
  Row out(a.size());
  for (size_t k = 0; k < a.size(); ++k) out[k] = a[k] - b[k];
  return out;
}
Row sum_of(const Tokens& tokens, const std::vector<int32_t>& rows) {
  Row sum(tokens.d_pad, 0);
  for (const int32_t r : rows)
    for (int k = 0; k < tokens.d_pad; ++k) sum[k] += tokens.row(r)[k];
  return sum;
}
// Halves up, as a floor of the shifted quotient.
int64_t naive_round(int64_t num, int64_t den) {
  return static_cast<int64_t>(std::floor((2.0 * static_cast<double>(num) + den) / (2.0 * den)));
}
Row mean_of(const Tokens& tokens, const std::vector<int32_t>& rows) {
  Row mean = sum_of(tokens, rows);
  for (int64_t& x : mean) x = naive_round(x, static_cast<int64_t>(rows.size()));
  return mean;
}

Tokens clustered(Lcg& random, int64_t n, int head_dim, int clusters, float noise) {
  return quantise_tokens(test::clustered_head(random, n, head_dim, clusters, noise).input(), {});
}

Order iota(const Tokens& tokens) {
  Order order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

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

std::vector<int32_t> naive_labels(const Tokens& tokens, const std::vector<int32_t>& rows,
                                  const std::vector<Row>& centroids) {
  std::vector<int32_t> labels;
  for (const int32_t r : rows) {
    std::vector<std::pair<int64_t, int32_t>> all;
    for (size_t c = 0; c < centroids.size(); ++c) {
      const Row diff = minus(row_of(tokens, r), centroids[c]);
      all.emplace_back(naive_dot(diff, diff), static_cast<int32_t>(c));
    }
    labels.push_back(std::min_element(all.begin(), all.end())->second);
  }
  return labels;
}

// Labels of the last assignment; centroids after the last update.
std::pair<std::vector<int32_t>, std::vector<Row>> naive_lloyd(const Tokens& tokens,
                                                              const std::vector<int32_t>& rows,
                                                              int64_t k, int iterations) {
  std::vector<Row> centroids;
  for (int64_t c = 0; c < k; ++c)
    centroids.push_back(row_of(tokens, rows[c * static_cast<int64_t>(rows.size()) / k]));
  std::vector<int32_t> labels;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    labels = naive_labels(tokens, rows, centroids);
    for (int64_t c = 0; c < k; ++c) {
      std::vector<int32_t> members;
      for (size_t i = 0; i < rows.size(); ++i)
        if (labels[i] == c) members.push_back(rows[i]);
      if (!members.empty()) centroids[c] = mean_of(tokens, members);
    }
  }
  return {labels, centroids};
}

TEST(GroupingKmeans, EqualsNaive) {
  Lcg random(5);
  for (const int64_t n : {129, 700, 1300}) {
    const Tokens tokens = clustered(random, n, 96, 6, 0.7f);
    const auto labels = naive_lloyd(tokens, iota(tokens), (n + 127) / 128, 5).first;
    Order expected = iota(tokens);
    std::stable_sort(expected.begin(), expected.end(),
                     [&](int32_t a, int32_t b) { return labels[a] < labels[b]; });
    EXPECT_EQ(kmeans_order(tokens, {}), expected) << n;
  }
}

TEST(GroupingVsmooth, EqualsNaive) {
  Lcg random(6);
  for (const int64_t n : {129, 900, 2000}) {
    const Tokens tokens = clustered(random, n, 128, 11, 0.8f);
    GroupingParams params;
    params.vsmooth_sample_min = 300;
    const Order rows = iota(tokens);
    const int64_t m = std::min<int64_t>(n, 300), k = (n + 127) / 128;
    std::vector<int32_t> sample;
    for (int64_t i = 0; i < m; ++i) sample.push_back(static_cast<int32_t>(i * n / m));
    auto centroids = naive_lloyd(tokens, sample, k, params.vsmooth_iterations).second;
    const auto labels = naive_labels(tokens, rows, centroids);
    std::vector<std::vector<int32_t>> members(k);
    for (size_t i = 0; i < labels.size(); ++i) members[labels[i]].push_back(rows[i]);

    std::set<int32_t> open;
    int32_t at = -1;
    int64_t longest = -1;
    for (int32_t c = 0; c < k; ++c) {
      if (members[c].empty()) continue;
      open.insert(c);
      centroids[c] = mean_of(tokens, members[c]);
      if (naive_dot(centroids[c], centroids[c]) > longest) {
        longest = naive_dot(centroids[c], centroids[c]);
        at = c;
      }
    }
    std::vector<int32_t> chain;
    while (at >= 0) {
      chain.push_back(at);
      open.erase(at);
      std::tuple<int64_t, int32_t> best{INT64_MAX, -1};
      for (const int32_t c : open) {
        const Row diff = minus(centroids[c], centroids[at]);
        best = std::min(best, {naive_dot(diff, diff), c});
      }
      at = std::get<1>(best);
    }
    Order expected;
    for (size_t p = 0; p < chain.size(); ++p) {
      const Row axis = minus(centroids[chain[std::min(p + 1, chain.size() - 1)]],
                             centroids[chain[p == 0 ? 0 : p - 1]]);
      auto inside = members[chain[p]];
      std::stable_sort(inside.begin(), inside.end(), [&](int32_t a, int32_t b) {
        return naive_dot(row_of(tokens, a), axis) < naive_dot(row_of(tokens, b), axis);
      });
      expected.insert(expected.end(), inside.begin(), inside.end());
    }
    sort_inside_blocks(tokens, &expected);
    EXPECT_EQ(vsmooth_order(tokens, params).order, expected) << n;
  }
}

TEST(GroupingVsmooth, TwoLevelsAreABijectionAndNearlyAsGood) {
  Lcg random(7);
  const Tokens tokens = clustered(random, 6000, 128, 30, 0.5f);
  GroupingParams flat, two;
  two.vsmooth_flat_clusters = 20;  // 47 clusters: 7 coarse ones
  const Order one_level = vsmooth_order(tokens, flat).order;
  Order order = vsmooth_order(tokens, two).order;
  EXPECT_GT(removed_energy(tokens, order), 0.9 * removed_energy(tokens, one_level));
  EXPECT_NE(order, one_level);
  std::sort(order.begin(), order.end());
  EXPECT_EQ(order, iota(tokens));
}

// Block numbers of one pass, from the whole table of distances.
std::vector<std::pair<int32_t, int32_t>> naive_match(const std::vector<Row>& means, int rounds,
                                                     const std::vector<std::set<int32_t>>& recent) {
  std::set<int32_t> free;
  for (size_t b = 0; b < means.size(); ++b) free.insert(static_cast<int32_t>(b));
  std::vector<std::pair<int32_t, int32_t>> pairs;
  for (int round = 0; round < rounds; ++round) {
    std::vector<int32_t> wish(means.size(), -1);
    for (const int32_t a : free) {
      std::pair<int64_t, int32_t> best{INT64_MAX, -1};
      for (const int32_t b : free) {
        if (a == b || recent[a].count(b) != 0) continue;
        const Row diff = minus(means[a], means[b]);
        best = std::min(best, {naive_dot(diff, diff), b});
      }
      wish[a] = best.second;
    }
    for (size_t a = 0; a < wish.size(); ++a)
      if (wish[a] > static_cast<int32_t>(a) && wish[wish[a]] == static_cast<int32_t>(a)) {
        pairs.emplace_back(a, wish[a]);
        free.erase(static_cast<int32_t>(a));
        free.erase(wish[a]);
      }
  }
  return pairs;
}

TEST(GroupingPairExchange, EqualsNaive) {
  Lcg random(8);
  const Tokens tokens = clustered(random, 12 * 128 + 50, 128, 9, 0.7f);
  GroupingParams params;
  params.pair_memory = 3;
  Order order = iota(tokens), expected = order;
  std::vector<std::vector<int32_t>> tried(12, std::vector<int32_t>(3, -1));
  for (int pass = 0; pass < 7; ++pass) {
    std::vector<std::vector<int32_t>> blocks(12);
    std::vector<Row> means;
    std::vector<std::set<int32_t>> recent(12);
    for (int b = 0; b < 12; ++b) {
      blocks[b].assign(expected.begin() + b * 128, expected.begin() + (b + 1) * 128);
      means.push_back(mean_of(tokens, blocks[b]));
      recent[b].insert(tried[b].begin(), tried[b].end());
    }
    for (const auto& [a, b] : naive_match(means, params.pair_rounds, recent)) {
      tried[a][pass % 3] = b;
      tried[b][pass % 3] = a;
      std::vector<int32_t> low = blocks[a], high = blocks[b];
      for (int inner = 0; inner < params.pair_inner; ++inner) {
        const Row axis = minus(sum_of(tokens, high), sum_of(tokens, low));
        std::vector<std::pair<int64_t, int32_t>> keys;
        for (const auto* half : {&low, &high})
          for (const int32_t r : *half) keys.emplace_back(naive_dot(row_of(tokens, r), axis), r);
        std::sort(keys.begin(), keys.end());
        for (int i = 0; i < 128; ++i) {
          low[i] = keys[i].second;
          high[i] = keys[i + 128].second;
        }
      }
      const auto energy = [&](const std::vector<int32_t>& rows) {
        const Row sum = sum_of(tokens, rows);
        return naive_dot(sum, sum);
      };
      if (energy(low) + energy(high) > energy(blocks[a]) + energy(blocks[b])) {
        blocks[a] = low;
        blocks[b] = high;
      }
    }
    for (int b = 0; b < 12; ++b) {
      std::sort(blocks[b].begin(), blocks[b].end());
      std::copy(blocks[b].begin(), blocks[b].end(), expected.begin() + b * 128);
    }
    Order now = order;
    pair_exchange(tokens, params, pass + 1, &now);
    ASSERT_EQ(now, expected) << "after pass " << pass;
  }
}

TEST(GroupingPairExchange, NeverLowersTheSumOfSquares) {
  Lcg random(9);
  for (int trial = 0; trial < 10; ++trial) {
    const Tokens tokens = clustered(random, 128 * (2 + trial) + 17 * trial, 128, 3 + 2 * trial,
                                    0.2f + 0.3f * static_cast<float>(trial));
    Order order = iota(tokens);
    for (int32_t i = tokens.size() - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
    double f = removed_energy(tokens, order);
    for (int pass = 0; pass < 12; ++pass) {
      const int64_t kept = pair_exchange(tokens, {}, 1, &order);
      const double now = removed_energy(tokens, order);
      // Full blocks are exact integers: no tolerance. The tail does not take part.
      ASSERT_GE(now, f);
      ASSERT_EQ(now > f, kept > 0);
      f = now;
    }
    std::sort(order.begin(), order.end());
    ASSERT_EQ(order, iota(tokens));
  }
}

TEST(GroupingPairExchange, LeavesTheTailAndOtherSegmentsAlone) {
  Lcg random(10);
  const auto head = test::random_head(random, {300, 200, 256}, 64, 1.0);
  const Tokens tokens = quantise_tokens(head.input(), {});
  Order order = iota(tokens);
  EXPECT_GT(pair_exchange(tokens, {}, 8, &order), 0);
  const Order before = iota(tokens);
  EXPECT_TRUE(std::equal(order.begin() + 256, order.begin() + 500, before.begin() + 256));
  EXPECT_FALSE(std::equal(order.begin(), order.begin() + 256, before.begin()));
  EXPECT_TRUE(std::is_permutation(order.begin() + 500, order.end(), before.begin() + 500));
}

}  // namespace
}  // namespace vca::spec::grouping
