// SPDX-License-Identifier: Apache-2.0
// Minimum and maximum of every value channel over the valid tokens, s_v and the factor from them
// (docs/numerics.md B7, B9). Exact, so any order will do: token order reads whole lines.
#pragma once

#include "kernels/prep/tensor.hpp"

namespace vca::kernels::prep {

struct Range {
  float min, max;
};
VCA_DEVICE Range empty_range() {
  return {spec::float_from_bits(0x7F800000u), spec::float_from_bits(0xFF800000u)};
}
VCA_DEVICE Range join(Range a, Range b) { return {min_f32(a.min, b.min), max_f32(a.max, b.max)}; }
VCA_DEVICE float abs_max(Range r) { return max_f32(abs_f32(r.min), abs_f32(r.max)); }

// One rank group of a unit.
struct ValueRange {
  using Params = prep::Params;
  static constexpr int kLanes = 4;  // rows at once
  static constexpr int kThreads = kLanes * spec::kMaxHeadDim;
  static constexpr int kPhases = 2;
  struct Shared {
    Range range[kLanes][spec::kMaxHeadDim];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t block, int thread) {
    const Unit u = unit_of(p, block, p.max_rank_groups);
    const int64_t first = u.item * kRankGroup;
    const int64_t n = min_i64(p.n_valid[u.sub] - first, kRankGroup);
    const int channel = thread % spec::kMaxHeadDim, lane = thread / spec::kMaxHeadDim;
    if (n <= 0 || channel >= p.d) return;
    const SubInfo& sub = p.subs[u.sub];
    if (phase == 0) {
      const int32_t* tokens = p.tokens + p.extra[u.sub].chunk_base * kRows + first;
      Range r = empty_range();
      for (int64_t i = lane; i < n; i += kLanes) {
        const float x = load_element(p.v, row_offset(p.v, sub.batch, u.head, tokens[i]) + channel);
        r = join(r, {x, x});
      }
      s.range[lane][channel] = r;
    } else if (lane == 0) {
      Range r = s.range[0][channel];
      for (int i = 1; i < kLanes; ++i) r = join(r, s.range[i][channel]);
      float* out =
          p.v_partial + (sub.mu_group_base + u.head * sub.mu_group_stride + u.item) * 2 * p.d_pad;
      out[channel] = r.min;
      out[p.d_pad + channel] = r.max;
    }
  }
};

// s_v, the factor on V and max|V| of a unit.
struct ValueScale {
  using Params = prep::Params;
  static constexpr int kThreads = spec::kMaxHeadDim;
  static constexpr int kPhases = 2;
  struct Shared {
    float abs_max[kThreads];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t unit, int channel) {
    if (phase == 1) {
      if (channel != 0) return;
      float all = 0.0f;
      for (int i = 0; i < p.d; ++i) all = max_f32(all, s.abs_max[i]);
      p.v_abs_max[unit] = all;
      return;
    }
    s.abs_max[channel] = 0.0f;
    if (channel >= p.d_pad) return;
    const int64_t index = unit / p.h_kv, head = unit % p.h_kv;
    const SubInfo& sub = p.subs[index];
    float s_v = 1.0f, factor = 0.0f;
    if (channel < p.d && p.n_valid[index] > 0) {
      Range r = empty_range();
      const float* partial =
          p.v_partial + (sub.mu_group_base + head * sub.mu_group_stride) * 2 * p.d_pad + channel;
      for (int64_t g = 0; g < ceil_div(p.n_valid[index], kRankGroup); ++g)
        r = join(r, {partial[2 * g * p.d_pad], partial[(2 * g + 1) * p.d_pad]});
      s.abs_max[channel] = abs_max(r);
      if (!p.plain_values) {
        s_v = smooth_scale(r);
        factor = div(1.0f, s_v);
      } else if (abs_max(r) >= 0x1p-100f) {
        s_v = div(abs_max(r), 448.0f);
        factor = div(448.0f, abs_max(r));
      }
    }
    p.s_v[unit * p.d_pad + channel] = s_v;
    p.v_factor[unit * p.d_pad + channel] = factor;
  }

 private:
  VCA_DEVICE static float smooth_scale(Range r) {
    if (abs_max(r) < 0x1p-100f) return 1.0f;
    constexpr float kInv448 = 1.0f / 448.0f;
    constexpr float kMeanSlack = 0x1p-8f / 448.0f;
    const float spread = prep::sub(mul(r.max, kInv448), mul(r.min, kInv448));
    return add(spread, mul(abs_max(r), kMeanSlack));
  }
};

}  // namespace vca::kernels::prep
