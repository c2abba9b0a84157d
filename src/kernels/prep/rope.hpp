// SPDX-License-Identifier: Apache-2.0
// RoPE of eight consecutive channels in registers: the arithmetic of spec/rope.cpp.
//
// Tables stand in groups of four frequencies, {cos 4, sin 4}: 32 bytes, two vector loads. Factored
// tables have a row of groups for each position of each axis (workspace.hpp builds them); a group
// at the border of two axes stands in both rows and is put together here.
//
//   interleaved  channels 8c ... 8c+7 are four pairs: group c
//   half         channels 8c ... 8c+7 are one half of eight pairs: groups 2c', 2c'+1; the other
//                halves come from the lane that holds them
//   scalar       everything else (odd splits of axes, unaligned tables): while reading, element by
//                element (tensor.hpp)
#pragma once

#include "kernels/prep/rows.hpp"

namespace vca::kernels::prep {

struct Angles {
  float cos[4], sin[4];
};
struct Position {
  uint32_t axis[3];
};
VCA_DEVICE Position grid_position(const Rope& r, uint32_t local) {
  const uint32_t row = r.by_w.divide(local), t = r.by_h.divide(row);
  return {{t, row - t * r.by_h.divisor, local - row * r.by_w.divisor}};
}

template <int kWhich>
VCA_DEVICE const float* entry_of(const Rope& r, const AngleGroup& g, const Position& at) {
  const uint32_t h_or_t = (g.axes & 1u << (2 * kWhich)) != 0 ? at.axis[1] : at.axis[0];
  const uint32_t coordinate = (g.axes & 2u << (2 * kWhich)) != 0 ? at.axis[2] : h_or_t;
  return r.table + (g.table[kWhich] + coordinate * r.pitch);
}
VCA_DEVICE void load4(const float* from, float (&to)[4]) {
  const ptx::Words4 x = ptx::ld_global_nc_v4(from);
  VCA_UNROLL
  for (int i = 0; i < 4; ++i) to[i] = ptx::bits_float(x.word[i]);
}
VCA_DEVICE Angles angles_of_table(const Rope& r, int group, uint32_t local) {
  Angles a;
  const int64_t first = int64_t{local} * (r.rotated / 2) + 4 * group;
  load4(r.cos + first, a.cos);
  load4(r.sin + first, a.sin);
  return a;
}
VCA_DEVICE Angles angles_at(const Rope& r, const AngleGroup& g, const Position& at) {
  Angles a;
  const float* entry = entry_of<0>(r, g, at);
  load4(entry, a.cos);
  load4(entry + 4, a.sin);
  if (g.own() == 4) return a;
  Angles b;
  entry = entry_of<1>(r, g, at);
  load4(entry, b.cos);
  load4(entry + 4, b.sin);
  VCA_UNROLL
  for (int i = 1; i < 4; ++i)
    if (i >= g.own()) {
      a.cos[i] = b.cos[i];
      a.sin[i] = b.sin[i];
    }
  return a;
}

// What a kernel is compiled for: no RoPE; interleaved pairs of a grid, which most models have and
// which gets code without further cases; or whatever Rope::path says.
enum class Turn : int32_t { none, grid, any };

// What a thread needs to know about its channels [channel, channel + 8).
template <Turn kTurn>
class RopeLane {
 public:
  VCA_DEVICE RopeLane(const Rope& r, int channel, uint32_t lane) : partner_(lane) {
    if (r.path == RopePath::none || r.path == RopePath::scalar) return;
    rotated_ = channel < r.rotated;
    group_ = channel / 8;
    if (r.path == RopePath::half) {
      const int pairs = r.rotated / 2;
      second_half_ = channel >= pairs;
      const auto distance = static_cast<uint32_t>(pairs / 8);
      if (rotated_) partner_ = second_half_ ? lane - distance : lane + distance;
      group_ = (second_half_ ? channel - pairs : channel) / 4;
    }
    if (!rotated_ || r.cos != nullptr) return;
    at_[0] = r.groups[group_];
    if (r.path == RopePath::half) at_[1] = r.groups[group_ + 1];
  }

  // Rotates x, the decoded channels of `raw`. All lanes of the warp come here together.
  template <Source kSource>
  VCA_DEVICE void rotate(const Rope& r, int32_t token, bool exists, const Octet<kSource>& raw,
                         float (&x)[8]) const {
    if constexpr (kTurn == Turn::none || kSource == Source::any) {
      return;
    } else if constexpr (kTurn == Turn::grid) {
      const uint32_t local = static_cast<uint32_t>(token) - r.begin;
      if (exists && rotated_ && local < r.len) rotate_pairs(angles_on_grid(r, local), x);
    } else {
      rotate_any(r, token, exists, raw, x);
    }
  }

 private:
  VCA_DEVICE static void rotate_pairs(const Angles& a, float (&x)[8]) {
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float x0 = x[2 * i], x1 = x[2 * i + 1];
      x[2 * i] = sub(mul(x0, a.cos[i]), mul(x1, a.sin[i]));
      x[2 * i + 1] = add(mul(x0, a.sin[i]), mul(x1, a.cos[i]));
    }
  }
  VCA_DEVICE Angles angles_on_grid(const Rope& r, uint32_t local) const {
    return angles_at(r, at_[0], grid_position(r, local));
  }

  template <Source kSource>
  VCA_DEVICE void rotate_any(const Rope& r, int32_t token, bool exists, const Octet<kSource>& raw,
                             float (&x)[8]) const {
    if (r.path == RopePath::none) return;
    Octet<kSource> other = raw;
    if (r.path == RopePath::half) {
      VCA_UNROLL
      for (int i = 0; i < Octet<kSource>::kWords; ++i)
        other.word[i] = ptx::shfl_sync_idx(raw.word[i], partner_);
    }
    const uint32_t local = static_cast<uint32_t>(token) - r.begin;
    if (!exists || !rotated_ || local >= r.len) return;
    if (r.path == RopePath::interleaved)
      return rotate_pairs(
          r.cos != nullptr ? angles_of_table(r, group_, local) : angles_on_grid(r, local), x);
    float y[8];
    decode(other, y);
    VCA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Angles a = r.cos != nullptr ? angles_of_table(r, group_ + half, local)
                                        : angles_at(r, at_[half], grid_position(r, local));
      VCA_UNROLL
      for (int i = 0; i < 4; ++i) {
        float& own = x[4 * half + i];
        const float with_cos = mul(own, a.cos[i]), with_sin = mul(y[4 * half + i], a.sin[i]);
        own = second_half_ ? add(with_sin, with_cos) : sub(with_cos, with_sin);
      }
    }
  }

  bool rotated_ = false, second_half_ = false;
  int group_ = 0;     // first of its groups
  uint32_t partner_;  // lane with the other halves
  AngleGroup at_[2] = {};
};

}  // namespace vca::kernels::prep
