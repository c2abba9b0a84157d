// SPDX-License-Identifier: Apache-2.0
#include "spec/rope.hpp"

#include <cmath>

namespace vca::spec {
namespace {

// Cosine and sine of frequency f (0 <= f < rotated/2) at a token; `local` counts from the first
// rotated token.
struct Angle {
  float cos, sin;
};

class AngleReader {
 public:
  AngleReader(const Rope& rope, int64_t local) : rope_(rope) {
    if (rope.cos != nullptr) {
      table_row_ = local * (rope.rotated / 2);
      return;
    }
    const int64_t h = rope.grid[1], w = rope.grid[2];
    coordinate_ = {local / (h * w), local / w % h, local % w};
  }
  Angle at(int f) const {
    if (rope_.cos != nullptr) return {rope_.cos[table_row_ + f], rope_.sin[table_row_ + f]};
    int axis = 0;
    while (f >= rope_.axis_dim[axis] / 2) f -= rope_.axis_dim[axis++] / 2;
    const auto index = static_cast<size_t>(coordinate_[axis] * (rope_.axis_dim[axis] / 2) + f);
    return {rope_.axis_cos[axis][index], rope_.axis_sin[axis][index]};
  }

 private:
  const Rope& rope_;
  int64_t table_row_ = 0;
  std::array<int64_t, 3> coordinate_{};
};

template <class T>
void rotate(const Rope& rope, int64_t token, T* x) {
  if (rope.convention == RopeConvention::none) return;
  const int64_t local = token - rope.begin;
  if (local < 0 || local >= rope.len) return;
  const AngleReader angles(rope, local);
  const int pairs = rope.rotated / 2;
  for (int f = 0; f < pairs; ++f) {
    const bool half = rope.convention == RopeConvention::half;
    const int i0 = half ? f : 2 * f;
    const int i1 = half ? f + pairs : 2 * f + 1;
    const Angle a = angles.at(f);
    const T x0 = x[i0], x1 = x[i1];
    const T c = static_cast<T>(a.cos), s = static_cast<T>(a.sin);
    // Explicit products and one add or sub each: no contraction (-ffp-contract=off).
    x[i0] = x0 * c - x1 * s;
    x[i1] = x0 * s + x1 * c;
  }
}

}  // namespace

void Rope::apply(int64_t token, float* x) const { rotate(*this, token, x); }
void Rope::apply(int64_t token, double* x) const { rotate(*this, token, x); }

Rope make_rope(RopeConvention convention, const std::array<int, 3>& axis_dim, double theta,
               const std::array<int64_t, 3>& grid, int64_t begin) {
  Rope rope;
  rope.convention = convention;
  rope.axis_dim = axis_dim;
  rope.grid = grid;
  rope.begin = begin;
  rope.len = grid[0] * grid[1] * grid[2];
  for (size_t axis = 0; axis < 3; ++axis) {
    const int pairs = axis_dim[axis] / 2;
    rope.rotated += axis_dim[axis];
    rope.axis_cos[axis].resize(static_cast<size_t>(grid[axis] * pairs));
    rope.axis_sin[axis].resize(static_cast<size_t>(grid[axis] * pairs));
    for (int i = 0; i < pairs; ++i) {
      const double frequency = std::pow(theta, -2.0 * i / axis_dim[axis]);
      for (int64_t pos = 0; pos < grid[axis]; ++pos) {
        const double angle = static_cast<double>(pos) * frequency;
        const auto index = static_cast<size_t>(pos * pairs + i);
        rope.axis_cos[axis][index] = static_cast<float>(std::cos(angle));
        rope.axis_sin[axis][index] = static_cast<float>(std::sin(angle));
      }
    }
  }
  return rope;
}

Rope make_rope_from_tables(RopeConvention convention, int rotated, const float* cos,
                           const float* sin, int64_t tokens) {
  Rope rope;
  rope.convention = convention;
  rope.rotated = rotated;
  rope.len = tokens;
  rope.cos = cos;
  rope.sin = sin;
  return rope;
}

}  // namespace vca::spec
