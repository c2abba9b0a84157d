// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/cubes.hpp"

#include <algorithm>
#include <array>
#include <numeric>

namespace vca::spec::grouping {
namespace {

constexpr std::array<int64_t, 3> kCube = {4, 4, 8};

bool covers(const std::array<int64_t, 3>& grid, int64_t len) {
  int64_t product = 1;
  for (const int64_t size : grid) {
    if (size < 1 || product > len / size) return false;
    product *= size;
  }
  return product == len;
}

// Serpentine: every second row of cubes runs backwards, so cubes that meet in a block (edge cubes
// and masked tokens shift the cuts) are neighbours. Inside a cube: raster order.
std::array<int64_t, 3> cube_of(int64_t place, const std::array<int64_t, 3>& grid) {
  const int64_t t = place / (grid[1] * grid[2]), h = place / grid[2] % grid[1], w = place % grid[2];
  const int64_t ct = t / kCube[0];
  int64_t ch = h / kCube[1], cw = w / kCube[2];
  if (ct % 2 != 0) ch = (grid[1] - 1) / kCube[1] - ch;
  const int64_t rows = (grid[1] - 1) / kCube[1] + 1;
  if ((ct * rows + ch) % 2 != 0) cw = (grid[2] - 1) / kCube[2] - cw;
  return {ct, ch, cw};
}

}  // namespace

Order cubes_order(const Tokens& tokens, const GroupingInput& input) {
  Order order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  for (size_t s = 0; s < tokens.segments.size(); ++s) {
    Segment where{0, input.n_tokens, 0};
    if (!input.segments.empty())
      where = input.segments[s];
    else if (tokens.segments.size() > 1)
      continue;
    if (where.kind != 0 || !covers(input.grid, where.len)) continue;
    const auto first = order.begin() + tokens.segments[s].begin;
    std::stable_sort(first, first + tokens.segments[s].len, [&](int32_t a, int32_t b) {
      return cube_of(tokens.original[a] - where.begin, input.grid) <
             cube_of(tokens.original[b] - where.begin, input.grid);
    });
  }
  return order;
}

}  // namespace vca::spec::grouping
