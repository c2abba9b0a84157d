// SPDX-License-Identifier: Apache-2.0
// All squared distances between the centroids, or between the block means, of a problem; and the
// chain through the centroids.
#pragma once

#include "kernels/group/bits.hpp"

namespace vca::kernels::group {

// What is compared: centroids before the chain, means of full blocks before pass number `pass`.
inline constexpr int32_t kCentroids = -1;

// 64 rows by 128 columns of the table.
template <int kD>
struct Distances {
  static constexpr int kThreads = 128;
  static constexpr int kMinBlocks = 4;
  static constexpr int kTileRows = 64, kTileColumns = 128;
  static int64_t smem_bytes(const Params&) { return kTileColumns * (kD + 4); }
  static int64_t tiles(const Params& p) {
    return ceil_div(p.max_blocks, kTileRows) * ceil_div(p.max_blocks, kTileColumns);
  }
  VCA_DEVICE static void run(const Params& p, int32_t pass, int64_t items) {
    if (pass == kCentroids && *p.any_cold == 0) return;
    const int64_t columns = ceil_div(p.max_blocks, kTileColumns);
    const int64_t tiles = ceil_div(p.max_blocks, kTileRows) * columns;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item / tiles);
      if (pass == kCentroids ? !clusters(p, x) : !exchanges(p, x, pass)) continue;
      const auto row0 = static_cast<int32_t>(item % tiles / columns * kTileRows);
      const auto column0 = static_cast<int32_t>(item % tiles % columns * kTileColumns);
      const int32_t n = pass == kCentroids ? x.k : x.full;
      if (row0 < n && column0 < n)
        tile((pass == kCentroids ? p.centroids : p.means) + x.block0 * kD, n, row0, column0,
             x.pitch, matrix_of(p, x));
    }
  }

 private:
  VCA_DEVICE static void tile(const int8_t* vectors, int32_t n, int32_t row0, int32_t column0,
                              int64_t pitch, int32_t* out) {
    auto* rows = shared_at<unsigned char>(0);
    auto* norms = shared_at<int32_t>(kTileColumns * kD);
    constexpr int kParts = kD / 16;
    const int32_t columns = n - column0 < kTileColumns ? n - column0 : kTileColumns;
    for (int i = thread(); i < kTileColumns * kParts; i += kThreads) {
      const int c = i / kParts;
      store_word4(rows + chunk_offset<kD>(c, i % kParts),
                  c < columns ? load_word4(vectors + int64_t{column0} * kD + int64_t{i} * 16)
                              : Word4{0, 0, 0, 0});
    }
    sync_threads(kThreads);
    norms[thread()] = norm_of_row<kD>(rows, thread());
    sync_threads(kThreads);
    const int g = lane() / 4, t = lane() % 4;
    const int32_t upper = row0 + warp() * 16 + g, lower = upper + 8;
    const RowShare<kD> a =
        upper < n ? share_from_global<kD>(vectors + int64_t{upper} * kD, t) : empty_share<kD>();
    const RowShare<kD> b =
        lower < n ? share_from_global<kD>(vectors + int64_t{lower} * kD, t) : empty_share<kD>();
    int32_t norm_a = norm_of_share(a), norm_b = norm_of_share(b);
    for (uint32_t mask = 1; mask < 4; mask *= 2) {
      norm_a += ptx::shfl_sync_bfly(norm_a, mask);
      norm_b += ptx::shfl_sync_bfly(norm_b, mask);
    }
    ptx::bar_warp_sync();  // the last rows are loaded by some lanes only
    for (int c = 0; c < columns; c += 8) {
      int32_t dot[4] = {0, 0, 0, 0};
      multiply<kD>(dot, a, b, share_from_shared<kD>(rows, c + g, t));
      const int i = c + 2 * t;
      // The pitch is a multiple of 8: padding columns exist.
      int32_t* to = out + column0 + i;
      if (upper < n) {
        to[upper * pitch] = norm_a + norms[i] - 2 * dot[0];
        to[upper * pitch + 1] = norm_a + norms[i + 1] - 2 * dot[1];
      }
      if (lower < n) {
        to[lower * pitch] = norm_b + norms[i] - 2 * dot[2];
        to[lower * pitch + 1] = norm_b + norms[i + 1] - 2 * dot[3];
      }
    }
    sync_threads(kThreads);
  }
};

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

// The nearest neighbours of every row of the table, nearest first, without the row itself and (for
// pairs) without blocks tried lately. -1 ends a list that may go on: whoever needs more looks into
// the table. A warp a row; each lane keeps the best four of its columns, so a list ends early where
// the fifth of one lane might come next.
inline constexpr int32_t kListEnd = -1;

struct Neighbours {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kOwn = 4;
  static int64_t smem_bytes(const Params&) { return 0; }
  VCA_DEVICE static void run(const Params& p, int32_t pass, int64_t items) {
    if (pass == kCentroids && *p.any_cold == 0) return;
    const int64_t tiles = ceil_div(p.max_blocks, kWarps);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item / tiles);
      if (pass == kCentroids ? !clusters(p, x) : !exchanges(p, x, pass)) continue;
      const auto row = static_cast<int32_t>(item % tiles * kWarps + warp());
      const int32_t n = pass == kCentroids ? x.k : x.full;
      if (row < n) list(p, x, pass, row, n);
    }
  }

 private:
  VCA_DEVICE static void list(const Params& p, const Problem& x, int32_t pass, int32_t row,
                              int32_t n) {
    int32_t avoid[kPairMemory];
    VCA_UNROLL
    for (int i = 0; i < kPairMemory; ++i)
      avoid[i] = pass > 0 ? p.tried[(x.block0 + row) * kPairMemory + i] : row;
    const int32_t* table = matrix_of(p, x) + row * x.pitch;
    Candidate own[kOwn];
    VCA_UNROLL
    for (int i = 0; i < kOwn; ++i) own[i] = {INT32_MAX, INT32_MAX};
    VCA_UNROLL_8
    for (int32_t c = lane(); c < n; c += 32) {
      Candidate next{table[c], c};
      bool barred = next.key >= own[kOwn - 1].key || c == row;
      VCA_UNROLL
      for (int i = 0; i < kPairMemory; ++i) barred = barred || c == avoid[i];
      if (barred) continue;
      // Columns come in ascending order: equal distances keep theirs.
      VCA_UNROLL
      for (int i = 0; i < kOwn; ++i)
        if (next.key < own[i].key) {
          const Candidate worse = own[i];
          own[i] = next;
          next = worse;
        }
    }
    int32_t result = kListEnd;
    int taken = 0;
    for (int i = 0; i < kListed; ++i) {
      const Candidate best = warp_best(own[0]);
      if (best.key == INT32_MAX) break;
      if (lane() == i) result = best.index;
      if (own[0].index == best.index) {
        VCA_UNROLL
        for (int j = 0; j + 1 < kOwn; ++j) own[j] = own[j + 1];
        own[kOwn - 1] = {INT32_MAX, INT32_MAX};
        ++taken;
      }
      if (ptx::vote_sync_any(taken == kOwn)) break;
    }
    if (lane() < kListed) p.lists[(x.block0 + row) * kListed + lane()] = result;
  }
};

// Places of the centroids: from the one of largest norm always to the nearest unused one. One warp
// a problem; the others only help it to load.
template <int kD>
struct Chain {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 1;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int64_t kHeld = 3000;  // centroids whose lists fit shared memory
  static int64_t smem_bytes(const Params& p) {
    return kWarps * static_cast<int64_t>(sizeof(Candidate)) +
           (p.max_blocks <= kHeld ? p.max_blocks * kListed * 4 : 0) + p.max_blocks;
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
  VCA_DEVICE static void chain(const Params& p, const Problem& x) {
    auto* best = shared_at<Candidate>(0);
    auto* held = shared_at<int32_t>(kWarps * static_cast<int64_t>(sizeof(Candidate)));
    const bool holds = p.max_blocks <= kHeld;
    auto* used = reinterpret_cast<uint8_t*>(held + (holds ? p.max_blocks * kListed : 0));
    const int32_t* lists = p.lists + x.block0 * kListed;
    Candidate mine{INT32_MAX, INT32_MAX};
    for (int32_t c = thread(); c < x.k; c += kThreads) {
      used[c] = 0;
      const int8_t* row = p.centroids + (x.block0 + c) * kD;
      int32_t norm = 0;
      for (int i = 0; i < kD / 16; ++i) {
        const Word4 w = load_word4(row + i * 16);
        for (int j = 0; j < 4; ++j) norm = ptx::dp4a(word_of(w, j), word_of(w, j), norm);
      }
      if (-norm < mine.key) mine = {-norm, c};
    }
    if (holds) {
      for (int i = thread(); i < x.k * kListed; i += kThreads) held[i] = lists[i];
      lists = held;
    }
    mine = warp_best(mine);
    if (lane() == 0) best[warp()] = mine;
    sync_threads(kThreads);
    if (warp() != 0) return;
    Candidate at = best[0];
    for (int w = 1; w < kWarps; ++w)
      if (before(best[w], at)) at = best[w];
    const int32_t* table = matrix_of(p, x);
    int32_t current = at.index;
    for (int32_t place = 0; place < x.k; ++place) {
      if (lane() == 0) {
        used[current] = 1;
        p.bucket[x.block0 + current] = place;
      }
      ptx::bar_warp_sync();
      const int32_t listed = lane() < kListed ? lists[current * kListed + lane()] : kListEnd;
      const uint32_t unused = ptx::vote_sync_ballot(listed != kListEnd && used[listed] == 0);
      if (unused != 0) {
        const int32_t first = popcount((unused & (0u - unused)) - 1u);
        current = static_cast<int32_t>(
            ptx::shfl_sync_idx(static_cast<uint32_t>(listed), static_cast<uint32_t>(first)));
        continue;
      }
      Candidate next{INT32_MAX, INT32_MAX};
      const int32_t* row = table + current * x.pitch;
      VCA_UNROLL_8
      for (int32_t c = lane(); c < x.k; c += 32) {
        const int32_t distance = row[c];
        if (used[c] == 0 && distance < next.key) next = {distance, c};
      }
      current = warp_best(next).index;
    }
  }
};

}  // namespace vca::kernels::group
