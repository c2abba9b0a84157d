// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/grouping/tokens.hpp"

namespace vca::spec::grouping {

/// Merges pairs of similar full blocks and splits each pair again in two halves; a split is kept
/// only when it raises the exact sum of squared block sums. Rounds of a pass touch disjoint pairs,
/// so they may run in parallel. Returns the number of splits kept.
int64_t pair_exchange(const Tokens& tokens, const GroupingParams& params, int passes, Order* order);

}  // namespace vca::spec::grouping
