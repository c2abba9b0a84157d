// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/grouping/tokens.hpp"

namespace vca::spec::grouping {

/// Balanced k-means (every cluster holds exactly one block) by auction: the quality to aim at, far
/// too slow to ship. Needs 4 * n * n / 128 bytes per segment.
Order balanced_order(const Tokens& tokens, const GroupingParams& params);

}  // namespace vca::spec::grouping
