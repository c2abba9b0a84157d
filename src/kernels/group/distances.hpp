// SPDX-License-Identifier: Apache-2.0
// The nearest neighbours of every centroid of a problem; and the chain through the centroids. No
// table of distances: whoever needs more than the lists multiplies again.
#pragma once

#include "kernels/group/bits.hpp"

namespace vca::kernels::group {

// (key, index), smaller key first, then smaller index.
struct Candidate {
  int32_t key, index;
};
VCA_DEVICE bool before(const Candidate& a, const Candidate& b) {
  return a.key < b.key || (a.key == b.key && a.index < b.index);
}
VCA_DEVICE Candidate warp_best(Candidate c) {
  const int32_t key = ptx::redux_sync_min(c.key);
  return {key, ptx::redux_sync_min(c.key == key ? c.index : INT32_MAX)};
}

inline constexpr int32_t kListEnd = -1;

// The nearest columns of the rows of a warp: 16 rows in registers, columns in shared memory.
// Distances are |c|^2 - 2 r.c, in keys as those of Assign; the four lanes of a row keep the best
// six of their columns each, in ascending order.
template <int kD>
struct Nearest {
  static constexpr int kOwn = 6;
  static constexpr int kChunk = 768;  // columns at once; keys number 1,016 at most
  static constexpr int kParts = kD / 16;
  struct Best {
    Candidate of[kOwn];
  };
  VCA_DEVICE static void clear(Best (&best)[2]) {
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) best[0].of[i] = best[1].of[i] = {INT32_MAX, INT32_MAX};
  }

  // Base keys of columns that lie in shared memory; `padded` is a multiple of 16.
  VCA_DEVICE static void set_base(const unsigned char* rows, int32_t* base, int columns, int padded,
                                  int threads) {
    for (int c = thread(); c < padded; c += threads)
      base[c] =
          c < columns ? norm_of_row<kD>(rows, c) * 256 + c % kChunk / 8 * 2 + c % 2 + 1 : INT32_MAX;
  }

  // Columns [c0, c0 + columns) of the problem lie at `rows`.
  VCA_DEVICE static void compare(const unsigned char* rows, const int32_t* base,
                                 const RowShare<kD>& a, const RowShare<kD>& b, int32_t c0,
                                 int32_t columns, Best (&best)[2]) {
    const int g = lane() / 4, t = lane() % 4;
    int32_t own[2][kOwn];
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) own[0][i] = own[1][i] = INT32_MAX;
    ptx::bar_warp_sync();  // the last rows are loaded by some lanes only
    VCA_UNROLL_1
    for (int32_t c = 0; c < columns; c += 16) {
      int32_t dot[2][4] = {};
      multiply<kD>(dot[0], a, b, share_from_shared<kD>(rows, c + g, t));
      multiply<kD>(dot[1], a, b, share_from_shared<kD>(rows, c + 8 + g, t));
      VCA_UNROLL
      for (int j = 0; j < 2; ++j) {
        const int32_t even = base[c + 8 * j + 2 * t], odd = base[c + 8 * j + 2 * t + 1];
        insert(own[0], even - 512 * dot[j][0]);
        insert(own[1], even - 512 * dot[j][2]);
        insert(own[0], odd - 512 * dot[j][1]);
        insert(own[1], odd - 512 * dot[j][3]);
      }
    }
    VCA_UNROLL
    for (int half = 0; half < 2; ++half) VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      // Padding columns have base keys of INT32_MAX and products of zero.
      const int32_t at = (own[half][i] & 255) - 1;
      if (own[half][i] != INT32_MAX)
        keep_best(best[half], {own[half][i] >> 8, c0 + at / 2 * 8 + 2 * t + at % 2});
    }
  }

  // Merges the four lanes of row number `row` into its list; all lanes of the warp come here.
  VCA_DEVICE static void write(int32_t* list, bool real, int32_t row, Best& best) {
    // A list ends where the seventh of one lane might come next.
    Candidate cut = best.of[kOwn - 1];
    for (uint32_t mask = 1; mask < 4; mask *= 2) {
      const Candidate other = exchanged(cut, mask);
      if (before(other, cut)) cut = other;
    }
    int32_t rank[kOwn], length = 0;
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int32_t column = best.of[i].index;
      const bool barred = column == INT32_MAX || column == row || before(cut, best.of[i]);
      if (barred) best.of[i] = {INT32_MAX, INT32_MAX};
      length += barred ? 0 : 1;
      rank[i] = 0;
    }
    for (uint32_t mask = 0; mask < 4; ++mask) VCA_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      const Candidate other = exchanged(best.of[j], mask);
      VCA_UNROLL
      for (int i = 0; i < kOwn; ++i) rank[i] += before(other, best.of[i]) ? 1 : 0;
    }
    for (uint32_t mask = 1; mask < 4; mask *= 2) length += ptx::shfl_sync_bfly(length, mask);
    if (!real) return;
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i)
      if (best.of[i].index != INT32_MAX && rank[i] < kListed) list[rank[i]] = best.of[i].index;
    for (int i = length + lane() % 4; i < kListed; i += 4) list[i] = kListEnd;
  }

 private:
  VCA_DEVICE static Candidate exchanged(const Candidate& c, uint32_t mask) {
    return {ptx::shfl_sync_bfly(c.key, mask), ptx::shfl_sync_bfly(c.index, mask)};
  }
  VCA_DEVICE static void insert(int32_t (&own)[kOwn], int32_t key) {
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      const int32_t low = key < own[i] ? key : own[i];
      key = key < own[i] ? own[i] : key;
      own[i] = low;
    }
  }
  VCA_DEVICE static void keep_best(Best& best, Candidate next) {
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i)
      if (before(next, best.of[i])) {
        const Candidate worse = best.of[i];
        best.of[i] = next;
        next = worse;
      }
  }
};

// A list for each centroid, nearest first, without itself. -1 ends a list that may go on.
template <int kD>
struct Neighbours {
  using Finder = Nearest<kD>;
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 2;
  static constexpr int kItemRows = 128;
  static constexpr int kChunk = Finder::kChunk, kParts = Finder::kParts;

  static constexpr int64_t held(int64_t blocks) {
    return blocks < kChunk ? ceil_div(blocks, 16) * 16 : kChunk;
  }
  static int64_t smem_bytes(const Params& p) { return held(p.max_blocks) * (kD + 4); }
  static int64_t tiles(const Params& p) { return ceil_div(p.max_blocks, kItemRows); }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    const int64_t tiles = ceil_div(p.max_blocks, kItemRows);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      if (!clusters(p, x)) continue;
      const auto row0 = at.part * kItemRows;
      if (row0 < x.k) list_rows(p, x, row0, x.k);
    }
  }

 private:
  VCA_DEVICE static void list_rows(const Params& p, const Problem& x, int32_t row0, int32_t n) {
    const int8_t* vectors = p.centroids + x.block0 * kD;
    auto* rows = shared_at<unsigned char>(0);
    auto* base = shared_at<int32_t>(held(p.max_blocks) * kD);
    const int g = lane() / 4, t = lane() % 4;
    const int32_t upper = row0 + warp() * 16 + g, lower = upper + 8;
    RowShare<kD> a = empty_share<kD>(), b = empty_share<kD>();
    if (upper < n) a = share_from_global<kD>(vectors + int64_t{upper} * kD, t);
    if (lower < n) b = share_from_global<kD>(vectors + int64_t{lower} * kD, t);
    typename Finder::Best best[2];
    Finder::clear(best);
    for (int32_t c0 = 0; c0 < n; c0 += kChunk) {
      const int32_t columns = n - c0 < kChunk ? n - c0 : kChunk;
      const int padded = (columns + 15) / 16 * 16;
      VCA_UNROLL_8
      for (int i = thread(); i < padded * kParts; i += kThreads) {
        const int c = i / kParts;
        store_word4(rows + chunk_offset<kD>(c, i % kParts),
                    c < columns ? load_word4(vectors + (int64_t{c0} * kParts + i) * 16)
                                : Word4{0, 0, 0, 0});
      }
      sync_threads(kThreads);
      Finder::set_base(rows, base, columns, padded, kThreads);
      sync_threads(kThreads);
      Finder::compare(rows, base, a, b, c0, columns, best);
      sync_threads(kThreads);
    }
    VCA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t row = half == 0 ? upper : lower;
      Finder::write(p.lists + (x.block0 + row) * kListed, row < n, row, best[half]);
    }
  }
};

// Places of the centroids: from the one of largest norm always to the nearest unused one. A warp
// follows the lists; where one ends, all threads look through the centroids. One step waits for the
// other, on as many processors as there are problems, so Assign labels all rows beside it: both fit
// a processor, this one takes half of the registers.
template <int kD>
struct Chain {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 2;
  static constexpr Overlap kOverlap = Overlap::next;
  static constexpr int kOwn = 2;  // centroids of a thread in registers
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kParts = kD / 16;
  // Centroids, their lists and norms in shared memory, where there are not too many.
  static constexpr int64_t kHeld = 1024;
  static constexpr int64_t held(int64_t blocks) { return blocks <= kHeld ? blocks : 0; }
  static int64_t smem_bytes(const Params& p) {
    return 16 + kWarps * 8 + held(p.max_blocks) * (kD + kListed * 4) + p.max_blocks * 5;
  }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item);
      if (clusters(p, x)) chain(p, x);
      sync_threads(kThreads);
    }
  }

 private:
  // Where the chain stands: the next centroid (the last one, where its list has ended) and its
  // place.
  struct Shared {
    int32_t current, place;
    Candidate best[kWarps];
  };

  VCA_DEVICE static void chain(const Params& p, const Problem& x) {
    auto& s = *shared_at<Shared>(0);
    unsigned char* next = shared_at<unsigned char>(16 + kWarps * 8);
    const int8_t* centroids = p.centroids + x.block0 * kD;
    const int32_t* lists = p.lists + x.block0 * kListed;
    if (held(p.max_blocks) > 0) {
      for (int i = thread(); i < x.k * kParts; i += kThreads)
        store_word4(next + i * 16, load_word4(centroids + i * 16));
      centroids = reinterpret_cast<const int8_t*>(next);
      next += p.max_blocks * kD;
      auto* to = reinterpret_cast<int32_t*>(next);
      for (int i = thread(); i < x.k * kListed; i += kThreads) to[i] = lists[i];
      lists = to;
      next += p.max_blocks * kListed * 4;
    }
    auto* norms = reinterpret_cast<int32_t*>(next);
    uint8_t* used = next + p.max_blocks * 4;
    if (thread() == 0) s.place = 0;
    sync_threads(kThreads);
    Candidate mine{INT32_MAX, INT32_MAX};
    for (int32_t c = thread(); c < x.k; c += kThreads) {
      used[c] = 0;
      norms[c] = product(centroids, c, c);
      if (-norms[c] < mine.key) mine = {-norms[c], c};
    }
    // The first centroids of a thread stay in registers.
    Word4 own[kOwn][kParts];
    VCA_UNROLL
    for (int j = 0; j < kOwn; ++j) {
      const int32_t c = thread() + j * kThreads < x.k ? thread() + j * kThreads : 0;
      VCA_UNROLL
      for (int i = 0; i < kParts; ++i) own[j][i] = load_word4(centroids + int64_t{c} * kD + i * 16);
    }
    find_best(s, mine);
    for (;;) {
      if (warp() == 0) follow(p, x, s, lists, used);
      sync_threads(kThreads);
      if (s.place == x.k) return;
      const int32_t current = s.current;
      mine = {INT32_MAX, INT32_MAX};
      int32_t sum[kOwn] = {};
      VCA_UNROLL
      for (int i = 0; i < kParts; ++i) {
        const Word4 part = load_word4(centroids + int64_t{current} * kD + i * 16);
        VCA_UNROLL
        for (int j = 0; j < kOwn; ++j) sum[j] = product_of(own[j][i], part, sum[j]);
      }
      VCA_UNROLL
      for (int j = 0; j < kOwn; ++j) {
        const int32_t c = thread() + j * kThreads;
        if (c >= x.k || used[c] != 0) continue;
        const int32_t distance = norms[c] - 2 * sum[j];
        if (distance < mine.key) mine = {distance, c};
      }
      for (int32_t c = thread() + kOwn * kThreads; c < x.k; c += kThreads) {
        if (used[c] != 0) continue;
        const int32_t distance = norms[c] - 2 * product(centroids, c, current);
        if (distance < mine.key) mine = {distance, c};
      }
      find_best(s, mine);
    }
  }

  // s.current = the best of all threads.
  VCA_DEVICE static void find_best(Shared& s, Candidate mine) {
    mine = warp_best(mine);
    if (lane() == 0) s.best[warp()] = mine;
    sync_threads(kThreads);
    if (warp() == 0) {
      mine = warp_best(lane() < kWarps ? s.best[lane()] : Candidate{INT32_MAX, INT32_MAX});
      if (lane() == 0) s.current = mine.index;
    }
    sync_threads(kThreads);
  }

  // From s.current on, until a list has no unused centroid.
  VCA_DEVICE static void follow(const Params& p, const Problem& x, Shared& s, const int32_t* lists,
                                uint8_t* used) {
    int32_t current = s.current, place = s.place;
    for (;;) {
      if (lane() == 0) {
        used[current] = 1;
        p.bucket[x.block0 + current] = place;
      }
      ++place;
      ptx::bar_warp_sync();
      const int32_t listed = lane() < kListed ? lists[current * kListed + lane()] : kListEnd;
      const uint32_t unused = ptx::vote_sync_ballot(listed != kListEnd && used[listed] == 0);
      if (unused == 0) break;
      const int32_t first = popcount((unused & (0u - unused)) - 1u);
      current = static_cast<int32_t>(
          ptx::shfl_sync_idx(static_cast<uint32_t>(listed), static_cast<uint32_t>(first)));
      // The reads above are done, since the vote needs their values; racecheck wants it said.
      ptx::bar_warp_sync();
    }
    if (lane() == 0) {
      s.current = current;
      s.place = place;
    }
  }

  // Of two centroids. Each lane begins at another word: rows are a multiple of all banks apart.
  VCA_DEVICE static int32_t product(const int8_t* centroids, int32_t a, int32_t b) {
    int32_t sum = 0;
    VCA_UNROLL
    for (int i = 0; i < kParts; ++i) {
      const int at = (i + a) % kParts * 16;
      sum = product_of(load_word4(centroids + int64_t{a} * kD + at),
                       load_word4(centroids + int64_t{b} * kD + at), sum);
    }
    return sum;
  }
  VCA_DEVICE static int32_t product_of(const Word4& u, const Word4& v, int32_t sum) {
    sum = ptx::dp4a(u.x, v.x, sum);
    sum = ptx::dp4a(u.y, v.y, sum);
    sum = ptx::dp4a(u.z, v.z, sum);
    return ptx::dp4a(u.w, v.w, sum);
  }
};

}  // namespace vca::kernels::group
