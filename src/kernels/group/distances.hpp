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
VCA_DEVICE Candidate warp_best(Candidate c) {
  const int32_t key = ptx::redux_sync_min(c.key);
  return {key, ptx::redux_sync_min(c.key == key ? c.index : INT32_MAX)};
}

// Places of the centroids: from the one of largest norm always to the nearest unused one. One block
// a problem, one barrier a step.
template <int kD>
struct Chain {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 1;
  static constexpr int kWarps = kThreads / 32;
  static int64_t smem_bytes(const Params& p) {
    return 2 * kWarps * static_cast<int64_t>(sizeof(Candidate)) + p.max_blocks;
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
    auto* used = shared_at<uint8_t>(2 * kWarps * static_cast<int64_t>(sizeof(Candidate)));
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
    const int32_t* table = matrix_of(p, x);
    for (int32_t place = 0; place < x.k; ++place) {
      mine = warp_best(mine);
      Candidate* round = best + place % 2 * kWarps;
      if (lane() == 0) round[warp()] = mine;
      sync_threads(kThreads);
      Candidate at = round[0];
      for (int w = 1; w < kWarps; ++w)
        if (round[w].key < at.key || (round[w].key == at.key && round[w].index < at.index))
          at = round[w];
      // The thread that owns the centroid is the only one that looks at its flag.
      if (thread() == at.index % kThreads) {
        used[at.index] = 1;
        p.bucket[x.block0 + at.index] = place;
      }
      mine = {INT32_MAX, INT32_MAX};
      const int32_t* row = table + at.index * x.pitch;
      for (int32_t c = thread(); c < x.k; c += kThreads)
        if (used[c] == 0 && row[c] < mine.key) mine = {row[c], c};
    }
  }
};

}  // namespace vca::kernels::group
