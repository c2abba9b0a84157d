// SPDX-License-Identifier: Apache-2.0
// Pair exchange, first half: which blocks meet.
#pragma once

#include "kernels/group/distances.hpp"

namespace vca::kernels::group {

// One block of threads a problem. In a round every free block proposes to its nearest free block
// not met in the last passes; mutual proposals pair up. A proposal stays the nearest as long as its
// target is free; the next one is the next free entry of the block's list. Where a list ends, the
// free blocks are compared among themselves, in shared memory: few enough of them leave a table of
// all distances there for the remaining rounds; more of them get new lists.
template <int kD>
struct Match {
  static constexpr int kThreads = 768;  // registers for a whole row of a mean
  static constexpr int kMinBlocks = 1;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kParts = kD / 16;
  static constexpr int32_t kUnknown = -1, kNobody = -2;
  static constexpr int64_t kShared = 226 * 1024;

  // Distances, means, numbers, norms and flags of a table of so many blocks.
  static constexpr int64_t table_bytes(int64_t rows) { return rows * (rows * 4 + kD + 12); }
  // Free blocks whose distances fit beside four words a block.
  static constexpr int32_t table_rows(int64_t blocks) {
    int64_t rows = 208;
    while (rows > 0 && table_at(blocks) + table_bytes(rows) > kShared) rows -= 16;
    const int64_t all = ceil_div(blocks, 16) * 16;
    return static_cast<int32_t>(rows < all ? rows : all);
  }
  static constexpr int64_t words_at(int64_t blocks) { return 16 + ceil_div(blocks, 128) * 16; }
  static constexpr int64_t table_at(int64_t blocks) { return words_at(blocks) + 16 * blocks; }
  // Counters, counts of runs | proposal, place in the list, blocks to look up, free?: four words a
  // block | table.
  static int64_t smem_bytes(const Params& p) {
    return table_at(p.max_blocks) + table_bytes(table_rows(p.max_blocks));
  }
  VCA_DEVICE static void run(const Params& p, int32_t pass, int64_t items) {
    if (pass >= *p.most_passes) return;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item);
      if (exchanges(p, x, pass)) match(p, x, pass);
      sync_threads(kThreads);
    }
  }

 private:
  struct Lists {
    int32_t* counts;  // pairs so far, blocks to look up
    int32_t *proposal, *next, *look_up, *is_free;
    int32_t *tried, *pairs;
  };
  // Of the free blocks, by their number among themselves.
  struct Table {
    int32_t *distance, *id, *norm, *is_free;
    unsigned char* means;
  };

  VCA_DEVICE static void match(const Params& p, const Problem& x, int32_t pass) {
    Lists s;
    s.counts = shared_at<int32_t>(0);
    s.proposal = shared_at<int32_t>(words_at(p.max_blocks));
    s.next = s.proposal + x.full;
    s.look_up = s.next + x.full;
    s.is_free = s.look_up + x.full;
    s.tried = p.tried + x.block0 * kPairMemory;
    s.pairs = p.pairs + x.block0;
    for (int32_t b = thread(); b < x.full; b += kThreads) {
      s.proposal[b] = kUnknown;
      s.next[b] = 0;
      s.is_free[b] = 1;
      if (pass == 0)
        for (int i = 0; i < kPairMemory; ++i) s.tried[b * kPairMemory + i] = kUnknown;
    }
    if (thread() < 2) s.counts[thread()] = 0;
    sync_threads(kThreads);
    const int32_t most = table_rows(p.max_blocks);
    int32_t before = 0;
    for (int32_t round = 0; round < p.rounds && x.full - 2 * before > 1; ++round) {
      int32_t n_look_up = propose(p, x, s);
      if (n_look_up > 0 && x.full - 2 * before <= most) {
        match_in_table(p, x, pass, s, round, before, most);
        break;
      }
      if (n_look_up > 0 && fits_lists(p, x.full - 2 * before)) {
        list_again(p, x, pass, s, x.full - 2 * before);
        n_look_up = propose(p, x, s);
      }
      for (int32_t i = warp(); i < n_look_up; i += kWarps) {
        const int32_t a = s.look_up[i];
        const int32_t found = nearest(p, x, s.is_free, a, s.tried + a * kPairMemory);
        if (lane() == 0) s.proposal[a] = found;
      }
      sync_threads(kThreads);
      for (int32_t a = thread(); a < x.full; a += kThreads) {
        const int32_t b = s.proposal[a];
        if (s.is_free[a] != 0 && b > a && s.proposal[b] == a) pair(s, pass, a, b);
      }
      if (thread() == 0) s.counts[1] = 0;
      sync_threads(kThreads);
      const int32_t now = s.counts[0];
      for (int32_t i = 2 * before + thread(); i < 2 * now; i += kThreads) s.is_free[s.pairs[i]] = 0;
      sync_threads(kThreads);
      if (now == before) break;
      before = now;
    }
    if (thread() == 0) p.n_pairs[x.index] = s.counts[0];
  }

  // Next proposals by the lists; how many blocks have come to the end of theirs (s.look_up).
  VCA_DEVICE static int32_t propose(const Params& p, const Problem& x, const Lists& s) {
    for (int32_t a = thread(); a < x.full; a += kThreads) {
      const int32_t old = s.proposal[a];
      if (s.is_free[a] == 0 || old == kNobody || (old >= 0 && s.is_free[old] != 0)) continue;
      if (!next_listed(p.lists + (x.block0 + a) * kListed, s.is_free, s.next[a], s.proposal[a]))
        s.look_up[add_shared(&s.counts[1], 1)] = a;
    }
    sync_threads(kThreads);
    return s.counts[1];
  }

  // Where the table would be: means of the free blocks, their base keys.
  static constexpr int64_t list_bytes(int64_t n) { return ceil_div(n, 16) * 16 * (kD + 4); }
  VCA_DEVICE static bool fits_lists(const Params& p, int32_t n) {
    return n <= Nearest<kD>::kChunk && list_bytes(n) <= table_bytes(table_rows(p.max_blocks));
  }
  // New lists of the n free blocks, of each other.
  VCA_DEVICE static void list_again(const Params& p, const Problem& x, int32_t pass, const Lists& s,
                                    int32_t n) {
    auto* means = shared_at<unsigned char>(table_at(p.max_blocks));
    const int32_t padded = (n + 15) / 16 * 16;
    auto* base = reinterpret_cast<int32_t*>(means + padded * kD);
    int32_t* id = s.look_up;
    sync_threads(kThreads);  // all have read how many look-ups there are
    if (thread() == 0) s.counts[1] = 0;
    number_free(x, s, id);
    load_means(p, x, means, id, n);
    Nearest<kD>::set_base(means, base, n, padded, kThreads);
    sync_threads(kThreads);
    const int g = lane() / 4, t = lane() % 4;
    for (int32_t row0 = warp() * 16; row0 < n; row0 += kWarps * 16) {
      typename Nearest<kD>::Best best[2];
      Nearest<kD>::clear(best);
      Nearest<kD>::compare(means, base, share_from_shared<kD>(means, row0 + g, t),
                           share_from_shared<kD>(means, row0 + g + 8, t), 0, n, best);
      VCA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int32_t row = row0 + g + half * 8;
        const int32_t block = row < n ? id[row] : 0;
        Nearest<kD>::write(p.lists + (x.block0 + block) * kListed,
                           row<n, block, pass> 0 ? s.tried + block * kPairMemory : nullptr, id,
                           best[half]);
        if (row < n && t == 0) s.next[block] = 0;
      }
    }
    sync_threads(kThreads);
  }

  VCA_DEVICE static void pair(const Lists& s, int32_t pass, int32_t a, int32_t b) {
    const int32_t at = add_shared(&s.counts[0], 1);
    s.pairs[2 * at] = a;
    s.pairs[2 * at + 1] = b;
    s.tried[a * kPairMemory + pass % kPairMemory] = b;
    s.tried[b * kPairMemory + pass % kPairMemory] = a;
  }

  // False where the list ends.
  VCA_DEVICE static bool next_listed(const int32_t* list, const int32_t* is_free, int32_t& at,
                                     int32_t& proposal) {
    for (; at < kListed; ++at) {
      const int32_t b = list[at];
      if (b == kListEnd) at = kListed;
      if (b == kListEnd || is_free[b] == 0) continue;
      proposal = b;
      return true;
    }
    return false;
  }

  VCA_DEVICE static int32_t nearest(const Params& p, const Problem& x, const int32_t* is_free,
                                    int32_t self, const int32_t* tried) {
    int32_t avoid[kPairMemory];
    VCA_UNROLL
    for (int i = 0; i < kPairMemory; ++i) avoid[i] = tried[i];
    const int8_t* means = p.means + x.block0 * kD;
    Candidate best{INT32_MAX, kNobody};
    VCA_UNROLL_1
    for (int32_t b = lane(); b < x.full; b += 32) {
      bool barred = b == self || is_free[b] == 0;
      VCA_UNROLL
      for (int i = 0; i < kPairMemory; ++i) barred = barred || b == avoid[i];
      if (barred) continue;
      int32_t norm = 0, dot = 0;
      VCA_UNROLL_1
      for (int i = 0; i < kParts; ++i) {
        const Word4 u = load_word4(means + int64_t{b} * kD + i * 16);
        const Word4 v = load_word4(means + int64_t{self} * kD + i * 16);
        VCA_UNROLL
        for (int j = 0; j < 4; ++j) {
          norm = ptx::dp4a(word_of(u, j), word_of(u, j), norm);
          dot = ptx::dp4a(word_of(u, j), word_of(v, j), dot);
        }
      }
      if (norm - 2 * dot < best.key) best = {norm - 2 * dot, b};
    }
    const int32_t key = ptx::redux_sync_min(best.key);
    if (key == INT32_MAX) return kNobody;
    return ptx::redux_sync_min(best.key == key ? best.index : INT32_MAX);
  }

  // The rounds from `round` on, among the free blocks only.
  VCA_DEVICE static void match_in_table(const Params& p, const Problem& x, int32_t pass,
                                        const Lists& s, int32_t round, int32_t before,
                                        int32_t most) {
    const int32_t n = x.full - 2 * before;
    Table t;
    t.distance = shared_at<int32_t>(table_at(p.max_blocks));
    t.means = reinterpret_cast<unsigned char*>(t.distance + int64_t{most} * most);
    t.id = reinterpret_cast<int32_t*>(t.means + int64_t{most} * kD);
    t.norm = t.id + most;
    t.is_free = t.norm + most;
    number_free(x, s, t.id);
    for (int32_t a = thread(); a < n; a += kThreads) {
      s.next[t.id[a]] = a;
      t.is_free[a] = 1;
    }
    fill_table(p, x, s, t, n, most);
    // From here on, proposals are numbers among the free.
    int32_t* proposal = s.look_up;
    for (int32_t a = thread(); a < n; a += kThreads) proposal[a] = kUnknown;
    sync_threads(kThreads);
    for (; round < p.rounds && x.full - 2 * before > 1; ++round) {
      for (int32_t a = warp(); a < n; a += kWarps) {
        const int32_t old = proposal[a];
        if (t.is_free[a] == 0 || old == kNobody || (old >= 0 && t.is_free[old] != 0)) continue;
        Candidate best{INT32_MAX, kNobody};
        for (int32_t b = lane(); b < n; b += 32) {
          const int32_t distance = t.distance[a * most + b];
          if (distance < best.key && t.is_free[b] != 0) best = {distance, b};
        }
        best = warp_best(best);
        if (lane() == 0) proposal[a] = best.key == INT32_MAX ? kNobody : best.index;
      }
      sync_threads(kThreads);
      for (int32_t a = thread(); a < n; a += kThreads) {
        const int32_t b = proposal[a];
        if (t.is_free[a] != 0 && b > a && proposal[b] == a) pair(s, pass, t.id[a], t.id[b]);
      }
      sync_threads(kThreads);
      const int32_t now = s.counts[0];
      for (int32_t i = 2 * before + thread(); i < 2 * now; i += kThreads)
        t.is_free[s.next[s.pairs[i]]] = 0;
      sync_threads(kThreads);
      if (now == before) break;
      before = now;
    }
  }

  // id: the free blocks, ascending.
  VCA_DEVICE static void number_free(const Problem& x, const Lists& s, int32_t* id) {
    const int32_t runs = (x.full + 31) / 32;
    int32_t* counts = s.counts + 4;
    for (int32_t run = warp(); run < runs; run += kWarps) {
      const int32_t b = run * 32 + lane();
      const uint32_t mask = ptx::vote_sync_ballot(b < x.full && s.is_free[b] != 0);
      if (lane() == 0) counts[run] = popcount(mask);
    }
    sync_threads(kThreads);
    for (int32_t run = warp(); run < runs; run += kWarps) {
      int32_t before = 0;
      for (int32_t i = lane(); i < run; i += 32) before += counts[i];
      before = ptx::redux_sync_add(before);
      const int32_t b = run * 32 + lane();
      const bool is_free = b < x.full && s.is_free[b] != 0;
      const uint32_t mask = ptx::vote_sync_ballot(is_free);
      if (is_free) id[before + popcount(mask & ((1u << lane()) - 1u))] = b;
    }
    sync_threads(kThreads);
  }
  VCA_DEVICE static void load_means(const Params& p, const Problem& x, unsigned char* to,
                                    const int32_t* id, int32_t n) {
    const int32_t padded = (n + 15) / 16 * 16;
    const int8_t* means = p.means + x.block0 * kD;
    for (int i = thread(); i < padded * kParts; i += kThreads) {
      const int row = i / kParts, part = i % kParts;
      store_word4(
          to + chunk_offset<kD>(row, part),
          row < n ? load_word4(means + int64_t{id[row]} * kD + part * 16) : Word4{0, 0, 0, 0});
    }
    sync_threads(kThreads);
  }

  VCA_DEVICE static void fill_table(const Params& p, const Problem& x, const Lists& s,
                                    const Table& t, int32_t n, int32_t most) {
    const int32_t padded = (n + 15) / 16 * 16;
    load_means(p, x, t.means, t.id, n);
    for (int c = thread(); c < padded; c += kThreads) t.norm[c] = norm_of_row<kD>(t.means, c);
    sync_threads(kThreads);
    const int32_t columns = padded / 8;
    const int g = lane() / 4, own = lane() % 4;
    // A warp takes 16 rows by a quarter of the columns.
    for (int32_t item = warp(); item < padded / 16 * 4; item += kWarps) {
      const int32_t row = item / 4 * 16 + g;
      const RowShare<kD> a = share_from_shared<kD>(t.means, row, own);
      const RowShare<kD> b = share_from_shared<kD>(t.means, row + 8, own);
      for (int32_t c = item % 4; c < columns; c += 4) {
        int32_t dot[4] = {0, 0, 0, 0};
        multiply<kD>(dot, a, b, share_from_shared<kD>(t.means, c * 8 + g, own));
        const int32_t column = c * 8 + 2 * own;
        int32_t* to = t.distance + row * most + column;
        to[0] = t.norm[column] - 2 * dot[0];
        to[1] = t.norm[column + 1] - 2 * dot[1];
        to[8 * most] = t.norm[column] - 2 * dot[2];
        to[8 * most + 1] = t.norm[column + 1] - 2 * dot[3];
      }
    }
    sync_threads(kThreads);
    for (int32_t a = thread(); a < n; a += kThreads) {
      t.distance[a * most + a] = INT32_MAX;
      for (int i = 0; i < kPairMemory; ++i) {
        const int32_t b = s.tried[t.id[a] * kPairMemory + i];
        if (b >= 0 && s.is_free[b] != 0) t.distance[a * most + s.next[b]] = INT32_MAX;
      }
    }
    sync_threads(kThreads);
  }
};

}  // namespace vca::kernels::group
