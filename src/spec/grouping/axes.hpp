// SPDX-License-Identifier: Apache-2.0
//
// Principal axes of the INT8 tokens of one head.
#pragma once

#include <vector>

#include "spec/grouping/tokens.hpp"

namespace vca::spec::grouping {

inline constexpr int kAxes = 8;

/// kAxes axes as INT8 rows [kAxes][d_pad], one common scale, so projections compare across axes.
std::vector<int16_t> principal_axes(const Tokens& tokens, const GroupingParams& params);

/// n * sum(x x^T) - sum(x) sum(x)^T of a strided sample, [d_pad][d_pad].
std::vector<int64_t> sample_covariance(const Tokens& tokens, int64_t sample_rows);

}  // namespace vca::spec::grouping
