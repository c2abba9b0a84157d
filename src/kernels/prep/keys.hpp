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
// kBatch: rows of a thread in flight. kCtas: CTAs of 256 threads, or as many threads, an SM holds.
template <Source kSource, int kDPad, int kBatch, int kCtas>
struct KeyTilesTuned {
  using Params = prep::Params;
  using Lanes = RowLanes<kDPad>;
  static constexpr int kThreads = Lanes::kThreads;
  static constexpr int kMinBlocks = kCtas * 256 / kThreads;
  static constexpr uint32_t kSharedBytes = 4 * Lanes::kWarps;

  VCA_DEVICE static void run(const Params& p, uint32_t block_index) {
    KvBlock block;
    if (!locate(p, block_index, block)) return;
    const uint32_t thread = ptx::thread_index(), lane = thread % 32, warp = thread / 32;
    const int channel = static_cast<int>(lane % Lanes::kLanes) * 8;
    const auto side = static_cast<int>(lane / Lanes::kLanes);
    const auto group = static_cast<int>(warp % 4);
    // Half of the tile: another warp's (head_dim 128) or the next lanes' (64).
    const int half = kDPad == 128 ? static_cast<int>(warp / 4) : side / 2;
    const int column0 = 64 * half + 2 * group + side % 2;
    // Of pads. With one scale a head all copy column 0.
    const int source = !p.e4m3_head && 2 * group < block.n_valid ? 2 * group : 0;
    const int64_t base = row_offset(p.k, block.batch, block.head, 0);
    const RopeLane rope = rope_lane(p.rope, channel, lane);

    float x[Lanes::kSteps][8];
    float amax = 0.0f;
    VCA_UNROLL
    for (int step0 = 0; step0 < Lanes::kSteps; step0 += kBatch) {
      Octet<kSource> raw[kBatch];
      int32_t token[kBatch];
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        const int n = column0 + 8 * (step0 + k);
        token[k] = token_of(p, block, n < block.n_valid ? n : source);
      }
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k)
        raw[k] = load_octet<kSource, true>(p, p.k, base, token[k], channel);
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        float(&row)[8] = x[step0 + k];
        decode(raw[k], row);
        rotate(p.rope, rope, token[k], true, raw[k], row);
        float offset[8];
        load8(p.k_offset + block.unit * kDPad + channel, offset);
        VCA_UNROLL
        for (int i = 0; i < 8; ++i) row[i] = sub(row[i], offset[i]);
        if (p.hadamard) hadamard<kDPad>(row, lane);
        amax = ptx::max_f32(amax, max_abs8(row));
      }
    }
    if (p.only_maximum) {
      amax = cta_max<kDPad>(amax);
      if (thread == 0) p.k_scale[block.index * 4] = amax;
      return;
    }
    const Quantiser quantiser = group_quantiser(p, block, amax, group);
    uint8_t* out = p.k_tiles + block.index * spec::t128_qk_tile_bytes(kDPad);
    VCA_UNROLL
    for (int k = 0; k < Lanes::kSteps; ++k)
      store_codes<kDPad>(p, out, column0 + 8 * k, channel, x[k], quantiser.factor);
  }

 private:
  // The maxima of a group's warps meet in shared memory. An empty group takes group 0's.
  VCA_DEVICE static Quantiser group_quantiser(const Params& p, const KvBlock& block, float amax,
                                              int group) {
    const uint32_t thread = ptx::thread_index();
    const ptx::SmemAddr shared = ptx::dynamic_smem();
    amax = lanes_max<32>(amax);
    if (thread % 32 == 0) ptx::st_shared_f32(shared + thread / 32 * 4, amax);
    ptx::bar_sync(0, kThreads);
    const auto from = static_cast<uint32_t>(2 * group < block.n_valid ? group : 0);
    float all = ptx::ld_shared_f32(shared + from * 4);
    if constexpr (Lanes::kWarps == 8)
      all = ptx::max_f32(all, ptx::ld_shared_f32(shared + (from + 4) * 4));
    if (p.e4m3_head) all = p.k_head_max[block.unit];
    const Quantiser quantiser = make_quantiser(all, p.code_max);
    if (thread < 128 && thread % 32 == 0) p.k_scale[block.index * 4 + group] = quantiser.scale;
    return quantiser;
  }
};

// The values of a thread alone take 64 registers.
template <Source kSource, int kDPad>
struct KeyTiles : KeyTilesTuned<kSource, kDPad, 4, 2> {};

}  // namespace vca::kernels::prep
