// SPDX-License-Identifier: Apache-2.0
// K offset (docs/numerics.md B2): the mean of every 16th valid row in token order (sage2: of every
// row), after RoPE. A rank group holds 64 or 1024 such rows, a power of two, so its sum is a
// subtree of B1's tree. Missing rows count as -0, which no addition notices. fp8 has no offset:
// zeros.
#pragma once

#include "kernels/prep/rope.hpp"
#include "kernels/prep/rows.hpp"

namespace vca::kernels::prep {

inline constexpr int kSampleStep = 16;
static_assert(kRankGroup == 1 << 10 && kRankGroup / kSampleStep == 1 << 6);

// Sum of the samples of one rank group: 16 slots of 4 or 64 consecutive samples, 4 at once.
template <Source kSource, int kDPad, Turn kTurn>
struct KeyOffsetPartial {
  using Params = prep::Params;
  using Lanes = RowLanes<kDPad>;
  static constexpr Turn kTurnOf = kTurn;
  static constexpr int kThreads = Lanes::kThreads;
  static constexpr int kMinBlocks = 512 / kThreads;
  static constexpr uint32_t kSharedBytes = Lanes::kWarps * kDPad * 4;
  static constexpr int kAtOnce = 4;

  VCA_DEVICE static void run(const Params& p, uint32_t block) {
    const Place at = place_of(block, p.by_h_kv, p.by_rank_groups);
    const int64_t first = int64_t{at.item} * kRankGroup;
    const int64_t ranks = min_i64(p.n_valid[at.sub] - first, kRankGroup);
    if (ranks <= 0 || p.offset_step == 0) return;
    const uint32_t thread = ptx::thread_index(), lane = thread % 32;
    const int channel = static_cast<int>(lane % Lanes::kLanes) * 8;
    const auto slot = static_cast<int>(thread / Lanes::kLanes);
    const SubInfo& sub = p.subs[at.sub];
    const int32_t* tokens = p.tokens + p.extra[at.sub].chunk_base * kRows + first;
    const RowReader<kSource> reader(p, p.k, sub.batch, at.head, channel);
    const RopeLane<kTurn> rope(p.rope, channel, lane);

    float sum[8];
    if (p.offset_step == kSampleStep)
      sum_batch(p, reader, rope, tokens, static_cast<int>(ranks), slot * kAtOnce, sum);
    else
      sum_batches(p, reader, rope, tokens, static_cast<int>(ranks), slot, sum);
    float* out =
        p.k_partial + (sub.mu_group_base + at.head * sub.mu_group_stride + at.item) * kDPad;
    sum_over_slots<kDPad>(sum, channel, [out](uint32_t i, float s) { out[i] = s; });
  }

 private:
  // Every row: 64 consecutive samples of the slot.
  VCA_DEVICE static void sum_batches(const Params& p, const RowReader<kSource>& reader,
                                     const RopeLane<kTurn>& rope, const int32_t* tokens, int ranks,
                                     int slot, float (&sum)[8]) {
    constexpr int kLevels = 4, kBatches = 1 << kLevels;
    static_assert(kRankGroup / 16 / kAtOnce == kBatches);
    float level[kLevels][8] = {};
    VCA_NO_UNROLL
    for (int batch = 0; batch < kBatches; ++batch) {
      sum_batch(p, reader, rope, tokens, ranks, (slot * kBatches + batch) * kAtOnce, sum);
      // B1's binary counter, in registers: closes as many levels as the number has trailing ones.
      bool open = true;
      VCA_UNROLL
      for (int l = 0; l < kLevels; ++l) {
        const bool closes = open && (batch >> l & 1) != 0;
        VCA_UNROLL
        for (int i = 0; i < 8; ++i) {
          const float joined = add(level[l][i], sum[i]);
          if (open && !closes) level[l][i] = sum[i];
          if (closes) sum[i] = joined;
        }
        open = closes;
      }
    }
  }
  // Samples [first, first + 4) of the group.
  VCA_DEVICE static void sum_batch(const Params& p, const RowReader<kSource>& reader,
                                   const RopeLane<kTurn>& rope, const int32_t* tokens, int ranks,
                                   int first, float (&sum)[8]) {
    Octet<kSource> raw[kAtOnce];
    int32_t token[kAtOnce];
    VCA_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      const int rank = (first + k) * p.offset_step;
      token[k] = rank < ranks ? tokens[rank] : -1;
    }
    VCA_UNROLL
    for (int k = 0; k < kAtOnce; ++k)
      raw[k] = token[k] >= 0 ? reader.load(token[k]) : negative_zeros<kSource>();
    float x[kAtOnce][8];
    VCA_UNROLL
    for (int k = 0; k < kAtOnce; ++k) {
      decode(raw[k], x[k]);
      rope.rotate(p.rope, token[k], token[k] >= 0, raw[k], x[k]);
    }
    VCA_UNROLL
    for (int i = 0; i < 8; ++i) sum[i] = unrolled_tree<2>([&x, i](int k) { return x[k][i]; }, 0);
  }
  static_assert(kAtOnce == 1 << 2);
};

// The mean; one block a unit. Threads are channels of 16 or 8 spans of partial sums.
struct KeyOffset {
  using Params = prep::Params;
  static constexpr int kThreads = 1024;
  static constexpr int kPhases = 2;
  struct Shared {
    float sum[kThreads];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t unit, int thread) {
    const uint32_t index = p.by_h_kv.divide(static_cast<uint32_t>(unit));
    const int64_t head = static_cast<uint32_t>(unit) - index * p.by_h_kv.divisor;
    const int channel = thread & (p.d_pad - 1), slot = thread >> p.d_pad_log2;
    const int slots = kThreads >> p.d_pad_log2;
    const int32_t valid = p.offset_step == 0 ? 0 : p.n_valid[index];
    const int32_t samples = p.offset_step == 1 ? valid : (valid + kSampleStep - 1) / kSampleStep;
    const int32_t n = (valid + kRankGroup - 1) / kRankGroup;
    int32_t span = kLeaf;  // a power of two of partial sums: a subtree
    while (span * slots < n) span *= 2;
    if (phase == 0) {
      const SubInfo& sub = p.subs[index];
      const float* partial =
          p.k_partial + (sub.mu_group_base + head * sub.mu_group_stride) * p.d_pad + channel;
      const int64_t first = slot * span;
      const int64_t last = min_i64(first + span, n);
      s.sum[thread] = spec::tree_sum(ceil_div(last - first, kLeaf), [&](int64_t leaf) {
        float x[kLeaf];
        VCA_UNROLL
        for (int i = 0; i < kLeaf; ++i) {
          const int64_t g = first + leaf * kLeaf + i;
          x[i] = g < last ? partial[g * p.d_pad] : -0.0f;
        }
        return unrolled_tree<3>([&](int i) { return x[i]; }, 0);
      });
      return;
    }
    if (thread >= p.d_pad) return;
    float mean = 0.0f;
    if (n > 0) {
      const float sum = spec::tree_sum(ceil_div(n, span), [&](int64_t i) {
        return s.sum[(static_cast<int>(i) << p.d_pad_log2) + channel];
      });
      mean = mul(sum, inverse_of(samples));
    }
    // Any vector is exact for the output, so a mean whose sum overflowed may be left out.
    p.k_offset[unit * p.d_pad + channel] = spec::is_finite(mean) ? mean : 0.0f;
  }

 private:
  static constexpr int kLeaf = 8;
};

}  // namespace vca::kernels::prep
