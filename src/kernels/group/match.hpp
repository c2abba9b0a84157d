// SPDX-License-Identifier: Apache-2.0
// Pair exchange, first half: which blocks meet.
#pragma once

#include "kernels/group/match_table.hpp"

namespace vca::kernels::group {

// One block of threads a problem. In a round every free block proposes to its nearest free block
// not met in the last passes; mutual proposals pair up. Propose has done the first round's
// proposals. A proposal stays the nearest as long as its target is free, so a round compares only
// blocks whose target has gone, `rows`, with all that are free, `columns`, on tensor cores. Columns
// stay in shared memory from round to round, those that are taken marked by a bit each. They are
// numbered and loaded anew when half of them are gone, or chunk by chunk where there are too many
// of them. The last kTableRows blocks compare all with all once; each warp keeps the distances of
// eight rows in registers.
//
// kMostColumns: at once, numbered in eight bits of a key; fewer in tests.
template <int kD, int32_t kMostColumns = 640, int32_t kTableRows = 96>
struct Match {
  static constexpr int kThreads = 384;
  static constexpr int kMinBlocks = 1;
  using Memory = MatchMemory<kD, kThreads>;
  using Rounds = typename Memory::Rounds;
  using Shared = typename Memory::Shared;
  using Shape = typename Memory::Shape;
  using Table = MatchTable<kD, kThreads>;
  static_assert(kMostColumns / 8 < 255 && kTableRows <= Table::kMostRows);

  static constexpr Shape shape_of(int64_t max_blocks) {
    return Memory::shape_of(max_blocks, kMostColumns);
  }
  static int64_t smem_bytes(const Params& p) { return shape_of(p.max_blocks).bytes; }
  VCA_DEVICE static void run(const Params& p, int32_t pass, int64_t items) {
    if (pass >= *p.most_passes) return;
    const Shape shape = shape_of(p.max_blocks);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item);
      if (exchanges(x, pass)) match(p, x, pass, Shared(shape));
      sync_threads(kThreads);
    }
  }

 private:
  VCA_DEVICE static void match(const Params& p, const Problem& x, int32_t pass, Shared s) {
    start(p, x, s, pass);
    int32_t before = 0;
    for (int32_t round = 0; round < p.rounds && x.full - 2 * before > 1; ++round) {
      const int32_t n_free = x.full - 2 * before;
      if (n_free <= kTableRows && n_free <= s.chunk) {
        Memory::number_columns(x, s);
        s.n_columns = n_free;
        s.load(p, x);
        sync_threads(kThreads);
        Table::match(p, x, s, pass, p.rounds - round);
        break;
      }
      if (round > 0) {
        list_rows(x, s);
        if (2 * n_free <= s.n_columns || s.n_columns == 0 || !s.all_held()) {
          Memory::number_columns(x, s);
          s.n_columns = n_free;
          if (s.all_held()) s.load(p, x);
        }
        sync_threads(kThreads);
        Rounds::propose(p, x, pass, s, s.counts[1], s.all_held());
        sync_threads(kThreads);
      }
      join_mutual(p, x, s, pass, before);
      sync_threads(kThreads);
      const int32_t now = s.counts[0];
      if (now == before) break;
      take_away(s, 2 * (now - before));
      if (thread() == 0) s.counts[1] = 0;
      sync_threads(kThreads);
      before = now;
    }
    sync_threads(kThreads);
    if (thread() == 0) p.n_pairs[x.index] = s.counts[0];
  }

  VCA_DEVICE static void start(const Params& p, const Problem& x, const Shared& s, int32_t pass) {
    int32_t* tried = p.tried + x.block0 * kPairMemory;
    for (int32_t b = thread(); b < x.full; b += kThreads) {
      const int32_t target = p.proposals[x.block0 + b];
      s.proposal[b] = target == kUnknown ? Rounds::kNone : static_cast<uint64_t>(target);
      s.is_free[b] = 1;
      if (pass == 0)
        for (int i = 0; i < kPairMemory; ++i) tried[b * kPairMemory + i] = kUnknown;
    }
    if (thread() < 2) s.counts[thread()] = 0;
    sync_threads(kThreads);
  }

  // Blocks whose target has gone. Who found nobody will not find one later.
  VCA_DEVICE static void list_rows(const Problem& x, const Shared& s) {
    for (int32_t a = thread(); a < x.full; a += kThreads) {
      const uint64_t best = s.proposal[a];
      if (s.is_free[a] == 0 || best == Rounds::kNone || s.is_free[best & 0xFFFFFFFFu] != 0)
        continue;
      s.proposal[a] = Rounds::kNone;
      s.look_up[ptx::atom_shared_add(&s.counts[1], 1)] = static_cast<uint16_t>(a);
    }
  }

  // Free blocks that propose to each other pair up.
  VCA_DEVICE static void join_mutual(const Params& p, const Problem& x, const Shared& s,
                                     int32_t pass, int32_t before) {
    for (int32_t a = thread(); a < x.full; a += kThreads) {
      if (s.is_free[a] == 0) continue;
      const auto b = static_cast<int32_t>(s.proposal[a] & 0xFFFFFFFFu);
      if (s.proposal[a] != Rounds::kNone && b > a &&
          static_cast<int32_t>(s.proposal[b] & 0xFFFFFFFFu) == a) {
        const int32_t at = Memory::pair(p, x, s, pass, a, b) - before;
        s.look_up[2 * at] = static_cast<uint16_t>(a);
        s.look_up[2 * at + 1] = static_cast<uint16_t>(b);
      }
    }
  }

  // Blocks of this round's pairs are free no more, nor are their columns.
  VCA_DEVICE static void take_away(const Shared& s, int32_t n) {
    for (int32_t i = thread(); i < n; i += kThreads) {
      const int32_t b = s.look_up[i];
      s.is_free[b] = 0;
      if (s.n_columns > 0 && s.all_held())
        ptx::red_shared_or(&s.taken_bits[s.place[b] / 32], 1u << s.place[b] % 32);
    }
  }
};

}  // namespace vca::kernels::group
