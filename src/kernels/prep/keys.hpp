// SPDX-License-Identifier: Apache-2.0
// One K tile: gather, RoPE, minus the offset, optional Hadamard, codes per scale group, INT8 or
// E4M3 (docs/numerics.md B3, B4, D1).
//
// A warp holds rows of one scale group only (columns n with n % 8 / 2 = group), so a group's
// maximum is one reduction and one exchange between the warps that share it; the values wait in
// registers. A pad column loads the token whose codes it has to copy: the lowest valid column of
// its group, column 0 where the group is empty. Repeating a member changes no maximum.
#pragma once

#include "kernels/prep/rope.hpp"
#include "kernels/prep/rows.hpp"
#include "spec/tiles.hpp"

namespace vca::kernels::prep {

//
// Params::only_maximum: no codes, but the largest |k| of the tile, as the first of its scales.
// kSteps: rows of a thread; kBatch: of them in flight. kCtas: CTAs of 256 threads, or as many
// threads, an SM holds.
template <Source kSource, int kDPad, Turn kTurn, int kSteps, int kBatch, int kCtas>
struct KeyTilesTuned {
  using Params = prep::Params;
  static constexpr Turn kTurnOf = kTurn;
  using Lanes = RowLanes<kDPad, kSteps>;
  static constexpr int kThreads = Lanes::kThreads;
  static constexpr int kMinBlocks = kCtas * 256 / kThreads;
  // Shared memory: a maximum a warp, then the offset, which would take eight registers otherwise.
  static constexpr uint32_t kOffset = 64;
  static constexpr uint32_t kSharedBytes = kOffset + kDPad * 4;
  static_assert(4 * Lanes::kWarps <= kOffset);

  VCA_DEVICE static void run(const Params& p, uint32_t block_index) {
    KvBlock block;
    if (!locate(p, block_index, block)) return;
    const uint32_t thread = ptx::thread_index(), lane = thread % 32, warp = thread / 32;
    const int channel = static_cast<int>(lane % Lanes::kLanes) * 8;
    const auto side = static_cast<int>(lane / Lanes::kLanes);
    const auto group = static_cast<int>(warp % 4);
    // Which kSteps of the 16 row pairs of the group: the warps', then the lanes'.
    const int part = static_cast<int>(warp / 4) * (Lanes::kRowsAtOnce / 2) + side / 2;
    const int column0 = 8 * kSteps * part + 2 * group + side % 2;
    // Of pads. With one scale a head all copy column 0.
    const int source = !p.e4m3_head && 2 * group < block.n_valid ? 2 * group : 0;
    const RowReader<kSource> reader(p, p.k, block.batch, block.head, channel);
    const RopeLane<kTurn> rope(p.rope, channel, lane);
    if (thread < kDPad)
      ptx::st_shared_f32(ptx::dynamic_smem() + kOffset + thread * 4,
                         p.k_offset[int64_t{block.unit} * kDPad + thread]);

    float x[kSteps][8];
    float amax = 0.0f;
    VCA_UNROLL
    for (int step0 = 0; step0 < kSteps; step0 += kBatch) {
      Octet<kSource> raw[kBatch];
      int32_t token[kBatch];
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        const int n = column0 + 8 * (step0 + k);
        token[k] = token_of(p, block, n < block.n_valid ? n : source);
      }
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) raw[k] = reader.load(token[k]);
      if (step0 == 0) ptx::bar_sync(0, kThreads);
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        float(&row)[8] = x[step0 + k];
        decode(raw[k], row);
        rope.rotate(p.rope, token[k], true, raw[k], row);
        subtract_offset(channel, row);
        if (p.hadamard) hadamard<kDPad>(row, lane);
        amax = ptx::max_f32(amax, max_abs8(row));
      }
    }
    if (p.only_maximum) {
      amax = cta_max<Lanes>(amax);
      if (thread == 0) p.k_scale[int64_t{block.index} * 4] = amax;
      return;
    }
    const float factor = group_factor(p, block, amax, group);
    uint8_t* out = p.k_tiles + int64_t{block.index} * spec::t128_qk_tile_bytes(kDPad);
    VCA_UNROLL
    for (int k = 0; k < kSteps; ++k)
      store_codes<kDPad>(p, out, column0 + 8 * k, channel, x[k], factor);
  }

 private:
  VCA_DEVICE static void subtract_offset(int channel, float (&x)[8]) {
    VCA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const ptx::Words4 offset = ptx::ld_shared_v4(ptx::dynamic_smem() + kOffset +
                                                   static_cast<uint32_t>(channel + 4 * half) * 4);
      VCA_UNROLL
      for (int i = 0; i < 4; ++i)
        x[4 * half + i] = sub(x[4 * half + i], ptx::bits_float(offset.word[i]));
    }
  }
  // The maxima of a group's warps meet in shared memory. An empty group takes group 0's.
  VCA_DEVICE static float group_factor(const Params& p, const KvBlock& block, float amax,
                                       int group) {
    const uint32_t thread = ptx::thread_index();
    const ptx::SmemAddr shared = ptx::dynamic_smem();
    amax = lanes_max<32>(amax);
    if (thread % 32 == 0) ptx::st_shared_f32(shared + thread / 32 * 4, amax);
    ptx::bar_sync(0, kThreads);
    const auto from = static_cast<uint32_t>(2 * group < block.n_valid ? group : 0);
    float all = 0.0f;
    VCA_UNROLL
    for (uint32_t w = 0; w < Lanes::kWarps; w += 4)
      all = ptx::max_f32(all, ptx::ld_shared_f32(shared + (from + w) * 4));
    if (p.e4m3_head) all = p.k_head_max[block.unit];
    const Quantiser quantiser = make_quantiser(all, p.code_max);
    if (thread < 128 && thread % 32 == 0)
      p.k_scale[int64_t{block.index} * 4 + group] = quantiser.scale;
    return quantiser.factor;
  }
};

// BF16 measured on an H200; the others as their registers allow.
template <Source kSource, int kDPad, Turn kTurn>
struct KeyTiles : KeyTilesTuned<kSource, kDPad, kTurn, 4, kTurn == Turn::grid ? 2 : 4,
                                Octet<kSource>::kWide || kTurn == Turn::any ? 2 : 4> {};

}  // namespace vca::kernels::prep
