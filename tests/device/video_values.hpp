// SPDX-License-Identifier: Apache-2.0
// Values at the 720p shape of the models, for device programs.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "accuracy/calibrated.hpp"
#include "spec/codes.hpp"

namespace vca::tests {

// 75,600 tokens of the calibrated families, heads repeated.
// BF16, [heads][75,600][128]; `families`: heads that differ.
inline std::vector<uint16_t> video_values(int64_t heads, int64_t families) {
  const test::Grid grid = {21, 45, 80};
  const int64_t n = grid[0] * grid[1] * grid[2];
  std::vector<uint16_t> out(static_cast<size_t>(heads * n * 128));
  for (int64_t h = 0; h < heads; ++h) {
    if (h >= families) {
      std::copy_n(out.begin() + (h % families) * n * 128, n * 128, out.begin() + h * n * 128);
      continue;
    }
    const auto v = test::make_calibrated_v(test::kFamilies[static_cast<size_t>(h) % 3], grid,
                                           static_cast<uint64_t>(h / 3 + 1));
    for (size_t i = 0; i < v.size(); ++i)
      out[static_cast<size_t>(h * n * 128) + i] = spec::bf16_encode(v[i]);
  }
  return out;
}

}  // namespace vca::tests
