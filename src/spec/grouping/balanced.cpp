// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/balanced.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "spec/grouping/kmeans.hpp"
#include "spec/grouping/objective.hpp"

namespace vca::spec::grouping {
namespace {

// A token's gain from a cluster is 2 x.c - ||c||^2. Tokens bid for places; a full cluster's price
// is its lowest accepted bid. With bid step `epsilon` the total gain is within n * epsilon of the
// best assignment (Bertsekas' auction for the transportation problem).
class Auction {
 public:
  Auction(const Tokens& tokens, std::span<const int32_t> rows, const Centroids& centroids)
      : n_(static_cast<int32_t>(rows.size())),
        k_(centroids.count()),
        gain_(static_cast<size_t>(n_) * k_),
        place_(k_) {
    for (int32_t c = 0; c < k_; ++c) {
      const int16_t* center = centroids.row(c);
      const int32_t norm = dot(center, center, tokens.d_pad);
      for (int32_t i = 0; i < n_; ++i)
        gain_[static_cast<size_t>(i) * k_ + c] =
            2 * dot(tokens.row(rows[i]), center, tokens.d_pad) - norm;
    }
  }

  std::vector<int32_t> run(int64_t epsilon) {
    std::vector<int32_t> owner(n_, -1);
    std::vector<int64_t> price(k_, 0);
    std::deque<int32_t> waiting(n_);
    std::iota(waiting.begin(), waiting.end(), 0);
    while (!waiting.empty()) {
      const int32_t i = waiting.front();
      waiting.pop_front();
      const int32_t* gain = gain_.data() + static_cast<size_t>(i) * k_;
      int32_t best = 0;
      int64_t first = INT64_MIN, second = INT64_MIN;
      for (int32_t c = 0; c < k_; ++c) {
        const int64_t value = gain[c] - price[c];
        if (value > first) {
          second = std::exchange(first, value);
          best = c;
        } else if (value > second) {
          second = value;
        }
      }
      const int64_t step = k_ > 1 ? first - second + epsilon : epsilon;
      auto& place = place_[best];
      place.push({price[best] + step, i});
      owner[i] = best;
      const size_t capacity = static_cast<size_t>(
          best + 1 < k_ ? kGroupRows : n_ - static_cast<int64_t>(k_ - 1) * kGroupRows);
      if (place.size() > capacity) {
        owner[place.top().second] = -1;
        waiting.push_back(place.top().second);
        place.pop();
      }
      if (place.size() == capacity) price[best] = place.top().first;
    }
    return owner;
  }

 private:
  using Bid = std::pair<int64_t, int32_t>;
  const int32_t n_, k_;
  std::vector<int32_t> gain_;
  std::vector<std::priority_queue<Bid, std::vector<Bid>, std::greater<>>> place_;
};

}  // namespace

Order balanced_order(const Tokens& tokens, const GroupingParams& params) {
  Order order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  for (const Range& segment : tokens.segments) {
    if (single_block(segment)) continue;
    const std::vector<int32_t> rows(order.begin() + segment.begin,
                                    order.begin() + segment.begin + segment.len);
    const int32_t k = ceil_blocks(segment.len);
    Centroids centroids = lloyd(tokens, rows, k, params.kmeans_iterations, nullptr);
    int64_t energy = 0;
    for (const int32_t row : rows) energy += dot(tokens.row(row), tokens.row(row), tokens.d_pad);
    const int64_t epsilon = std::max<int64_t>(1, energy / segment.len / 64);
    std::vector<int32_t> labels;
    for (int iteration = 0; iteration < std::max(1, params.balanced_iterations); ++iteration) {
      labels = Auction(tokens, rows, centroids).run(epsilon);
      update(tokens, rows, labels, &centroids);
    }
    const Buckets buckets = bucket_by_label(rows, labels, k);
    std::copy(buckets.rows.begin(), buckets.rows.end(), order.begin() + segment.begin);
  }
  return order;
}

}  // namespace vca::spec::grouping
