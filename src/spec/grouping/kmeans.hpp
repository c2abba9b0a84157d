// SPDX-License-Identifier: Apache-2.0
//
// Lloyd's k-means in integers, and the published grouping made of it.
#pragma once

#include <span>
#include <vector>

#include "spec/grouping/tokens.hpp"

namespace vca::spec::grouping {

/// INT8 centroids [k][d_pad], held as int16 like the tokens.
struct Centroids {
  int d_pad = 64;
  std::vector<int16_t> values;

  int32_t count() const { return static_cast<int32_t>(values.size() / d_pad); }
  const int16_t* row(int32_t c) const { return values.data() + static_cast<int64_t>(c) * d_pad; }
  int16_t* row(int32_t c) { return values.data() + static_cast<int64_t>(c) * d_pad; }
};

/// Nearest centroid of each row (||c||^2 - 2 x.c, ties to the lower centroid).
std::vector<int32_t> assign(const Tokens& tokens, std::span<const int32_t> rows,
                            const Centroids& centroids);

/// Centroids become the rounded means of their rows; one without rows stays. Returns the counts.
std::vector<int32_t> update(const Tokens& tokens, std::span<const int32_t> rows,
                            std::span<const int32_t> labels, Centroids* centroids);

/// `iterations` of assign and update from start centroids rows[floor(i * n / k)]. `labels`
/// (nullable) receives those of the last assignment.
Centroids lloyd(const Tokens& tokens, std::span<const int32_t> rows, int32_t k, int iterations,
                std::vector<int32_t>* labels);

/// Plain k-means: k = ceil(n / 128) per segment over all tokens, stable argsort of the labels.
Order kmeans_order(const Tokens& tokens, const GroupingParams& params);

/// Rows of each label, ascending inside a label as in `rows`; `starts` has k + 1 entries.
struct Buckets {
  std::vector<int32_t> rows;
  std::vector<int32_t> starts;
  std::span<const int32_t> bucket(int32_t c) const {
    return {rows.data() + starts[c], static_cast<size_t>(starts[c + 1] - starts[c])};
  }
};
Buckets bucket_by_label(std::span<const int32_t> rows, std::span<const int32_t> labels, int32_t k);

}  // namespace vca::spec::grouping
