// SPDX-License-Identifier: Apache-2.0
// RoPE on the host side of preprocessing: which path a request takes, and its factored tables in
// the form that rope.hpp reads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/prep/params.hpp"
#include "spec/rope.hpp"

namespace vca::kernels::prep {

inline AngleGroup angle_group(const Rope& r, int32_t group) {
  const int32_t f = 4 * group;
  uint32_t axis = 0;
  const auto skip_to = [&](int32_t frequency) {
    while (axis < 2 && frequency >= r.axis_end[axis]) ++axis;
  };
  AngleGroup out{};
  skip_to(f);
  const int32_t own = std::min(r.axis_end[axis] - f, 4);
  out.axes = axis | static_cast<uint32_t>(own) << 4;
  out.table[0] = r.axis_table[axis] + static_cast<uint32_t>(8 * group);
  skip_to(f + own);
  out.axes |= axis << 2;
  out.table[1] = r.axis_table[axis] + static_cast<uint32_t>(8 * group);
  return out;
}

// Everything but the pointers into the workspace; `table` and `groups` receive what they point to.
inline Rope pack_rope(const spec::Rope& in, std::vector<float>& table,
                      std::vector<AngleGroup>& groups) {
  Rope out{};
  out.convention = in.convention;
  out.rotated = in.rotated;
  out.begin = static_cast<uint32_t>(in.begin);  // tokens number below 2^31
  out.len = static_cast<uint32_t>(std::min<int64_t>(in.len, 0x7FFFFFFF));
  out.cos = in.cos;
  out.sin = in.sin;
  const bool half = in.convention == spec::RopeConvention::half;
  if (in.convention == spec::RopeConvention::none) return out;
  // Eight neighbouring channels are rotated alike: all, or none; as first halves, or as second.
  bool vectors = half ? in.rotated / 2 % 8 == 0 : in.rotated % 8 == 0;
  if (in.cos != nullptr) {
    const auto aligned = [](const float* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
    vectors = vectors && aligned(in.cos) && aligned(in.sin);
  } else {
    out.by_w = make_divider(in.grid[2]);
    out.by_h = make_divider(in.grid[1]);
    std::vector<int> axes_in_group(static_cast<size_t>(in.rotated / 8 + 1), 0);
    // A row has room for the axis with the most groups.
    int32_t begin = 0;
    for (const int dim : in.axis_dim) {
      const int32_t end = begin + dim / 2;
      out.pitch = std::max(out.pitch, static_cast<uint32_t>(8 * ((end + 3) / 4 - begin / 4)));
      begin = end;
    }
    begin = 0;
    for (size_t a = 0; a < 3; ++a) {
      const int32_t n = in.axis_dim[a] / 2, end = begin + n, first = begin / 4;
      out.axis_end[a] = end;
      // Not negative: the groups before this axis stand before it.
      out.axis_table[a] = static_cast<uint32_t>(table.size()) - static_cast<uint32_t>(8 * first);
      const size_t at = table.size();
      table.resize(at + static_cast<size_t>(in.grid[a]) * out.pitch, 0.0f);
      for (int64_t i = 0; i < in.grid[a]; ++i)
        for (int32_t f = begin; f < end; ++f) {
          const auto from = static_cast<size_t>(i * n + f - begin);
          const size_t to = at + static_cast<size_t>(i) * out.pitch +
                            static_cast<size_t>((f / 4 - first) * 8 + f % 4);
          table[to] = in.axis_cos[a][from];
          table[to + 4] = in.axis_sin[a][from];
        }
      for (int32_t g = first; n > 0 && g < (end + 3) / 4; ++g)
        ++axes_in_group[static_cast<size_t>(g)];
      begin = end;
    }
    for (int32_t g = 0; 4 * g < in.rotated / 2; ++g) groups.push_back(angle_group(out, g));
    for (const int axes : axes_in_group) vectors = vectors && axes <= 2;
  }
  out.path = !vectors ? RopePath::scalar : half ? RopePath::half : RopePath::interleaved;
  return out;
}

}  // namespace vca::kernels::prep
