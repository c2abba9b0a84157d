// SPDX-License-Identifier: Apache-2.0
// One Q tile: RoPE, sign of the scale, optional Hadamard, codes per row pair {16w + r, 16w + r +
// 8}; scale * (q . k_offset) for LSE (docs/numerics.md B4, B5, D3). q_unit receives the raw scales:
// finish.hpp turns them into units once the largest is known.
//
// A row pair belongs to neighbouring lanes of one warp, so nothing is shared between warps, there
// is no barrier and no shared memory; a warp's store is two (head_dim 64: four) whole tile rows.
#pragma once

#include "kernels/prep/rope.hpp"
#include "kernels/prep/rows.hpp"
#include "spec/tiles.hpp"

namespace vca::kernels::prep {

// Params::only_maximum: no codes, but the largest |q| of the tile, as the first of its raw scales.
// kBatch: rows of a thread in flight. kCtas: CTAs of 256 threads, or as many threads, an SM holds.
template <Source kSource, int kDPad, int kBatch, int kCtas>
struct QueryTilesTuned {
  using Params = prep::Params;
  using Lanes = RowLanes<kDPad>;
  static constexpr int kThreads = Lanes::kThreads;
  static constexpr int kMinBlocks = kCtas * 256 / kThreads;
  static constexpr uint32_t kSharedBytes = 4 * Lanes::kWarps;  // only_maximum

  VCA_DEVICE static void run(const Params& p, uint32_t block) {
    const Place at = place_of(block, p.by_h_q, p.by_q_tiles);
    const SubInfo& sub = p.subs[at.sub];
    if (at.item >= static_cast<uint32_t>(sub.n_q_tiles)) return;
    const uint32_t thread = ptx::thread_index(), lane = thread % 32;
    const int channel = static_cast<int>(lane % Lanes::kLanes) * 8;
    // Row within 16: r, and its partner r + 8 in the next lanes.
    const auto side = static_cast<int>(lane / Lanes::kLanes);
    const int r = static_cast<int>(thread / 32) * (Lanes::kRowsAtOnce / 2) + side / 2;
    const int row_in_16 = r + 8 * (side % 2);
    const int64_t row0 = int64_t{at.item} * kRows;
    const auto rows = static_cast<int>(min_i64(kRows, sub.q_len - row0));
    const int64_t tile = sub.q_tile_base + int64_t{at.head} * sub.n_q_tiles + at.item;
    const auto token0 = static_cast<int32_t>(sub.q_begin + row0);
    const int64_t base = row_offset(p.q, sub.batch, at.head, 0);
    uint8_t* out = p.q_tiles + tile * spec::t128_qk_tile_bytes(kDPad);
    const RopeLane rope = rope_lane(p.rope, channel, lane);

    float tile_max = 0.0f;
    VCA_NO_UNROLL
    for (int step0 = 0; step0 < Lanes::kSteps; step0 += kBatch) {
      Octet<kSource> raw[kBatch];
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        const int row = 16 * (step0 + k) + row_in_16;
        raw[k] = {};
        if (row < rows) raw[k] = load_octet<kSource, true>(p, p.q, base, token0 + row, channel);
      }
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        const int row = 16 * (step0 + k) + row_in_16;
        float x[8];
        decode(raw[k], x);
        rotate(p.rope, rope, token0 + row, row < rows, raw[k], x);
        if (p.qk_offset != nullptr && !p.only_maximum)
          store_offset(p, at, tile, row, rows, channel, lane, x);
        if (p.negate_q && row < rows) {
          VCA_UNROLL
          for (int i = 0; i < 8; ++i) x[i] = -x[i];
        }
        if (p.hadamard) hadamard<kDPad>(x, lane);
        float amax = lanes_max<2 * Lanes::kLanes>(max_abs8(x));
        if (p.only_maximum) {
          tile_max = ptx::max_f32(tile_max, amax);
          continue;
        }
        if (p.e4m3_head)
          amax =
              16 * (step0 + k) + r < rows ? p.q_head_max[at.sub * int64_t{p.h_q} + at.head] : 0.0f;
        const Quantiser quantiser = make_quantiser(amax, p.code_max);
        store_codes<kDPad>(p, out, row, channel, x, quantiser.factor);
        if (lane % (2 * Lanes::kLanes) == 0)
          p.q_unit[tile * (kRows / 2) + (step0 + k) * 8 + r] = quantiser.scale;
      }
    }
    if (p.only_maximum) {
      tile_max = cta_max<kDPad>(tile_max);
      if (thread == 0) p.q_unit[tile * (kRows / 2)] = tile_max;
    }
  }

 private:
  VCA_DEVICE static void store_offset(const Params& p, const Place& at, int64_t tile, int row,
                                      int rows, int channel, uint32_t lane, const float (&x)[8]) {
    const int64_t unit = int64_t{at.sub} * p.h_kv + p.by_group.divide(at.head);
    float offset[8];
    load8(p.k_offset + unit * kDPad + channel, offset);
    VCA_UNROLL
    for (int i = 0; i < 8; ++i) offset[i] = mul(x[i], offset[i]);
    const float dot = lanes_sum<Lanes::kLanes>(sum8(offset));
    const float scaled = mul(p.scale_f32, dot);
    if (lane % Lanes::kLanes == 0 && row < rows)
      p.qk_offset[tile * kRows + row] =
          spec::is_nan(scaled) ? spec::float_from_bits(0x7FC00000u) : scaled;
  }
};

template <Source kSource, int kDPad>
struct QueryTiles : QueryTilesTuned<kSource, kDPad, 4, 2> {};

}  // namespace vca::kernels::prep
