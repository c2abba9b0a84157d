// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/vsmooth.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "spec/grouping/objective.hpp"

namespace vca::spec::grouping {
namespace {

std::vector<int32_t> sample_of(std::span<const int32_t> rows, const GroupingParams& params) {
  const int64_t n = static_cast<int64_t>(rows.size());
  const int64_t part = (n + params.vsmooth_sample_divisor - 1) / params.vsmooth_sample_divisor;
  const int64_t m = std::min(n, std::max<int64_t>(params.vsmooth_sample_min, part));
  std::vector<int32_t> sample(m);
  for (int64_t i = 0; i < m; ++i) sample[i] = rows[sample_row(i, n, m)];
  return sample;
}

// The nearest of `open` to x (ties to the lower number); -1 when none is open.
int32_t nearest_open(const int16_t* x, const Centroids& centroids, const std::vector<char>& open) {
  int32_t best = -1;
  int32_t best_distance = std::numeric_limits<int32_t>::max();
  for (int32_t c = 0; c < centroids.count(); ++c) {
    if (!open[c]) continue;
    const int32_t d = distance(x, centroids.row(c), centroids.d_pad);
    if (d < best_distance) {
      best_distance = d;
      best = c;
    }
  }
  return best;
}

}  // namespace

std::vector<int32_t> nearest_chain(const Centroids& centroids) {
  // Start at the centroid farthest from the origin: an end of the cloud rather than its middle.
  int32_t start = -1, longest = -1;
  for (int32_t c = 0; c < centroids.count(); ++c) {
    const int32_t norm = dot(centroids.row(c), centroids.row(c), centroids.d_pad);
    if (norm > longest) {
      longest = norm;
      start = c;
    }
  }
  std::vector<char> open(centroids.count(), 1);
  std::vector<int32_t> chain;
  for (int32_t c = start; c >= 0; c = nearest_open(centroids.row(c), centroids, open)) {
    chain.push_back(c);
    open[c] = 0;
  }
  return chain;
}

Order vsmooth_order(const Tokens& tokens, const GroupingParams& params) {
  Order order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  for (const Range& segment : tokens.segments) {
    if (single_block(segment)) continue;
    const std::vector<int32_t> rows(order.begin() + segment.begin,
                                    order.begin() + segment.begin + segment.len);
    const int32_t k = ceil_blocks(segment.len);
    const std::vector<int32_t> sample = sample_of(rows, params);
    const bool large = static_cast<int64_t>(sample.size()) > params.vsmooth_sample_min;
    const Centroids centroids =
        lloyd(tokens, sample, k,
              large ? params.vsmooth_large_iterations : params.vsmooth_iterations, nullptr);
    const std::vector<int32_t> labels = assign(tokens, rows, centroids);
    const Buckets buckets = bucket_by_label(rows, labels, k);
    auto out = order.begin() + segment.begin;
    for (const int32_t c : nearest_chain(centroids)) {
      const auto members = buckets.bucket(c);
      out = std::copy(members.begin(), members.end(), out);
    }
  }
  sort_inside_blocks(tokens, &order);
  return order;
}

}  // namespace vca::spec::grouping
