// SPDX-License-Identifier: Apache-2.0
//
// f_g: the share of energy that the block means of an order remove.
#pragma once

#include "spec/grouping/tokens.hpp"

namespace vca::spec::grouping {

/// Full blocks in exact int64, each segment's tail in FP64 in segment order. 0 if all tokens are 0.
/// `watched`: of the watched blocks and their tokens only.
double removed_energy(const Tokens& tokens, const Order& order, bool watched = false);

/// Sorts the tokens of every block ascending: blocks are sets, and ascending rows gather better.
void sort_inside_blocks(const Tokens& tokens, Order* order);

/// Segments of at most one block are left alone by every grouping.
inline bool single_block(const Range& segment) { return segment.len <= kGroupRows; }

}  // namespace vca::spec::grouping
