// SPDX-License-Identifier: Apache-2.0
// Pair exchange, first half: which blocks meet.
#pragma once

#include "kernels/group/distances.hpp"

namespace vca::kernels::group {

// One block of threads a problem. In a round every free block proposes to its nearest free block
// not met in the last passes; mutual proposals pair up. A proposal stays the nearest as long as its
// target is free, so a round compares only blocks whose target has gone, `rows`, with all that are
// free, `columns`, on tensor cores. Columns stay in shared memory from round to round: one that is
// taken becomes a row of zeros with the worst key. They are numbered and loaded anew when half of
// them are gone, or chunk by chunk where there are too many of them.
template <int kD, int32_t kMostColumns = 640>  // at once: keys number them in eight bits
struct Match {
  static constexpr int kThreads = 448;  // registers for the shares of four rows
  static constexpr int kMinBlocks = 1;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kParts = kD / 16;
  static constexpr int kItemRows = 32;
  static constexpr int32_t kUnknown = -1;        // partner of a pass that has not been
  static constexpr uint64_t kNone = UINT64_MAX;  // no (distance, block)
  static_assert(kMostColumns / 4 < 256);
  static constexpr int32_t kShared = 226 * 1024;

  // Where everything lies in shared memory.
  struct Shape {
    int32_t chunk;  // columns at once
    int32_t columns, barred, best, base, runs, look_up, id, place, is_free, bytes;
  };
  static constexpr Shape shape_with(int32_t blocks, int32_t chunk) {
    Shape s{};
    s.chunk = chunk;
    int32_t at = 16;  // counters
    const auto take = [&at](int32_t& where, int32_t bytes) {
      where = at;
      at += (bytes + 15) / 16 * 16;
    };
    take(s.columns, chunk * kD);
    take(s.barred, kWarps * kItemRows * stride_of(chunk) * 4);
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
      if (exchanges(p, x, pass)) match(p, x, pass, shape);
      sync_threads(kThreads);
    }
  }

 private:
  struct Shared {
    int32_t* counts;  // pairs so far, rows
    unsigned char* columns;
    uint32_t* barred;   // [warp][row][word] columns that a row must not choose, bit by bit
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
             shared_at<unsigned char>(shape.columns),
             shared_at<uint32_t>(shape.barred),
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
          const int32_t at = add_shared(&s.counts[0], 1);
          p.pairs[x.block0 + 2 * at] = a;
          p.pairs[x.block0 + 2 * at + 1] = b;
          s.look_up[2 * (at - before)] = static_cast<uint16_t>(a);
          s.look_up[2 * (at - before) + 1] = static_cast<uint16_t>(b);
          tried[a * kPairMemory + pass % kPairMemory] = b;
          tried[b * kPairMemory + pass % kPairMemory] = a;
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
    if (thread() == 0) p.n_pairs[x.index] = s.counts[0];
  }

  // At first all; later those whose target has gone. Who found nobody will not find one later.
  VCA_DEVICE static void list_rows(const Problem& x, const Shared& s, int32_t round) {
    for (int32_t a = thread(); a < x.full; a += kThreads) {
      const uint64_t best = s.best[a];
      if (round > 0) {
        if (s.is_free[a] == 0 || best == kNone || s.is_free[best & 0xFFFFFFFFu] != 0) continue;
        s.best[a] = kNone;
      }
      s.look_up[add_shared(&s.counts[1], 1)] = static_cast<uint16_t>(a);
    }
  }

  // Blocks of this round's pairs are free no more.
  VCA_DEVICE static void take_away(const Shared& s, int32_t n) {
    for (int32_t i = thread(); i < n * kParts; i += kThreads) {
      const int32_t b = s.look_up[i / kParts];
      if (i % kParts == 0) s.is_free[b] = 0;
      if (s.n_columns > s.chunk) continue;  // they will be loaded anew
      if (i % kParts == 0) s.base[s.place[b]] = INT32_MAX;
      store_word4(s.columns + s.place[b] * kD + i % kParts * 16, {0, 0, 0, 0});
    }
  }

  // id: the free blocks, ascending; place: its inverse.
  VCA_DEVICE static void number_columns(const Problem& x, const Shared& s) {
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
    VCA_UNROLL_8
    for (int i = thread(); i < padded * kParts; i += kThreads) {
      const int row = i / kParts, part = i % kParts;
      store_word4(s.columns + chunk_offset<kD>(row, part),
                  row < n ? load_word4(means + int64_t{s.id[c0 + row]} * kD + part * 16)
                          : Word4{0, 0, 0, 0});
    }
    sync_threads(kThreads);
    for (int c = thread(); c < padded; c += kThreads) {
      int32_t norm = 0;  // each lane begins at another word
      VCA_UNROLL
      for (int i = 0; i < kParts; ++i) {
        const Word4 w = load_word4(s.columns + c * kD + (i + c) % kParts * 16);
        VCA_UNROLL
        for (int j = 0; j < 4; ++j) norm = ptx::dp4a(word_of(w, j), word_of(w, j), norm);
      }
      s.base[c] = c < n ? norm * 256 + c / 8 * 2 + c % 2 + 1 : INT32_MAX;
    }
  }

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
    // Rows g, g + 8, g + 16, g + 24.
    int32_t best[4] = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX};
    const auto share = [&](int i) {
      const int32_t row = row0 + g + 8 * i;
      if (row >= rows) return empty_share<kD>();
      const int32_t block = s.look_up[row];
      if (s.n_columns <= s.chunk) return share_from_shared<kD>(s.columns, s.place[block], t);
      return share_from_global<kD>(p.means + (x.block0 + block) * kD, t);
    };
    const RowPair<kD> pairs[2] = {{share(0), share(1)}, {share(2), share(3)}};
    VCA_UNROLL_1
    for (int32_t word = word0; word < word1; ++word) {
      uint32_t bits[4];
      VCA_UNROLL
      for (int i = 0; i < 4; ++i) bits[i] = barred[(g + 8 * i) * stride + word] >> (2 * t);
      VCA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const int32_t c = word * 32 + j * 8;
        const RowShare<kD> column = share_from_shared<kD>(s.columns, c + g, t);
        const int32_t even = s.base[c + 2 * t], odd = s.base[c + 2 * t + 1];
        VCA_UNROLL
        for (int pair = 0; pair < 2; ++pair) {
          int32_t dot[4] = {0, 0, 0, 0};
          multiply<kD>(dot, pairs[pair], column);
          VCA_UNROLL
          for (int half = 0; half < 2; ++half) {
            const int i = 2 * pair + half;
            const uint32_t barred_here = bits[i] >> (8 * j);
            best[i] =
                min3(best[i], (barred_here & 1u) != 0 ? INT32_MAX : even - 512 * dot[2 * half],
                     (barred_here & 2u) != 0 ? INT32_MAX : odd - 512 * dot[2 * half + 1]);
          }
        }
      }
    }
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int32_t row = row0 + g + 8 * i;
      // Of equal columns the lowest: blocks ascend with columns.
      Candidate own{INT32_MAX, INT32_MAX};
      if (best[i] != INT32_MAX) {
        const int32_t at = (best[i] & 255) - 1;
        own = {best[i] >> 8, s.id[c0 + at / 2 * 8 + 2 * t + at % 2]};
      }
      for (uint32_t mask = 1; mask < 4; mask *= 2) {
        const Candidate other{ptx::shfl_sync_bfly(own.key, mask),
                              ptx::shfl_sync_bfly(own.index, mask)};
        if (before(other, own)) own = other;
      }
      if (t == 0 && row < rows && own.key != INT32_MAX)
        min_shared(&s.best[s.look_up[row]],
                   uint64_t{static_cast<uint32_t>(own.key) ^ 0x80000000u} << 32 |
                       static_cast<uint32_t>(own.index));
    }
  }

  // The bits of a row's words: itself, and those it met lately. `block` -1: no row.
  VCA_DEVICE static void bar(const Params& p, const Problem& x, const Shared& s, int32_t pass,
                             int32_t c0, int32_t block, int32_t word0, int32_t word1,
                             uint32_t* bits) {
    for (int32_t word = word0; word < word1; ++word) bits[word] = 0;
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
