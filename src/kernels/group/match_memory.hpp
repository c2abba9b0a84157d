// SPDX-License-Identifier: Apache-2.0
// Pair exchange: what Match keeps in shared memory, and how it writes pairs down.
#pragma once

#include "kernels/group/proposals.hpp"

namespace vca::kernels::group {

template <int kD, int kThreads>
struct MatchMemory {
  using Rounds = Proposals<kD, kThreads>;
  using Held = typename Rounds::Held;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int32_t kMostBytes = 226 * 1024;

  // Where everything lies.
  struct Shape {
    int32_t chunk;  // columns at once
    int32_t columns, barred, taken, best, base, runs, look_up, id, place, is_free, bytes;
  };
  static constexpr Shape shape_of(int64_t max_blocks, int32_t most_columns) {
    const auto blocks = static_cast<int32_t>(max_blocks);
    const int32_t all = (blocks + 31) / 32 * 32;
    int32_t chunk = all < most_columns ? all : most_columns;
    while (shape_with(blocks, chunk).bytes > kMostBytes) chunk -= 32;
    return shape_with(blocks, chunk);
  }

  // Free blocks are columns, in ascending order.
  struct Shared {
    int32_t* counts;  // pairs so far, rows; behind them the free columns of the table, bit by bit
    Held columns;
    uint32_t* barred;
    uint32_t* taken_bits;  // [word] columns that are free no more
    uint64_t* proposal;    // [block] distance and target
    int32_t* runs;         // free blocks in each run of 32
    uint16_t* look_up;     // [row] block; after the proposals: the blocks of this round's pairs
    uint16_t* id;          // [column] block
    uint16_t* place;       // [block] column
    uint8_t* is_free;      // [block]
    int32_t chunk, n_columns;

    VCA_DEVICE explicit Shared(const Shape& shape)
        : counts(shared_at<int32_t>(0)),
          columns{shared_at<uint32_t>(shape.columns), shared_at<int32_t>(shape.base)},
          barred(shared_at<uint32_t>(shape.barred)),
          taken_bits(shared_at<uint32_t>(shape.taken)),
          proposal(shared_at<uint64_t>(shape.best)),
          runs(shared_at<int32_t>(shape.runs)),
          look_up(shared_at<uint16_t>(shape.look_up)),
          id(shared_at<uint16_t>(shape.id)),
          place(shared_at<uint16_t>(shape.place)),
          is_free(shared_at<uint8_t>(shape.is_free)),
          chunk(shape.chunk),
          n_columns(0) {}

    // As Proposals wants it.
    VCA_DEVICE int32_t block_of_row(int32_t row) const { return look_up[row]; }
    VCA_DEVICE int32_t block_of(int32_t column) const { return id[column]; }
    VCA_DEVICE int32_t column_of(int32_t block) const { return place[block]; }
    VCA_DEVICE bool may_meet(int32_t block) const { return is_free[block] != 0; }
    VCA_DEVICE uint32_t taken(int32_t word) const { return taken_bits[word]; }
    VCA_DEVICE uint64_t* best(int32_t row) const { return proposal + look_up[row]; }

    VCA_DEVICE bool all_held() const { return n_columns <= chunk; }
    VCA_DEVICE void load(const Params& p, const Problem& x) const {
      columns.load(p.means + x.block0 * kD, n_columns,
                   [this](int32_t column) { return int32_t{id[column]}; });
    }
  };

  // id: the free blocks, ascending; place: its inverse.
  VCA_DEVICE static void number_columns(const Problem& x, const Shared& s) {
    for (int32_t word = thread(); word < s.chunk / 32; word += kThreads) s.taken_bits[word] = 0;
    const int32_t runs = (x.full + 31) / 32;
    for (int32_t run = warp(); run < runs; run += kWarps) {
      const int32_t b = run * 32 + lane();
      const uint32_t mask = ptx::vote_sync_ballot(b < x.full && s.is_free[b] != 0);
      if (lane() == 0) s.runs[run] = popcount(mask);
    }
    sync_threads(kThreads);
    for (int32_t run = warp(); run < runs; run += kWarps) {
      int32_t before = 0;
      for (int32_t i = lane(); i < run; i += 32) before += s.runs[i];
      before = ptx::redux_sync_add(before);
      const int32_t b = run * 32 + lane();
      const bool is_free = b < x.full && s.is_free[b] != 0;
      const uint32_t mask = ptx::vote_sync_ballot(is_free);
      if (!is_free) continue;
      const int32_t column = before + popcount(mask & ((1u << lane()) - 1u));
      s.id[column] = static_cast<uint16_t>(b);
      s.place[b] = static_cast<uint16_t>(column);
    }
    sync_threads(kThreads);
  }

  // Writes a pair down; its number.
  VCA_DEVICE static int32_t pair(const Params& p, const Problem& x, const Shared& s, int32_t pass,
                                 int32_t a, int32_t b) {
    const int32_t at = ptx::atom_shared_add(&s.counts[0], 1);
    p.pairs[x.block0 + 2 * at] = a;
    p.pairs[x.block0 + 2 * at + 1] = b;
    p.tried[(x.block0 + a) * kPairMemory + pass % kPairMemory] = b;
    p.tried[(x.block0 + b) * kPairMemory + pass % kPairMemory] = a;
    return at;
  }

 private:
  static constexpr Shape shape_with(int32_t blocks, int32_t chunk) {
    Shape s{};
    s.chunk = chunk;
    int32_t at = 64;  // counters, free columns of the table
    const auto take = [&at](int32_t& where, int32_t bytes) {
      where = at;
      at += (bytes + 15) / 16 * 16;
    };
    take(s.columns, chunk * kD);
    take(s.barred, Rounds::barred_bytes(chunk));
    take(s.taken, chunk / 8);
    take(s.best, blocks * 8);
    take(s.base, chunk * 4);
    take(s.runs, (blocks + 31) / 32 * 4);
    take(s.look_up, blocks * 2);
    take(s.id, blocks * 2);
    take(s.place, blocks * 2);
    take(s.is_free, blocks);
    s.bytes = at;
    return s;
  }
};

}  // namespace vca::kernels::group
