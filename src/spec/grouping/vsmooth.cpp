// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/vsmooth.hpp"

#include <algorithm>
#include <cmath>
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

std::vector<int32_t> chain_from(int32_t start, const Centroids& centroids, std::vector<char> open) {
  std::vector<int32_t> chain;
  for (int32_t c = start; c >= 0; c = nearest_open(centroids.row(c), centroids, open)) {
    chain.push_back(c);
    open[c] = 0;
  }
  return chain;
}

std::vector<char> with_tokens(std::span<const int32_t> counts) {
  std::vector<char> open(counts.size());
  for (size_t c = 0; c < counts.size(); ++c) open[c] = counts[c] > 0;
  return open;
}

// One level of k-means, its clusters in chain order.
struct Clusters {
  Centroids chain;
  std::vector<std::vector<int32_t>> members;  // by chain position
};

Clusters cluster(const Tokens& tokens, std::span<const int32_t> rows, int32_t k,
                 const GroupingParams& params, const int16_t* previous_end) {
  const std::vector<int32_t> sample = sample_of(rows, params);
  k = std::min<int32_t>(k, static_cast<int32_t>(sample.size()));
  Centroids centroids = lloyd(tokens, sample, k, params.vsmooth_iterations, nullptr);
  const std::vector<int32_t> labels = assign(tokens, rows, centroids);
  const std::vector<int32_t> counts = update(tokens, rows, labels, &centroids);
  const std::vector<char> open = with_tokens(counts);
  const std::vector<int32_t> chain =
      previous_end == nullptr
          ? nearest_chain(centroids, counts)
          : chain_from(nearest_open(previous_end, centroids, open), centroids, open);
  const Buckets buckets = bucket_by_label(rows, labels, k);
  Clusters out;
  out.chain.d_pad = tokens.d_pad;
  for (const int32_t c : chain) {
    out.chain.values.insert(out.chain.values.end(), centroids.row(c),
                            centroids.row(c) + tokens.d_pad);
    const auto members = buckets.bucket(c);
    out.members.emplace_back(members.begin(), members.end());
  }
  return out;
}

// Coarse clusters first, fine ones inside each, the fine chain going on where the last one ended.
Clusters cluster_two_level(const Tokens& tokens, std::span<const int32_t> rows, int32_t k,
                           const GroupingParams& params) {
  int32_t coarse = 1;
  while (static_cast<int64_t>(coarse) * coarse < k) ++coarse;
  Clusters out;
  out.chain.d_pad = tokens.d_pad;
  for (const auto& members : cluster(tokens, rows, coarse, params, nullptr).members) {
    const int16_t* end = out.chain.count() == 0 ? nullptr : out.chain.row(out.chain.count() - 1);
    const int32_t fine = ceil_blocks(static_cast<int64_t>(members.size()));
    Clusters part = cluster(tokens, members, fine, params, end);
    out.chain.values.insert(out.chain.values.end(), part.chain.values.begin(),
                            part.chain.values.end());
    std::move(part.members.begin(), part.members.end(), std::back_inserter(out.members));
  }
  return out;
}

// Inside a cluster, tokens run from the side of the previous centroid to the side of the next one,
// so that a block that straddles two clusters holds the tokens near their border.
void bridge(const Tokens& tokens, const Clusters& clusters, int32_t* out) {
  const int32_t k = clusters.chain.count();
  std::vector<uint64_t> words;
  for (int32_t c = 0; c < k; ++c) {
    const int16_t* next = clusters.chain.row(std::min(c + 1, k - 1));
    const int16_t* previous = clusters.chain.row(std::max(c - 1, 0));
    int16_t axis[128] = {};
    for (int j = 0; j < tokens.d_pad; ++j) axis[j] = static_cast<int16_t>(next[j] - previous[j]);
    words.clear();
    for (const int32_t row : clusters.members[c])
      words.push_back(sort_word(dot(tokens.row(row), axis, tokens.d_pad), row));
    std::sort(words.begin(), words.end());
    for (const uint64_t word : words) *out++ = sort_word_token(word);
  }
}

std::vector<int32_t> rows_of(const Range& segment) {
  std::vector<int32_t> rows(segment.len);
  std::iota(rows.begin(), rows.end(), segment.begin);
  return rows;
}

}  // namespace

std::vector<int32_t> nearest_chain(const Centroids& centroids, std::span<const int32_t> counts) {
  const std::vector<char> open = with_tokens(counts);
  // Start at the centroid farthest from the origin: an end of the cloud rather than its middle.
  int32_t start = -1, best = -1;
  for (int32_t c = 0; c < centroids.count(); ++c) {
    const int32_t norm = dot(centroids.row(c), centroids.row(c), centroids.d_pad);
    if (open[c] && norm > best) {
      best = norm;
      start = c;
    }
  }
  return chain_from(start, centroids, open);
}

VsmoothOrder vsmooth_order(const Tokens& tokens, const GroupingParams& params) {
  VsmoothOrder out;
  out.order.resize(tokens.size());
  std::iota(out.order.begin(), out.order.end(), 0);
  out.chain_by_segment.resize(tokens.segments.size(), Centroids{tokens.d_pad, {}});
  for (size_t s = 0; s < tokens.segments.size(); ++s) {
    const Range& segment = tokens.segments[s];
    if (single_block(segment)) continue;
    const std::vector<int32_t> rows = rows_of(segment);
    const int32_t k = ceil_blocks(segment.len);
    Clusters clusters = k <= params.vsmooth_flat_clusters
                            ? cluster(tokens, rows, k, params, nullptr)
                            : cluster_two_level(tokens, rows, k, params);
    bridge(tokens, clusters, out.order.data() + segment.begin);
    out.chain_by_segment[s] = std::move(clusters.chain);
  }
  sort_inside_blocks(tokens, &out.order);
  return out;
}

VsmoothOrder vsmooth_order_warm(const Tokens& tokens, const std::vector<Centroids>& chains) {
  VsmoothOrder out;
  out.order.resize(tokens.size());
  std::iota(out.order.begin(), out.order.end(), 0);
  out.chain_by_segment = chains;
  for (size_t s = 0; s < tokens.segments.size(); ++s) {
    const Range& segment = tokens.segments[s];
    if (single_block(segment)) continue;
    const std::vector<int32_t> rows = rows_of(segment);
    Clusters clusters{chains[s], {}};
    const std::vector<int32_t> labels = assign(tokens, rows, clusters.chain);
    update(tokens, rows, labels, &clusters.chain);
    const Buckets buckets = bucket_by_label(rows, labels, clusters.chain.count());
    for (int32_t c = 0; c < clusters.chain.count(); ++c) {
      const auto members = buckets.bucket(c);
      clusters.members.emplace_back(members.begin(), members.end());
    }
    bridge(tokens, clusters, out.order.data() + segment.begin);
    out.chain_by_segment[s] = std::move(clusters.chain);
  }
  sort_inside_blocks(tokens, &out.order);
  return out;
}

}  // namespace vca::spec::grouping
