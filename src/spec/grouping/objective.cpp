// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/objective.hpp"

#include <algorithm>

namespace vca::spec::grouping {

double removed_energy(const Tokens& tokens, const Order& order) {
  const int d_pad = tokens.d_pad;
  int64_t energy = 0;
  for (int32_t i = 0; i < tokens.size(); ++i) energy += dot(tokens.row(i), tokens.row(i), d_pad);
  if (energy == 0) return 0.0;

  int64_t full = 0;
  double tails = 0.0;
  for (const Range& segment : tokens.segments) {
    for (int32_t at = 0; at < segment.len; at += kGroupRows) {
      const int n = std::min(kGroupRows, segment.len - at);
      int32_t sum[128] = {};
      add_rows(tokens, order.data() + segment.begin + at, n, sum);
      const int64_t norm2 = sum_norm2(sum, d_pad);
      if (n == kGroupRows)
        full += norm2;
      else
        tails += static_cast<double>(norm2) / static_cast<double>(n);
    }
  }
  return (static_cast<double>(full) / kGroupRows + tails) / static_cast<double>(energy);
}

void sort_inside_blocks(const Tokens& tokens, Order* order) {
  for (const Range& segment : tokens.segments)
    for (int32_t at = 0; at < segment.len; at += kGroupRows) {
      const auto first = order->begin() + segment.begin + at;
      std::sort(first, first + std::min(kGroupRows, segment.len - at));
    }
}

}  // namespace vca::spec::grouping
