// SPDX-License-Identifier: Apache-2.0
//
// k-means, chain and pair exchange against a naive form written from the specification: full sorts
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

#include "spec/grouping/kmeans.hpp"
#include "spec/grouping/objective.hpp"
#include "spec/grouping/pair_exchange.hpp"
#include "spec/grouping/vsmooth.hpp"
#include "spec/grouping_naive.hpp"

namespace vca::spec::grouping {
namespace {

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
  for (const int64_t n : {129, 900, 2000, 3000}) {
    const Tokens tokens = clustered(random, n, 128, 11, 0.8f);
    GroupingParams params;
    params.vsmooth_sample_min = 300;
    const Order rows = iota(tokens);
    // 300 rows or an eighth, and fewer iterations where an eighth is more.
    const int64_t m = std::min<int64_t>(n, std::max<int64_t>(300, (n + 7) / 8)),
                  k = (n + 127) / 128;
    const int iterations = m > 300 ? 3 : 5;
    std::vector<int32_t> sample;
    for (int64_t i = 0; i < m; ++i) sample.push_back(static_cast<int32_t>(i * n / m));
    const auto centroids = naive_lloyd(tokens, sample, k, iterations).second;
    const auto labels = naive_labels(tokens, rows, centroids);
    std::vector<std::vector<int32_t>> members(k);
    for (size_t i = 0; i < labels.size(); ++i) members[labels[i]].push_back(rows[i]);

    std::set<int32_t> open;
    int32_t at = -1;
    int64_t longest = -1;
    for (int32_t c = 0; c < k; ++c) {
      open.insert(c);
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
    EXPECT_EQ(chain.size(), static_cast<size_t>(k));
    Order expected;
    for (const int32_t c : chain)
      expected.insert(expected.end(), members[c].begin(), members[c].end());
    sort_inside_blocks(tokens, &expected);
    EXPECT_EQ(vsmooth_order(tokens, params), expected) << n;
  }
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
