// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/grouping/kmeans.hpp"

namespace vca::spec::grouping {

/// Sampled k-means, one assignment of all tokens, clusters in chain order; no pair passes.
Order vsmooth_order(const Tokens& tokens, const GroupingParams& params);

/// Greedy nearest-neighbour chain over all centroids: positions -> centroid numbers.
std::vector<int32_t> nearest_chain(const Centroids& centroids);

}  // namespace vca::spec::grouping
