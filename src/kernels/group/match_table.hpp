// SPDX-License-Identifier: Apache-2.0
// Pair exchange: the last rounds of Match.
#pragma once

#include "kernels/group/match_memory.hpp"

namespace vca::kernels::group {

// The remaining rounds among the n free blocks, columns 0 to n - 1, whose distances are computed
// once and stay in registers.
template <int kD, int kThreads>
struct MatchTable {
  using Memory = MatchMemory<kD, kThreads>;
  using Rounds = typename Memory::Rounds;
  using Held = typename Memory::Held;
  using Shared = typename Memory::Shared;
  static constexpr int kSteps = Held::kSteps, kTile = Held::kTile;
  static constexpr int32_t kMostRows = 8 * Memory::kWarps;
  static constexpr uint16_t kNobody = UINT16_MAX;

  // A warp has eight rows; a lane the keys of two of them, 2 t and 2 t + 1, with columns g, g + 8,
  // ...: distance and column in one number. A column that is taken gets the worst key.
  VCA_DEVICE static void match(const Params& p, const Problem& x, const Shared& s, int32_t pass,
                               int32_t rounds) {
    const int32_t n = s.n_columns, words = (n + 31) / 32, stride = Rounds::stride_of(s.chunk);
    const int g = lane() / 4, t = lane() % 4;
    const int32_t row0 = warp() * 8;
    constexpr int kColumns = 16;  // of a lane
    int32_t key[2][kColumns];
    uint32_t* const barred = s.barred + warp() * Rounds::kItemRows * stride;
    if (row0 < n) {
      Rounds::bar(p, x, pass, s, 0,
                  lane() < 8 && row0 + lane() < n ? s.id[row0 + lane()] : kUnknown, 0, words,
                  barred + lane() * stride);
      ptx::bar_warp_sync();
      const RowShare<kD> share[1] = {row0 + g < n ? s.columns.share_of(row0 + g, t)
                                                  : empty_share<kD>()};
      VCA_UNROLL
      for (int tile = 0; tile < kColumns / 2; ++tile) {
        int32_t dot[1][4] = {};
        const bool real = tile * kTile < words * 32;
        Word4 column[kSteps];
        VCA_UNROLL
        for (int step = 0; step < kSteps; ++step)
          column[step] = real ? s.columns.tile_step(tile, step) : Word4{0, 0, 0, 0};
        Held::multiply(dot, column, share);
        VCA_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int32_t c = tile * kTile + half * 8 + g;
          const int32_t base = real ? s.columns.base[c] : INT32_MAX;
          VCA_UNROLL
          for (int e = 0; e < 2; ++e) {
            const bool open =
                base != INT32_MAX && (barred[(2 * t + e) * stride + c / 32] >> c % 32 & 1u) == 0;
            key[e][2 * tile + half] =
                open ? (base & ~255) - 512 * dot[0][2 * half + e] + c : INT32_MAX;
          }
        }
      }
    }
    uint32_t* const free_columns = reinterpret_cast<uint32_t*>(s.counts + 4);
    uint16_t* const proposal = s.look_up;
    if (thread() < 4) {
      const int32_t left = n - 32 * thread();
      free_columns[thread()] = left >= 32 ? ~0u : left > 0 ? (1u << left) - 1u : 0u;
    }
    sync_threads(kThreads);
    int32_t now = s.counts[0];
    for (int32_t round = 0; round < rounds; ++round) {
      const int32_t before = now;
      uint32_t is_free[4];
      VCA_UNROLL
      for (int i = 0; i < 4; ++i) is_free[i] = free_columns[i] >> g;
      if (row0 < n) {
        VCA_UNROLL
        for (int e = 0; e < 2; ++e) {
          int32_t best = INT32_MAX;
          VCA_UNROLL
          for (int i = 0; i < kColumns; i += 2) {
            VCA_UNROLL
            for (int j = i; j < i + 2; ++j)
              if ((is_free[j / 4] >> (8 * (j % 4)) & 1u) == 0) key[e][j] = INT32_MAX;
            best = min3(best, key[e][i], key[e][i + 1]);
          }
          VCA_UNROLL
          for (uint32_t mask = 4; mask < 32; mask *= 2) {
            const int32_t other = ptx::shfl_sync_bfly(best, mask);
            best = other < best ? other : best;
          }
          const int32_t row = row0 + 2 * t + e;
          if (g == 0 && row < n)
            proposal[row] = best == INT32_MAX ? kNobody : static_cast<uint16_t>(best & 255);
        }
      }
      sync_threads(kThreads);
      if (warp() < words) {
        const int32_t a = thread();
        const bool is_open = a < n && (free_columns[warp()] >> lane() & 1u) != 0;
        const uint16_t b = is_open ? proposal[a] : kNobody;
        const bool mutual = b != kNobody && proposal[b] == a;
        const uint32_t taken = ptx::vote_sync_ballot(mutual);
        if (mutual && a < b) Memory::pair(p, x, s, pass, s.id[a], s.id[b]);
        if (lane() == 0 && taken != 0) free_columns[warp()] &= ~taken;
      }
      sync_threads(kThreads);
      now = s.counts[0];
      if (now == before) break;
    }
  }
};

}  // namespace vca::kernels::group
