// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/kdtree.hpp"

#include <algorithm>
#include <numeric>

#include "spec/grouping/axes.hpp"
#include "spec/grouping/objective.hpp"

namespace vca::spec::grouping {
namespace {

// Floor, so that every backend agrees for negative sums.
int64_t floor_mean(int64_t sum, int64_t n) {
  const int64_t q = sum / n;
  return q * n > sum ? q - 1 : q;
}

class Tree {
 public:
  Tree(const Tokens& tokens, const std::vector<int16_t>& axes) : tokens_(tokens) {
    const int32_t n = tokens.size();
    projections_.resize(static_cast<size_t>(kAxes) * n);
    for (int32_t i = 0; i < n; ++i)
      for (int a = 0; a < kAxes; ++a)
        projections_[static_cast<size_t>(a) * n + i] =
            dot(tokens.row(i), axes.data() + a * tokens.d_pad, tokens.d_pad);
    words_.resize(n);
  }

  void split(int32_t* rows, int32_t n) {
    if (n <= kGroupRows) return;
    const int32_t* p = widest_axis(rows, n);
    for (int32_t i = 0; i < n; ++i) words_[i] = sort_word(p[rows[i]], rows[i]);
    const int32_t left = (ceil_blocks(n) + 1) / 2 * kGroupRows;
    if (left < n) std::nth_element(words_.begin(), words_.begin() + left, words_.begin() + n);
    for (int32_t i = 0; i < n; ++i) rows[i] = sort_word_token(words_[i]);
    split(rows, left);
    split(rows + left, n - left);
  }

 private:
  // Variances on one common shift that keeps n * (2^23 >> shift)^2 inside int64: projections are
  // below 2^21 in magnitude, so no shift is needed up to 2^19 tokens.
  const int32_t* widest_axis(const int32_t* rows, int32_t n) const {
    int shift = 0;
    while ((static_cast<int64_t>(n) >> (19 + 2 * shift)) != 0) ++shift;
    const int32_t* best = nullptr;
    int64_t best_variance = -1;
    for (int a = 0; a < kAxes; ++a) {
      const int32_t* p = projections_.data() + static_cast<size_t>(a) * tokens_.size();
      int64_t sum = 0;
      for (int32_t i = 0; i < n; ++i) sum += p[rows[i]];
      const int64_t mean = floor_mean(sum, n);
      int64_t variance = 0;
      for (int32_t i = 0; i < n; ++i) {
        const int64_t diff = (p[rows[i]] - mean) >> shift;
        variance += diff * diff;
      }
      if (variance > best_variance) {
        best_variance = variance;
        best = p;
      }
    }
    return best;
  }

  const Tokens& tokens_;
  std::vector<int32_t> projections_;  // [kAxes][n]
  std::vector<uint64_t> words_;
};

}  // namespace

Order kdtree_order(const Tokens& tokens, const GroupingParams& params) {
  Order order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  if (std::all_of(tokens.segments.begin(), tokens.segments.end(), single_block)) return order;
  Tree tree(tokens, principal_axes(tokens, params));
  for (const Range& segment : tokens.segments)
    tree.split(order.data() + segment.begin, segment.len);
  sort_inside_blocks(tokens, &order);
  return order;
}

}  // namespace vca::spec::grouping
