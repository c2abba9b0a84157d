// SPDX-License-Identifier: Apache-2.0
// K offset (docs/numerics.md B2): the mean of every 16th valid row in token order (sage2: of every
// row), after RoPE. A rank group holds 64 or 1024 such rows, a power of two, so its sum is a
// subtree of B1's tree. fp8 has no offset: zeros.
#pragma once

#include "kernels/prep/tensor.hpp"

namespace vca::kernels::prep {

inline constexpr int kSampleStep = 16;
static_assert(kRankGroup == 1 << 10 && kRankGroup / kSampleStep == 1 << 6);

// Sum of the samples of one rank group; thread = channel.
struct KeyOffsetPartial {
  using Params = prep::Params;
  static constexpr int kThreads = spec::kMaxHeadDim;
  static constexpr int kPhases = 1;
  struct Shared {};
  VCA_DEVICE static void phase(int, const Params& p, Shared&, int64_t block, int channel) {
    const Unit u = unit_of(p, block, p.max_rank_groups);
    const int64_t first = u.item * kRankGroup;
    const int64_t ranks = min_i64(p.n_valid[u.sub] - first, kRankGroup);
    if (ranks <= 0 || channel >= p.d_pad || p.offset_step == 0) return;
    const SubInfo& sub = p.subs[u.sub];
    const int32_t* tokens = p.tokens + p.extra[u.sub].chunk_base * kRows + first;
    const auto sample = [&](int64_t i) {
      const int64_t token = tokens[i * p.offset_step];
      return load_rotated(p, p.k, row_offset(p.k, sub.batch, u.head, token), token, channel);
    };
    const int64_t n = ceil_div(ranks, p.offset_step);
    float sum;
    if (n == kRankGroup / kSampleStep)
      sum = full_tree<6, 2>([&](int i) { return sample(i); });
    else if (n == kRankGroup)
      sum = full_tree<10, 2>([&](int i) { return sample(i); });
    else
      sum = spec::tree_sum(n, sample);
    p.k_partial[(sub.mu_group_base + u.head * sub.mu_group_stride + u.item) * p.d_pad + channel] =
        sum;
  }
};

// The mean; one block a unit, thread = channel.
struct KeyOffset {
  using Params = prep::Params;
  static constexpr int kThreads = spec::kMaxHeadDim;
  static constexpr int kPhases = 1;
  struct Shared {};
  VCA_DEVICE static void phase(int, const Params& p, Shared&, int64_t unit, int channel) {
    if (channel >= p.d_pad) return;
    const int64_t index = unit / p.h_kv, head = unit % p.h_kv;
    const SubInfo& sub = p.subs[index];
    const int64_t n = p.offset_step == 0 ? 0 : ceil_div(p.n_valid[index], p.offset_step);
    float mean = 0.0f;
    if (n > 0) {
      const float* partial =
          p.k_partial + (sub.mu_group_base + head * sub.mu_group_stride) * p.d_pad + channel;
      const float sum = spec::tree_sum(ceil_div(n, kRankGroup / p.offset_step),
                                       [&](int64_t g) { return partial[g * p.d_pad]; });
      mean = mul(sum, inverse_of(n));
    }
    // Any vector is exact for the output, so a mean whose sum overflowed may be left out.
    p.k_offset[unit * p.d_pad + channel] = spec::is_finite(mean) ? mean : 0.0f;
  }
};

}  // namespace vca::kernels::prep
