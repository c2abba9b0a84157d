// SPDX-License-Identifier: Apache-2.0
// Pair exchange: the nearest block of every block, among those it may meet.
#pragma once

#include "kernels/group/columns.hpp"
#include "kernels/group/distances.hpp"

namespace vca::kernels::group {

inline constexpr int32_t kUnknown = -1;  // no block: partner of a pass that has not been, no target

// Rows look for their nearest column, on tensor cores. Field says which blocks these are:
//
//   columns                 in shared memory, Columns
//   block_of_row(row)       and its place among the columns, column_of(block)
//   block_of(column)
//   may_meet(block)         whether it is among the columns at all
//   taken(word)             columns that are out, bit by bit
//   best(row)               distance and target so far, uint64 in shared memory
//   barred                  [warp][row][word] columns that a row must not choose, bit by bit
//   chunk, n_columns        columns at once, and all of them
template <int kD, int kThreads>
struct Proposals {
  using Held = Columns<kD, kThreads>;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kItemRows = 32;
  static constexpr int kSteps = Held::kSteps, kTile = Held::kTile, kWord = Held::kWord;
  static constexpr uint64_t kNone = UINT64_MAX;  // no (distance, block)

  // Words of a row's bits: odd, so that rows fall into different banks.
  static constexpr int32_t stride_of(int32_t chunk) { return chunk / kWord | 1; }
  static constexpr int32_t barred_bytes(int32_t chunk) {
    return kWarps * kItemRows * stride_of(chunk) * 4;
  }

  // `is_loaded`: whether all columns are in shared memory; they are loaded chunk by chunk
  // otherwise.
  template <class Field>
  VCA_DEVICE static void propose(const Params& p, const Problem& x, int32_t pass,
                                 const Field& field, int32_t rows, bool is_loaded) {
    VCA_UNROLL_1
    for (int32_t c0 = 0; c0 < field.n_columns; c0 += field.chunk) {
      const int32_t left = field.n_columns - c0, n = left < field.chunk ? left : field.chunk;
      if (!is_loaded) {
        field.columns.load(p.means + x.block0 * kD, n,
                           [&](int32_t column) { return field.block_of(c0 + column); });
        sync_threads(kThreads);
      }
      meet(p, x, pass, field, c0, n, rows);
      if (!is_loaded) sync_threads(kThreads);
    }
  }

  // The bits of a row's words: itself, and those it met lately. `block` -1: no row.
  template <class Field>
  VCA_DEVICE static void bar(const Params& p, const Problem& x, int32_t pass, const Field& field,
                             int32_t c0, int32_t block, int32_t word0, int32_t word1,
                             uint32_t* bits) {
    for (int32_t word = word0; word < word1; ++word) bits[word] = field.taken(word);
    if (block < 0) return;
    int32_t avoid[kPairMemory + 1];
    avoid[kPairMemory] = block;
    VCA_UNROLL
    for (int i = 0; i < kPairMemory; ++i)
      avoid[i] = pass > 0 ? p.tried[(x.block0 + block) * kPairMemory + i] : kUnknown;
    VCA_UNROLL
    for (int i = 0; i <= kPairMemory; ++i) {
      if (avoid[i] < 0 || !field.may_meet(avoid[i])) continue;
      const int32_t column = field.column_of(avoid[i]) - c0;
      if (column >= word0 * kWord && column < word1 * kWord)
        bits[column / kWord] |= 1u << column % kWord;
    }
  }

 private:
  // All rows with the n columns in shared memory. Warps take even shares of (32 rows, 32 columns).
  template <class Field>
  VCA_DEVICE static void meet(const Params& p, const Problem& x, int32_t pass, const Field& field,
                              int32_t c0, int32_t n, int32_t rows) {
    const int32_t words = (n + kWord - 1) / kWord;
    const int32_t items = (rows + kItemRows - 1) / kItemRows * words;
    int32_t item = warp() * items / kWarps;
    const int32_t last = (warp() + 1) * items / kWarps;
    while (item < last) {
      const int32_t word0 = item % words;
      const int32_t left = last - item;
      const int32_t word1 = left < words - word0 ? word0 + left : words;
      meet_words(p, x, pass, field, c0, item / words * kItemRows, rows, word0, word1);
      item += word1 - word0;
    }
  }

  template <class Field>
  VCA_DEVICE static void meet_words(const Params& p, const Problem& x, int32_t pass,
                                    const Field& field, int32_t c0, int32_t row0, int32_t rows,
                                    int32_t word0, int32_t word1) {
    const int32_t stride = stride_of(field.chunk);
    uint32_t* const barred = field.barred + warp() * kItemRows * stride;
    ptx::bar_warp_sync();  // all have read the bits of the rows before
    bar(p, x, pass, field, c0, row0 + lane() < rows ? field.block_of_row(row0 + lane()) : kUnknown,
        word0, word1, barred + lane() * stride);
    ptx::bar_warp_sync();
    const int g = lane() / 4, t = lane() % 4;
    constexpr int kGroups = kItemRows / 8;
    RowShare<kD> share[kGroups];
    VCA_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      const int32_t row = row0 + 8 * i + g;
      if (row >= rows)
        share[i] = empty_share<kD>();
      else if (field.n_columns <= field.chunk)
        share[i] = field.columns.share_of(field.column_of(field.block_of_row(row)), t);
      else
        share[i] = share_from_global<kD>(p.means + (x.block0 + field.block_of_row(row)) * kD, t);
    }
    int32_t best[2 * kGroups];  // rows 8 i + 2 t and the next
    VCA_UNROLL
    for (int i = 0; i < 2 * kGroups; ++i) best[i] = INT32_MAX;
    VCA_UNROLL_1
    for (int32_t word = word0; word < word1; ++word) {
      uint32_t bits[2 * kGroups];
      VCA_UNROLL
      for (int i = 0; i < 2 * kGroups; ++i)
        bits[i] = barred[(i / 2 * 8 + 2 * t + i % 2) * stride + word] >> g;
      VCA_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int32_t tile = word * 2 + j;
        Word4 column[kSteps];
        VCA_UNROLL
        for (int step = 0; step < kSteps; ++step)
          column[step] = field.columns.tile_step(tile, step);
        const int32_t near = field.columns.base[tile * kTile + g],
                      far = field.columns.base[tile * kTile + 8 + g];
        int32_t dot[kGroups][4] = {};
        Held::multiply(dot, column, share);
        VCA_UNROLL
        for (int i = 0; i < kGroups; ++i) VCA_UNROLL
        for (int e = 0; e < 2; ++e) {
          const uint32_t here = bits[2 * i + e] >> (16 * j);
          best[2 * i + e] =
              min3(best[2 * i + e], (here & 1u) != 0 ? INT32_MAX : near - 512 * dot[i][e],
                   (here & 256u) != 0 ? INT32_MAX : far - 512 * dot[i][2 + e]);
        }
      }
    }
    Candidate own[2 * kGroups];
    VCA_UNROLL
    for (int i = 0; i < 2 * kGroups; ++i) {
      own[i] = {INT32_MAX, INT32_MAX};
      if (best[i] != INT32_MAX) own[i] = {best[i] >> 8, ((best[i] & 255) - 1) * 8 + g};
    }
    // Eight lanes have seen columns of the same eight rows; each comes to know one row.
    VCA_UNROLL
    for (int step = 0; step < 3; ++step) {
      const bool upper = (g >> step & 1) != 0;
      const int half = 4 >> step;
      VCA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i >= half) continue;
        const Candidate sent = upper ? own[i] : own[i + half];
        const Candidate kept = upper ? own[i + half] : own[i];
        const Candidate other{ptx::shfl_sync_bfly(sent.key, 4u << step),
                              ptx::shfl_sync_bfly(sent.index, 4u << step)};
        own[i] = before(other, kept) ? other : kept;
      }
    }
    const int slot = (g & 1) * 4 + (g & 2) + (g >> 2);
    const int32_t row = row0 + slot / 2 * 8 + 2 * t + slot % 2;
    // Of equal columns the lowest: blocks ascend with columns.
    if (row < rows && own[0].index != INT32_MAX)
      ptx::red_shared_min(field.best(row),
                          uint64_t{static_cast<uint32_t>(own[0].key) ^ 0x80000000u} << 32 |
                              static_cast<uint32_t>(field.block_of(c0 + own[0].index)));
  }
};

// The first round of Match, in which every full block looks for its nearest among all others,
// spread over all processors: 128 blocks a CTA. kMostColumns: as Match's.
template <int kD, int32_t kMostColumns = 640>
struct Propose {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 2;
  static constexpr int kItemRows = 128;
  using Rounds = Proposals<kD, kThreads>;
  using Held = typename Rounds::Held;

  static constexpr int32_t chunk_of(int64_t max_blocks) {
    const int64_t all = ceil_div(max_blocks, Held::kWord) * Held::kWord;
    return static_cast<int32_t>(all < kMostColumns ? all : kMostColumns);
  }
  // Shared memory: columns | barred | base | best.
  static int64_t smem_bytes(const Params& p) {
    const int32_t chunk = chunk_of(p.max_blocks);
    return int64_t{chunk} * (kD + 4) + Rounds::barred_bytes(chunk) + kItemRows * 8;
  }
  static int64_t tiles(const Params& p) { return ceil_div(p.max_blocks, kItemRows); }

  VCA_DEVICE static void run(const Params& p, int32_t pass, int64_t items) {
    if (pass >= *p.most_passes) return;
    const int64_t tiles = items / p.n_problems;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      const int32_t row0 = at.part * kItemRows;
      if (!exchanges(x, pass) || row0 >= x.full) continue;
      propose(p, x, pass, row0);
      sync_threads(kThreads);
    }
  }

 private:
  // All blocks are columns, in their order.
  struct Field {
    Held columns;
    uint32_t* barred;
    uint64_t* of_row;
    int32_t chunk, n_columns, row0;
    VCA_DEVICE int32_t block_of_row(int32_t row) const { return row0 + row; }
    VCA_DEVICE int32_t block_of(int32_t column) const { return column; }
    VCA_DEVICE int32_t column_of(int32_t block) const { return block; }
    VCA_DEVICE bool may_meet(int32_t) const { return true; }
    VCA_DEVICE uint32_t taken(int32_t) const { return 0; }
    VCA_DEVICE uint64_t* best(int32_t row) const { return of_row + row; }
  };

  VCA_DEVICE static void propose(const Params& p, const Problem& x, int32_t pass, int32_t row0) {
    const int32_t chunk = chunk_of(p.max_blocks);
    const int64_t barred = int64_t{chunk} * kD, base = barred + Rounds::barred_bytes(chunk);
    const Field field{{shared_at<uint32_t>(0), shared_at<int32_t>(base)},
                      shared_at<uint32_t>(barred),
                      shared_at<uint64_t>(base + chunk * 4),
                      chunk,
                      x.full,
                      row0};
    const int32_t rows = x.full - row0 < kItemRows ? x.full - row0 : kItemRows;
    if (thread() < kItemRows) field.of_row[thread()] = Rounds::kNone;
    Rounds::propose(p, x, pass, field, rows, false);
    if (thread() >= rows) return;
    const uint64_t best = field.of_row[thread()];
    p.proposals[x.block0 + row0 + thread()] =
        best == Rounds::kNone ? kUnknown : static_cast<int32_t>(best & 0xFFFFFFFFu);
  }
};

}  // namespace vca::kernels::group
