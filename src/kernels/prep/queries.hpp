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
template <Source kSource, int kDPad, Turn kTurn, int kBatch, int kCtas>
struct QueryTilesTuned {
  using Params = prep::Params;
  static constexpr Turn kTurnOf = kTurn;
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
    const auto row0 = static_cast<int32_t>(at.item) * kRows;
    const auto rows = static_cast<int>(min_i64(kRows, sub.q_len - row0));
    const int64_t tile = sub.q_tile_base + int64_t{at.head} * sub.n_q_tiles + at.item;
    const int32_t token0 = static_cast<int32_t>(sub.q_begin) + row0;
    uint8_t* out = p.q_tiles + tile * spec::t128_qk_tile_bytes(kDPad);
    const RowReader<kSource> reader(p, p.q, sub.batch, at.head, channel);
    const RopeLane<kTurn> rope(p.rope, channel, lane);

    float tile_max = 0.0f;
    VCA_NO_UNROLL
    for (int row = row_in_16; row < kRows; row += 16 * kBatch) {
      Octet<kSource> raw[kBatch];
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        const int there = row + 16 * k < rows ? row + 16 * k : rows - 1;
        raw[k] = reader.load(token0 + there);
      }
      float x[kBatch][8], amax[kBatch];
      VCA_UNROLL
      for (int k = 0; k < kBatch; ++k) {
        const bool exists = row + 16 * k < rows;
        decode(raw[k], x[k]);
        rope.rotate(p.rope, token0 + row + 16 * k, exists, raw[k], x[k]);
        if (p.qk_offset != nullptr && !p.only_maximum)
          store_offset(p, at, tile, row + 16 * k, exists, channel, lane, x[k]);
        if (p.negate_q) {
          VCA_UNROLL
          for (int i = 0; i < 8; ++i) x[k][i] = -x[k][i];
        }
        if (rows < kRows && !exists) {
          VCA_UNROLL
          for (int i = 0; i < 8; ++i) x[k][i] = 0.0f;
        }
        if (p.hadamard) hadamard<kDPad>(x[k], lane);
        amax[k] = lanes_max<2 * Lanes::kLanes>(max_abs8(x[k]));
      }
      if (p.only_maximum) {
        VCA_UNROLL
        for (int k = 0; k < kBatch; ++k) tile_max = ptx::max_f32(tile_max, amax[k]);
        continue;
      }
      // Every lane of the pair knows all four maxima; lane k makes the quantiser of row k.
      const uint32_t own = lane % kBatch;
      const int first = row - row_in_16 + r;  // of the pair
      float own_max = pick(amax, own);
      if (p.e4m3_head)
        own_max = first + 16 * static_cast<int>(own) < rows
                      ? p.q_head_max[at.sub * int64_t{p.h_q} + at.head]
                      : 0.0f;
      const Quantiser quantiser = make_quantiser(own_max, p.code_max);
      if (lane % (2 * Lanes::kLanes) < kBatch)
        p.q_unit[tile * (kRows / 2) + first / 16 * 8 + r + own * 8] = quantiser.scale;
      VCA_UNROLL
      for (uint32_t k = 0; k < kBatch; ++k) {
        const uint32_t from = lane / (2 * Lanes::kLanes) * (2 * Lanes::kLanes) + k;
        const float factor =
            ptx::bits_float(ptx::shfl_sync_idx(ptx::float_bits(quantiser.factor), from));
        store_codes<kDPad>(p, out, row + 16 * static_cast<int>(k), channel, x[k], factor);
      }
    }
    if (p.only_maximum) {
      tile_max = cta_max<Lanes>(tile_max);
      if (thread == 0) p.q_unit[tile * (kRows / 2)] = tile_max;
    }
  }

 private:
  VCA_DEVICE static void store_offset(const Params& p, const Place& at, int64_t tile, int row,
                                      bool exists, int channel, uint32_t lane,
                                      const float (&x)[8]) {
    const int64_t unit = int64_t{at.sub} * p.h_kv + p.by_group.divide(at.head);
    float offset[8];
    load8(p.k_offset + unit * kDPad + channel, offset);
    VCA_UNROLL
    for (int i = 0; i < 8; ++i) offset[i] = mul(x[i], offset[i]);
    const float scaled = mul(p.scale_f32, lanes_sum<Lanes::kLanes>(sum8(offset)));
    if (lane % Lanes::kLanes == 0 && exists)
      p.qk_offset[tile * kRows + row] =
          spec::is_nan(scaled) ? spec::float_from_bits(0x7FC00000u) : scaled;
  }
};

// BF16 measured on an H200; the others as their registers allow.
template <Source kSource, int kDPad, Turn kTurn>
struct QueryTiles : QueryTilesTuned<kSource, kDPad, kTurn, kTurn == Turn::none ? 4 : 2,
                                    kTurn == Turn::grid                              ? 4
                                    : kTurn == Turn::none && kSource == Source::bf16 ? 3
                                                                                     : 2> {};

}  // namespace vca::kernels::prep
