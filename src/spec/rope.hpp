// SPDX-License-Identifier: Apache-2.0
// Rotary embedding, in the conventions of the four models (docs/numerics.md B10). Tables are
// expanded in FP64 and stored as FP32; the rotation is explicit FP32 multiply and add.
//
//   interleaved: pairs (x[2i], x[2i+1])           Wan2.2, HunyuanVideo-1.5, LongCat
//   half:        pairs (x[i], x[i + rotated/2])   MiniMax-H3
//
// The rotated/2 frequencies are the concatenation of the axes t, h, w: axis a has axis_dim[a]/2 of
// them, theta^(-2i/axis_dim[a]), and its angle is the token's coordinate on that axis times the
// frequency.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace vca::spec {

enum class RopeConvention : int32_t {
  none = 0,
  interleaved = 1,
  half = 2
};  // equals vca_rope_convention

struct Rope {
  RopeConvention convention = RopeConvention::none;
  int rotated = 0;    // dims rotated, the rest pass through
  int64_t begin = 0;  // first rotated token
  int64_t len = 0;    // number of rotated tokens
  // Factored tables: axis a has grid[a] rows of axis_dim[a]/2 values. Empty when the caller gave
  // whole tables.
  std::array<int64_t, 3> grid{};
  std::array<int, 3> axis_dim{};
  std::array<std::vector<float>, 3> axis_cos, axis_sin;
  const float* cos = nullptr;  // caller's tables [len][rotated/2]
  const float* sin = nullptr;

  // Rotates the row of `token` in place (x has at least `rotated` values).
  void apply(int64_t token, float* x) const;
  void apply(int64_t token, double* x) const;  // the FP64 reference, same tables
};

Rope make_rope(RopeConvention convention, const std::array<int, 3>& axis_dim, double theta,
               const std::array<int64_t, 3>& grid, int64_t begin);
Rope make_rope_from_tables(RopeConvention convention, int rotated, const float* cos,
                           const float* sin, int64_t tokens);

}  // namespace vca::spec
