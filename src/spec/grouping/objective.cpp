// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/objective.hpp"

#include <algorithm>

namespace vca::spec::grouping {

double removed_energy(const Tokens& tokens, const Order& order, bool watched) {
  const int d_pad = tokens.d_pad;
  int64_t energy = 0, full = 0;
  double tails = 0.0;
  for (const Range& segment : tokens.segments) {
    const int32_t stride = watched ? watch_stride(ceil_blocks(segment.len)) : 1;
    for (int32_t at = 0; at < segment.len; at += stride * kGroupRows) {
      const int n = std::min(kGroupRows, segment.len - at);
      const int32_t* rows = order.data() + segment.begin + at;
      for (int i = 0; i < n; ++i) energy += dot(tokens.row(rows[i]), tokens.row(rows[i]), d_pad);
      int32_t sum[128] = {};
      add_rows(tokens, rows, n, sum);
      const int64_t norm2 = sum_norm2(sum, d_pad);
      if (n == kGroupRows)
        full += norm2;
      else
        tails += static_cast<double>(norm2) / static_cast<double>(n);
    }
  }
  if (energy == 0) return 0.0;
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
