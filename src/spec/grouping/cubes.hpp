// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "spec/grouping/tokens.hpp"

namespace vca::spec::grouping {

/// Space-time cubes of 4 x 4 x 8 (t, h, w) tokens in serpentine order. Applies to video segments
/// whose length is t * h * w of input.grid; every other segment keeps its order.
Order cubes_order(const Tokens& tokens, const GroupingInput& input);

}  // namespace vca::spec::grouping
