// SPDX-License-Identifier: Apache-2.0
// Minimum and maximum of every value channel over the valid tokens, s_v and the factor on V from
// them (docs/numerics.md B7, B9). Exact, so any order will do: token order reads whole lines. What
// grouping needs of the same rows, INT8 tokens, leaves on the way.
#pragma once

#include "kernels/prep/rows.hpp"

namespace vca::kernels::prep {

struct Range {
  float min, max;
};
VCA_DEVICE Range empty_range() {
  return {spec::float_from_bits(0x7F800000u), spec::float_from_bits(0xFF800000u)};
}
VCA_DEVICE Range join(Range a, Range b) {
  return {ptx::min_f32(a.min, b.min), ptx::max_f32(a.max, b.max)};
}
VCA_DEVICE float abs_max(Range r) { return max_f32(abs_f32(r.min), abs_f32(r.max)); }

// One rank group of a unit; 16 rows at once.
template <Source kSource, int kDPad, int kBatch, int kCtas>
struct ValueRangeTuned {
  using Params = prep::Params;
  using Lanes = RowLanes<kDPad>;
  static constexpr int kThreads = Lanes::kThreads;
  static constexpr int kMinBlocks = kCtas * 256 / kThreads;
  static constexpr uint32_t kSharedBytes = 2 * Lanes::kWarps * kDPad * 4;

  VCA_DEVICE static void run(const Params& p, uint32_t block) {
    const Place at = place_of(block, p.by_h_kv, p.by_rank_groups);
    const int64_t first = int64_t{at.item} * kRankGroup;
    const auto n = static_cast<int>(min_i64(p.n_valid[at.sub] - first, kRankGroup));
    if (n <= 0) return;
    const uint32_t thread = ptx::thread_index(), lane = thread % 32, warp = thread / 32;
    const int channel = static_cast<int>(lane % Lanes::kLanes) * 8;
    const auto slot = static_cast<int>(thread / Lanes::kLanes);
    const SubInfo& sub = p.subs[at.sub];
    const int32_t* tokens = p.tokens + p.extra[at.sub].chunk_base * kRows + first;
    const RowReader<kSource> reader(p, p.v, sub.batch, at.head, channel);
    // Rows of a unit begin at its first block (kernels/group/params.hpp).
    int8_t* out = nullptr;
    TokenScale scale = {0.0f, 0.0f};
    if (p.token_values != nullptr && p.token_wanted[int64_t{at.sub} * p.h_kv + at.head] != 0) {
      const int64_t row = (sub.kv_block_base + at.head * sub.kv_block_stride) * kRows + first;
      out = p.token_values + row * kDPad + channel;
      scale = p.token_scale[int64_t{at.sub} * p.h_kv + at.head];
    }

    Range range[8];
    VCA_UNROLL
    for (int i = 0; i < 8; ++i) range[i] = empty_range();
    VCA_NO_UNROLL
    for (int i0 = slot; i0 < n; i0 += 16 * kBatch) {
      Octet<kSource> raw[kBatch];
      int32_t token[kBatch];
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {  // past the end: the thread's first row once more
        const int i = i0 + 16 * k;
        token[k] = tokens[i < n ? i : i0];
      }
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) raw[k] = reader.load(token[k]);
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        float x[8];
        decode(raw[k], x);
        VCA_UNROLL
        for (int i = 0; i < 8; ++i) range[i] = join(range[i], {x[i], x[i]});
        const int row = i0 + 16 * k;
        if (out != nullptr && row < n)
          ptx::st_global_v2(out + int64_t{row} * kDPad, int8_tokens(x, scale),
                            int8_tokens(x + 4, scale));
      }
    }
    VCA_UNROLL
    for (uint32_t m = Lanes::kLanes; m < 32; m *= 2) {
      VCA_UNROLL
      for (int i = 0; i < 8; ++i)
        range[i] = join(
            range[i], {ptx::shfl_sync_bfly(range[i].min, m), ptx::shfl_sync_bfly(range[i].max, m)});
    }
    const ptx::SmemAddr shared = ptx::dynamic_smem();
    if (lane < Lanes::kLanes) {
      VCA_UNROLL
      for (int i = 0; i < 8; ++i) {
        const uint32_t word = warp * 2 * kDPad + static_cast<uint32_t>(channel + i);
        ptx::st_shared_f32(shared + word * 4, range[i].min);
        ptx::st_shared_f32(shared + (word + kDPad) * 4, range[i].max);
      }
    }
    ptx::bar_sync(0, kThreads);
    // Threads: minima of all channels, then maxima.
    float x[Lanes::kWarps];
    VCA_UNROLL
    for (uint32_t w = 0; w < Lanes::kWarps; ++w)
      x[w] = ptx::ld_shared_f32(shared + (w * 2 * kDPad + thread) * 4);
    VCA_UNROLL
    for (int w = 1; w < Lanes::kWarps; ++w)
      x[0] = thread < kDPad ? ptx::min_f32(x[0], x[w]) : ptx::max_f32(x[0], x[w]);
    const int64_t group = sub.mu_group_base + at.head * sub.mu_group_stride + at.item;
    p.v_partial[group * 2 * kDPad + thread] = x[0];
  }
};

// FP16 takes registers to decode: eight rows at a time would spill.
template <Source kSource, int kDPad>
struct ValueRange : ValueRangeTuned<kSource, kDPad, kSource == Source::fp16 ? 4 : 8,
                                    Octet<kSource>::kWide ? 2 : 4> {};

// s_v and max|V| of a unit. Threads are channels of 16 or 8 parts of the groups.
struct ValueScale {
  using Params = prep::Params;
  static constexpr int kThreads = 1024;
  static constexpr int kPhases = 3;
  struct Shared {
    Range range[kThreads];
    float abs_max[spec::kMaxHeadDim];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t unit, int thread) {
    const int channel = thread & (p.d_pad - 1), slot = thread >> p.d_pad_log2;
    const int slots = kThreads >> p.d_pad_log2;
    const uint32_t index = p.by_h_kv.divide(static_cast<uint32_t>(unit));
    const int64_t head = static_cast<uint32_t>(unit) - index * p.by_h_kv.divisor;
    if (phase == 0) {
      const SubInfo& sub = p.subs[index];
      const int32_t n = (p.n_valid[index] + kRankGroup - 1) / kRankGroup;
      const float* partial =
          p.v_partial + (sub.mu_group_base + head * sub.mu_group_stride) * 2 * p.d_pad + channel;
      Range r = empty_range();
#if defined(__CUDACC__)
#pragma unroll 8
#endif
      for (int32_t g = slot; g < n; g += slots)
        r = join(r, {partial[int64_t{g} * 2 * p.d_pad], partial[(int64_t{g} * 2 + 1) * p.d_pad]});
      s.range[thread] = r;
    } else if (phase == 1) {
      if (thread >= p.d_pad) return;
      Range r = s.range[channel];
      for (int i = 1; i < slots; ++i) r = join(r, s.range[(i << p.d_pad_log2) + channel]);
      const bool real = channel < p.d && p.n_valid[index] > 0;
      const float amax = real ? abs_max(r) : 0.0f;
      float s_v = 1.0f, factor = 0.0f;
      if (real && !p.plain_values) {
        s_v = smooth_scale(r);
        factor = div(1.0f, s_v);
      } else if (amax >= 0x1p-100f) {
        s_v = div(amax, 448.0f);
        factor = div(448.0f, amax);
      }
      s.abs_max[channel] = amax;
      p.s_v[unit * p.d_pad + channel] = s_v;
      p.v_factor[unit * p.d_pad + channel] = factor;
    } else if (thread == 0 && p.energy_rows != nullptr) {
      float all = 0.0f;
      for (int i = 0; i < p.d; ++i) all = max_f32(all, s.abs_max[i]);
      p.v_abs_max[unit] = all;
    }
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
