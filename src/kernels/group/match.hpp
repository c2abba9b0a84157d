// SPDX-License-Identifier: Apache-2.0
// Pair exchange, first half: which blocks meet.
#pragma once

#include "kernels/group/distances.hpp"

namespace vca::kernels::group {

// One block of threads a problem. In a round every free block proposes to its nearest free block
// not met in the last passes; mutual proposals pair up. A proposal stays the nearest as long as its
// target is free, so a round compares only blocks whose target has gone, `rows`, with all that are
// free, `columns`, on tensor cores. Columns stay in shared memory from round to round, those that
// are taken marked by a bit each. They are numbered and loaded anew when half of them are gone, or
// chunk by chunk where there are too many of them. The last kTableRows blocks
// compare all with all once; each warp keeps the distances of eight rows in registers.
//
// Columns lie as the registers of an MMA's first operand want them, 16 columns a tile: for step j,
// lane (g, t) finds words of columns g and g + 8 in one load (RowShare's words t of the row):
//
//   tile | step | lane 4 g + t | low word of g, low of g + 8, high of g, high of g + 8
//
// kMostColumns: at once, numbered in eight bits of a key; fewer in tests.
template <int kD, int32_t kMostColumns = 640, int32_t kTableRows = 96>
struct Match {
  static constexpr int kThreads = 384;
  static constexpr int kMinBlocks = 1;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kParts = kD / 16;
  static constexpr int kSteps = RowShare<kD>::kSteps;
  static constexpr int kItemRows = 32;
  static constexpr int kTile = 16;
  static_assert(kMostColumns / 8 < 255 && kTableRows <= 8 * kWarps);
  static constexpr int32_t kUnknown = -1;        // partner of a pass that has not been
  static constexpr uint64_t kNone = UINT64_MAX;  // no (distance, block)
  static constexpr uint16_t kNobody = UINT16_MAX;
  static constexpr int32_t kShared = 226 * 1024;

  // Where everything lies in shared memory.
  struct Shape {
    int32_t chunk;  // columns at once
    int32_t columns, barred, taken, best, base, runs, look_up, id, place, is_free, bytes;
  };
  static constexpr Shape shape_with(int32_t blocks, int32_t chunk) {
    Shape s{};
    s.chunk = chunk;
    int32_t at = 64;  // counters, free columns of the table
    const auto take = [&at](int32_t& where, int32_t bytes) {
      where = at;
      at += (bytes + 15) / 16 * 16;
    };
    take(s.columns, chunk * kD);
    take(s.barred, kWarps * kItemRows * stride_of(chunk) * 4);
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
  static constexpr Shape shape_of(int64_t max_blocks) {
    const auto blocks = static_cast<int32_t>(max_blocks);
    const int32_t all = (blocks + 31) / 32 * 32;
    int32_t chunk = all < kMostColumns ? all : kMostColumns;
    while (shape_with(blocks, chunk).bytes > kShared) chunk -= 32;
    return shape_with(blocks, chunk);
  }
  // Words of a row's bits: odd, so that rows fall into different banks.
  static constexpr int32_t stride_of(int32_t chunk) { return chunk / 32 | 1; }

  static int64_t smem_bytes(const Params& p) { return shape_of(p.max_blocks).bytes; }
  VCA_DEVICE static void run(const Params& p, int32_t pass, int64_t items) {
    if (pass >= *p.most_passes) return;
    const Shape shape = shape_of(p.max_blocks);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item);
      if (exchanges(x, pass)) match(p, x, pass, shape);
      sync_threads(kThreads);
    }
  }

 private:
  struct Shared {
    int32_t* counts;  // pairs so far, rows
    uint32_t* columns;
    uint32_t* barred;   // [warp][row][word] columns that a row must not choose, bit by bit
    uint32_t* taken;    // [word] columns that are free no more, bit by bit
    uint64_t* best;     // [block] distance and target of its proposal
    int32_t* base;      // [column] of its keys, distances.hpp
    int32_t* runs;      // free blocks in each run of 32
    uint16_t* look_up;  // [row] block; after the proposals: the blocks of this round's pairs
    uint16_t* id;       // [column] block
    uint16_t* place;    // [block] column
    uint8_t* is_free;   // [block]
    int32_t chunk, n_columns;
  };

  VCA_DEVICE static void match(const Params& p, const Problem& x, int32_t pass,
                               const Shape& shape) {
    Shared s{shared_at<int32_t>(0),
             shared_at<uint32_t>(shape.columns),
             shared_at<uint32_t>(shape.barred),
             shared_at<uint32_t>(shape.taken),
             shared_at<uint64_t>(shape.best),
             shared_at<int32_t>(shape.base),
             shared_at<int32_t>(shape.runs),
             shared_at<uint16_t>(shape.look_up),
             shared_at<uint16_t>(shape.id),
             shared_at<uint16_t>(shape.place),
             shared_at<uint8_t>(shape.is_free),
             shape.chunk,
             0};
    int32_t* tried = p.tried + x.block0 * kPairMemory;
    for (int32_t b = thread(); b < x.full; b += kThreads) {
      s.best[b] = kNone;
      s.is_free[b] = 1;
      if (pass == 0)
        for (int i = 0; i < kPairMemory; ++i) tried[b * kPairMemory + i] = kUnknown;
    }
    if (thread() < 2) s.counts[thread()] = 0;
    sync_threads(kThreads);
    int32_t before = 0;
    for (int32_t round = 0; round < p.rounds && x.full - 2 * before > 1; ++round) {
      const int32_t n_free = x.full - 2 * before;
      if (n_free <= kTableRows && n_free <= s.chunk) {
        number_columns(x, s);
        s.n_columns = n_free;
        load_columns(p, x, s, 0, n_free);
        sync_threads(kThreads);
        match_in_table(p, x, s, pass, p.rounds - round);
        break;
      }
      list_rows(x, s, round);
      if (2 * n_free <= s.n_columns || s.n_columns > s.chunk || round == 0) {
        number_columns(x, s);
        s.n_columns = n_free;
        if (n_free <= s.chunk) load_columns(p, x, s, 0, n_free);
      }
      sync_threads(kThreads);
      propose(p, x, s, pass);
      sync_threads(kThreads);
      for (int32_t a = thread(); a < x.full; a += kThreads) {
        if (s.is_free[a] == 0) continue;
        const auto b = static_cast<int32_t>(s.best[a] & 0xFFFFFFFFu);
        if (s.best[a] != kNone && b > a && static_cast<int32_t>(s.best[b] & 0xFFFFFFFFu) == a) {
          const int32_t at = pair(p, x, s, pass, a, b) - before;
          s.look_up[2 * at] = static_cast<uint16_t>(a);
          s.look_up[2 * at + 1] = static_cast<uint16_t>(b);
        }
      }
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

  // At first all; later those whose target has gone. Who found nobody will not find one later.
  VCA_DEVICE static void list_rows(const Problem& x, const Shared& s, int32_t round) {
    for (int32_t a = thread(); a < x.full; a += kThreads) {
      const uint64_t best = s.best[a];
      if (round > 0) {
        if (s.is_free[a] == 0 || best == kNone || s.is_free[best & 0xFFFFFFFFu] != 0) continue;
        s.best[a] = kNone;
      }
      s.look_up[ptx::atom_shared_add(&s.counts[1], 1)] = static_cast<uint16_t>(a);
    }
  }

  // Blocks of this round's pairs are free no more, nor are their columns.
  VCA_DEVICE static void take_away(const Shared& s, int32_t n) {
    for (int32_t i = thread(); i < n; i += kThreads) {
      const int32_t b = s.look_up[i];
      s.is_free[b] = 0;
      if (s.n_columns <= s.chunk)
        ptx::red_shared_or(&s.taken[s.place[b] / 32], 1u << s.place[b] % 32);
    }
  }
  // Where word `word` of 16-byte part `part` of a column lies.
  VCA_DEVICE static uint32_t* word_at(const Shared& s, int32_t column, int part, int word) {
    const int32_t step = part / 4 * 2 + word / 2, lane_of = column % 8 * 4 + part % 4;
    return s.columns + column / kTile * (kTile * kD / 4) + (step * 32 + lane_of) * 4 +
           word % 2 * 2 + column / 8 % 2;
  }
  // A column as the second operand of an MMA.
  VCA_DEVICE static RowShare<kD> share_of(const Shared& s, int32_t column, int t) {
    RowShare<kD> out;
    VCA_UNROLL
    for (int c = 0; c < RowShare<kD>::kChunks; ++c) {
      const uint32_t* words = word_at(s, column, t + 4 * c, 0);
      out.chunk[c] = {words[0], words[2], words[128], words[130]};
    }
    return out;
  }

  // id: the free blocks, ascending; place: its inverse.
  VCA_DEVICE static void number_columns(const Problem& x, const Shared& s) {
    for (int32_t word = thread(); word < s.chunk / 32; word += kThreads) s.taken[word] = 0;
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

  // Columns [c0, c0 + n), and zeros up to whole words of bits.
  VCA_DEVICE static void load_columns(const Params& p, const Problem& x, const Shared& s,
                                      int32_t c0, int32_t n) {
    const int32_t padded = (n + 31) / 32 * 32;
    const int8_t* means = p.means + x.block0 * kD;
    constexpr int kAtOnce = 8;  // loads on the way
    // Turns are even for the lanes of a warp: a word of bits is 32 columns.
    VCA_UNROLL_1
    for (int i0 = thread(); i0 < padded * kParts; i0 += kAtOnce * kThreads) {
      Word4 w[kAtOnce];
      VCA_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = i0 + k * kThreads, column = column_of(i / kParts);
        w[k] = i < padded * kParts && column < n
                   ? load_word4(means + int64_t{s.id[c0 + column]} * kD + i % kParts * 16)
                   : Word4{0, 0, 0, 0};
      }
      VCA_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = i0 + k * kThreads, column = column_of(i / kParts);
        if (i >= padded * kParts) break;
        uint32_t* to = word_at(s, column, i % kParts, 0);
        to[0] = w[k].x;
        to[2] = w[k].y;
        to[128] = w[k].z;
        to[130] = w[k].w;
        int32_t norm = 0;
        VCA_UNROLL
        for (int j = 0; j < 4; ++j) norm = ptx::dp4a(word_of(w[k], j), word_of(w[k], j), norm);
        for (uint32_t mask = 1; mask < kParts; mask *= 2) norm += ptx::shfl_sync_bfly(norm, mask);
        if (i % kParts == 0) s.base[column] = column < n ? norm * 256 + column / 8 + 1 : INT32_MAX;
      }
    }
  }
  // Columns g and g + 8 are loaded one after the other: their words lie side by side.
  VCA_DEVICE static int column_of(int i) { return i / kTile * kTile + i % 2 * 8 + i % kTile / 2; }

  VCA_DEVICE static void propose(const Params& p, const Problem& x, const Shared& s, int32_t pass) {
    const int32_t rows = s.counts[1];
    const bool resident = s.n_columns <= s.chunk;
    VCA_UNROLL_1
    for (int32_t c0 = 0; c0 < s.n_columns; c0 += s.chunk) {
      const int32_t n = s.n_columns - c0 < s.chunk ? s.n_columns - c0 : s.chunk;
      if (!resident) {
        load_columns(p, x, s, c0, n);
        sync_threads(kThreads);
      }
      meet(p, x, s, pass, c0, n, rows);
      if (!resident) sync_threads(kThreads);
    }
  }

  // All rows with the n columns in shared memory. Warps take even shares of (32 rows, 32 columns).
  VCA_DEVICE static void meet(const Params& p, const Problem& x, const Shared& s, int32_t pass,
                              int32_t c0, int32_t n, int32_t rows) {
    const int32_t words = (n + 31) / 32;
    const int32_t items = (rows + kItemRows - 1) / kItemRows * words;
    int32_t item = warp() * items / kWarps;
    const int32_t last = (warp() + 1) * items / kWarps;
    while (item < last) {
      const int32_t word0 = item % words;
      const int32_t left = last - item;
      const int32_t word1 = left < words - word0 ? word0 + left : words;
      meet_words(p, x, s, pass, c0, item / words * kItemRows, rows, word0, word1);
      item += word1 - word0;
    }
  }

  VCA_DEVICE static void meet_words(const Params& p, const Problem& x, const Shared& s,
                                    int32_t pass, int32_t c0, int32_t row0, int32_t rows,
                                    int32_t word0, int32_t word1) {
    const int32_t stride = stride_of(s.chunk);
    uint32_t* const barred = s.barred + warp() * kItemRows * stride;
    ptx::bar_warp_sync();  // all have read the bits of the rows before
    bar(p, x, s, pass, c0, row0 + lane() < rows ? s.look_up[row0 + lane()] : -1, word0, word1,
        barred + lane() * stride);
    ptx::bar_warp_sync();
    const int g = lane() / 4, t = lane() % 4;
    constexpr int kGroups = kItemRows / 8;
    RowShare<kD> share[kGroups];
    VCA_UNROLL
    for (int i = 0; i < kGroups; ++i) {
      const int32_t row = row0 + 8 * i + g;
      if (row >= rows)
        share[i] = empty_share<kD>();
      else if (s.n_columns <= s.chunk)
        share[i] = share_of(s, s.place[s.look_up[row]], t);
      else
        share[i] = share_from_global<kD>(p.means + (x.block0 + s.look_up[row]) * kD, t);
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
          column[step] = load_word4(s.columns + tile * (kTile * kD / 4) + (step * 32 + lane()) * 4);
        const int32_t near = s.base[tile * kTile + g], far = s.base[tile * kTile + 8 + g];
        VCA_UNROLL
        for (int i = 0; i < kGroups; ++i) {
          int32_t dot[4] = {0, 0, 0, 0};
          multiply(dot, column, share[i]);
          VCA_UNROLL
          for (int e = 0; e < 2; ++e) {
            const uint32_t here = bits[2 * i + e] >> (16 * j);
            best[2 * i + e] =
                min3(best[2 * i + e], (here & 1u) != 0 ? INT32_MAX : near - 512 * dot[e],
                     (here & 256u) != 0 ? INT32_MAX : far - 512 * dot[2 + e]);
          }
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
      ptx::red_shared_min(&s.best[s.look_up[row]],
                          uint64_t{static_cast<uint32_t>(own[0].key) ^ 0x80000000u} << 32 |
                              s.id[c0 + own[0].index]);
  }
  VCA_DEVICE static void multiply(int32_t (&acc)[4], const Word4 (&columns)[kSteps],
                                  const RowShare<kD>& rows) {
    VCA_UNROLL
    for (int j = 0; j < kSteps; ++j)
      ptx::mma_m16n8k32_s32_s8_s8(acc, columns[j].x, columns[j].y, columns[j].z, columns[j].w,
                                  rows.low(j), rows.high(j));
  }

  // The remaining rounds among the n free blocks, columns 0 to n - 1. A warp has eight rows; a lane
  // the keys of two of them, 2 t and 2 t + 1, with columns g, g + 8, ...: distance and column in
  // one number. A column that is taken gets the worst key.
  VCA_DEVICE static void match_in_table(const Params& p, const Problem& x, const Shared& s,
                                        int32_t pass, int32_t rounds) {
    const int32_t n = s.n_columns, words = (n + 31) / 32, stride = stride_of(s.chunk);
    const int g = lane() / 4, t = lane() % 4;
    const int32_t row0 = warp() * 8;
    constexpr int kColumns = 16;  // of a lane
    int32_t key[2][kColumns];
    uint32_t* const barred = s.barred + warp() * kItemRows * stride;
    if (row0 < n) {
      bar(p, x, s, pass, 0, lane() < 8 && row0 + lane() < n ? s.id[row0 + lane()] : -1, 0, words,
          barred + lane() * stride);
      ptx::bar_warp_sync();
      const RowShare<kD> share = row0 + g < n ? share_of(s, row0 + g, t) : empty_share<kD>();
      VCA_UNROLL
      for (int tile = 0; tile < kColumns / 2; ++tile) {
        int32_t dot[4] = {0, 0, 0, 0};
        const bool real = tile * kTile < words * 32;
        Word4 column[kSteps];
        VCA_UNROLL
        for (int step = 0; step < kSteps; ++step)
          column[step] =
              real ? load_word4(s.columns + tile * (kTile * kD / 4) + (step * 32 + lane()) * 4)
                   : Word4{0, 0, 0, 0};
        multiply(dot, column, share);
        VCA_UNROLL
        for (int half = 0; half < 2; ++half) {
          const int32_t c = tile * kTile + half * 8 + g;
          const int32_t base = real ? s.base[c] : INT32_MAX;
          VCA_UNROLL
          for (int e = 0; e < 2; ++e) {
            const bool open =
                base != INT32_MAX && (barred[(2 * t + e) * stride + c / 32] >> c % 32 & 1u) == 0;
            key[e][2 * tile + half] =
                open ? (base & ~255) - 512 * dot[2 * half + e] + c : INT32_MAX;
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
        if (mutual && a < b) pair(p, x, s, pass, s.id[a], s.id[b]);
        if (lane() == 0 && taken != 0) free_columns[warp()] &= ~taken;
      }
      sync_threads(kThreads);
      now = s.counts[0];
      if (now == before) break;
    }
  }

  // The bits of a row's words: itself, and those it met lately. `block` -1: no row.
  VCA_DEVICE static void bar(const Params& p, const Problem& x, const Shared& s, int32_t pass,
                             int32_t c0, int32_t block, int32_t word0, int32_t word1,
                             uint32_t* bits) {
    for (int32_t word = word0; word < word1; ++word) bits[word] = s.taken[word];
    if (block < 0) return;
    int32_t avoid[kPairMemory + 1];
    avoid[kPairMemory] = block;
    VCA_UNROLL
    for (int i = 0; i < kPairMemory; ++i)
      avoid[i] = pass > 0 ? p.tried[(x.block0 + block) * kPairMemory + i] : kUnknown;
    VCA_UNROLL
    for (int i = 0; i <= kPairMemory; ++i) {
      if (avoid[i] < 0 || s.is_free[avoid[i]] == 0) continue;
      const int32_t column = s.place[avoid[i]] - c0;
      if (column >= word0 * 32 && column < word1 * 32) bits[column / 32] |= 1u << column % 32;
    }
  }
};

}  // namespace vca::kernels::group
