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

// Where a group of four frequencies lies, the same for all rows of a thread.
struct AngleGroup {
  uint32_t first, pitch;    // floats into the table at position 0; to the next position
  uint8_t axis, next_axis;  // of the first frequencies; of the others, where axes meet
  uint8_t from_first;       // frequencies that the first axis gives: 4 unless axes meet
};
struct Angles {
  float cos[4], sin[4];
};
// A token's place in the grid, or its row in whole tables.
struct Position {
  bool rotated;
  uint32_t axis[3];
};

VCA_DEVICE Position position_of(const Rope& r, int32_t token) {
  Position out = {};
  const uint32_t local = static_cast<uint32_t>(token) - r.begin;
  out.rotated = local < r.len;
  if (r.cos != nullptr) {
    out.axis[0] = local;
    return out;
  }
  const uint32_t n = local & 0x7FFFFFFFu;  // a rotated token has no such bit
  const uint32_t row = r.by_w.divide(n);
  out.axis[0] = r.by_h.divide(row);
  out.axis[1] = row - out.axis[0] * r.by_h.divisor;
  out.axis[2] = n - row * r.by_w.divisor;
  return out;
}

VCA_DEVICE uint32_t table_at(const Rope& r, int axis, int group) {
  return r.axis_table[axis] + static_cast<uint32_t>(8 * group);
}
VCA_DEVICE AngleGroup angle_group(const Rope& r, int group) {
  AngleGroup out = {};
  const int f = 4 * group;
  int axis = 0;
  while (axis < 2 && f >= r.axis_end[axis]) ++axis;
  const int from_first = r.axis_end[axis] - f < 4 ? r.axis_end[axis] - f : 4;
  int next = axis;
  while (next < 2 && r.axis_end[next] <= f + from_first) ++next;
  out.first = table_at(r, axis, group);
  out.pitch = r.axis_pitch[axis];
  out.axis = static_cast<uint8_t>(axis);
  out.next_axis = static_cast<uint8_t>(next);
  out.from_first = static_cast<uint8_t>(from_first);
  return out;
}

VCA_DEVICE uint32_t coordinate(const Position& at, int axis) {
  return axis == 0 ? at.axis[0] : axis == 1 ? at.axis[1] : at.axis[2];
}
VCA_DEVICE void load4(const float* from, float (&to)[4]) {
  const ptx::Words4 x = ptx::ld_global_nc_v4(from);
  VCA_UNROLL
  for (int i = 0; i < 4; ++i) to[i] = ptx::bits_float(x.word[i]);
}
VCA_DEVICE Angles angles_at(const Rope& r, const AngleGroup& g, int group, const Position& at) {
  Angles a;
  if (r.cos != nullptr) {
    const int64_t first = int64_t{at.axis[0]} * (r.rotated / 2) + 4 * group;
    load4(r.cos + first, a.cos);
    load4(r.sin + first, a.sin);
    return a;
  }
  const float* entry = r.table + (g.first + coordinate(at, g.axis) * g.pitch);
  load4(entry, a.cos);
  load4(entry + 4, a.sin);
  if (g.from_first == 4) return a;
  entry = r.table + (table_at(r, g.next_axis, group) +
                     coordinate(at, g.next_axis) * r.axis_pitch[g.next_axis]);
  Angles b;
  load4(entry, b.cos);
  load4(entry + 4, b.sin);
  VCA_UNROLL
  for (int i = 1; i < 4; ++i)
    if (i >= g.from_first) {
      a.cos[i] = b.cos[i];
      a.sin[i] = b.sin[i];
    }
  return a;
}

// What a thread needs to know about its channels [channel, channel + 8).
struct RopeLane {
  bool rotated, second_half;
  int group;         // first of its groups
  uint32_t partner;  // lane with the other halves
  AngleGroup at[2];
};
VCA_DEVICE RopeLane rope_lane(const Rope& r, int channel, uint32_t lane) {
  RopeLane out = {};
  out.partner = lane;
  if (r.path == RopePath::none || r.path == RopePath::scalar) return out;
  out.rotated = channel < r.rotated;
  if (r.path == RopePath::interleaved) {
    out.group = channel / 8;
    if (out.rotated && r.cos == nullptr) out.at[0] = angle_group(r, out.group);
    return out;
  }
  const int pairs = r.rotated / 2;
  out.second_half = channel >= pairs;
  if (out.rotated)
    out.partner = out.second_half ? lane - static_cast<uint32_t>(pairs / 8)
                                  : lane + static_cast<uint32_t>(pairs / 8);
  out.group = (out.second_half ? channel - pairs : channel) / 4;
  if (!out.rotated || r.cos != nullptr) return out;
  out.at[0] = angle_group(r, out.group);
  out.at[1] = angle_group(r, out.group + 1);
  return out;
}

// Rotates x, the decoded channels of `raw`. All lanes of the warp come here together.
template <Source kSource>
VCA_DEVICE void rotate(const Rope& r, const RopeLane& lane, int32_t token, bool exists,
                       const Octet<kSource>& raw, float (&x)[8]) {
  if (kSource == Source::any || r.path == RopePath::none) return;
  Octet<kSource> other = raw;
  if (r.path == RopePath::half) {
    VCA_UNROLL
    for (int i = 0; i < Octet<kSource>::kWords; ++i)
      other.word[i] = ptx::shfl_sync_idx(raw.word[i], lane.partner);
  }
  const Position at = position_of(r, token);
  if (!exists || !lane.rotated || !at.rotated) return;
  if (r.path == RopePath::interleaved) {
    const Angles a = angles_at(r, lane.at[0], lane.group, at);
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float x0 = x[2 * i], x1 = x[2 * i + 1];
      x[2 * i] = sub(mul(x0, a.cos[i]), mul(x1, a.sin[i]));
      x[2 * i + 1] = add(mul(x0, a.sin[i]), mul(x1, a.cos[i]));
    }
    return;
  }
  float y[8];
  decode(other, y);
  VCA_UNROLL
  for (int half = 0; half < 2; ++half) {
    const Angles a = angles_at(r, lane.at[half], lane.group + half, at);
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      float& own = x[4 * half + i];
      const float with_cos = mul(own, a.cos[i]), with_sin = mul(y[4 * half + i], a.sin[i]);
      own = lane.second_half ? add(with_sin, with_cos) : sub(with_cos, with_sin);
    }
  }
}

}  // namespace vca::kernels::prep
