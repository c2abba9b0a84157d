// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/grouping/tokens.hpp"

namespace vca::spec::grouping {

/// k-d tree on the head's principal axes, leaves of 128 tokens; no pair passes.
Order kdtree_order(const Tokens& tokens, const GroupingParams& params);

}  // namespace vca::spec::grouping
