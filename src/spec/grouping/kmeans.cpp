// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/kmeans.hpp"

#include <algorithm>
#include <numeric>

#include "spec/grouping/objective.hpp"

namespace vca::spec::grouping {
namespace {

template <int D>
int32_t nearest(const int16_t* x, const int16_t* centroids, const int32_t* norms, int32_t k) {
  int32_t best = 0;
  int32_t best_score = 0;
  for (int32_t c = 0; c < k; ++c) {
    const int32_t score = norms[c] - 2 * dot_fixed<D>(x, centroids + static_cast<int64_t>(c) * D);
    if (c == 0 || score < best_score) {
      best_score = score;
      best = c;
    }
  }
  return best;
}

}  // namespace

std::vector<int32_t> assign(const Tokens& tokens, std::span<const int32_t> rows,
                            const Centroids& centroids) {
  const int32_t k = centroids.count();
  std::vector<int32_t> norms(k), labels(rows.size());
  for (int32_t c = 0; c < k; ++c)
    norms[c] = dot(centroids.row(c), centroids.row(c), centroids.d_pad);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int16_t* x = tokens.row(rows[i]);
    labels[i] = tokens.d_pad == 128 ? nearest<128>(x, centroids.values.data(), norms.data(), k)
                                    : nearest<64>(x, centroids.values.data(), norms.data(), k);
  }
  return labels;
}

std::vector<int32_t> update(const Tokens& tokens, std::span<const int32_t> rows,
                            std::span<const int32_t> labels, Centroids* centroids) {
  const int32_t k = centroids->count();
  const int d = centroids->d_pad;
  std::vector<int64_t> sums(static_cast<size_t>(k) * d, 0);
  std::vector<int32_t> counts(k, 0);
  for (size_t i = 0; i < rows.size(); ++i) {
    const int16_t* x = tokens.row(rows[i]);
    int64_t* sum = sums.data() + static_cast<int64_t>(labels[i]) * d;
    for (int j = 0; j < d; ++j) sum[j] += x[j];
    ++counts[labels[i]];
  }
  for (int32_t c = 0; c < k; ++c) {
    if (counts[c] == 0) continue;
    for (int j = 0; j < d; ++j)
      centroids->row(c)[j] =
          static_cast<int16_t>(round_div(sums[static_cast<int64_t>(c) * d + j], counts[c]));
  }
  return counts;
}

Centroids lloyd(const Tokens& tokens, std::span<const int32_t> rows, int32_t k, int iterations,
                std::vector<int32_t>* labels) {
  const int64_t n = static_cast<int64_t>(rows.size());
  Centroids centroids{tokens.d_pad, std::vector<int16_t>(static_cast<size_t>(k) * tokens.d_pad)};
  for (int32_t c = 0; c < k; ++c) {
    const int16_t* x = tokens.row(rows[sample_row(c, n, k)]);
    std::copy(x, x + tokens.d_pad, centroids.row(c));
  }
  std::vector<int32_t> last;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    last = assign(tokens, rows, centroids);
    update(tokens, rows, last, &centroids);
  }
  if (labels != nullptr) *labels = std::move(last);
  return centroids;
}

Buckets bucket_by_label(std::span<const int32_t> rows, std::span<const int32_t> labels, int32_t k) {
  Buckets out;
  out.starts.assign(static_cast<size_t>(k) + 1, 0);
  for (const int32_t label : labels) ++out.starts[label + 1];
  std::partial_sum(out.starts.begin(), out.starts.end(), out.starts.begin());
  out.rows.resize(rows.size());
  std::vector<int32_t> next(out.starts.begin(), out.starts.end() - 1);
  for (size_t i = 0; i < rows.size(); ++i) out.rows[next[labels[i]]++] = rows[i];
  return out;
}

Order kmeans_order(const Tokens& tokens, const GroupingParams& params) {
  Order order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  for (const Range& segment : tokens.segments) {
    if (single_block(segment)) continue;
    const std::vector<int32_t> rows(order.begin() + segment.begin,
                                    order.begin() + segment.begin + segment.len);
    const int32_t k = ceil_blocks(segment.len);
    std::vector<int32_t> labels;
    lloyd(tokens, rows, k, std::max(1, params.kmeans_iterations), &labels);
    const Buckets buckets = bucket_by_label(rows, labels, k);
    std::copy(buckets.rows.begin(), buckets.rows.end(), order.begin() + segment.begin);
  }
  return order;
}

}  // namespace vca::spec::grouping
