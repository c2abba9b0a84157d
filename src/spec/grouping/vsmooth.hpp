// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/grouping/kmeans.hpp"

namespace vca::spec::grouping {

struct VsmoothOrder {
  Order order;
  std::vector<Centroids> chain_by_segment;  ///< centroids in chain order, means of all their tokens
};

/// Sampled k-means, chain of centroids, bridge order inside a cluster; no pair passes.
VsmoothOrder vsmooth_order(const Tokens& tokens, const GroupingParams& params);

/// The same from the previous chain: one assignment of all tokens, no k-means, no chain search.
VsmoothOrder vsmooth_order_warm(const Tokens& tokens, const std::vector<Centroids>& chains);

/// Greedy nearest-neighbour chain over centroids with tokens: positions -> centroid numbers.
std::vector<int32_t> nearest_chain(const Centroids& centroids, std::span<const int32_t> counts);

}  // namespace vca::spec::grouping
