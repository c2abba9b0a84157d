// SPDX-License-Identifier: Apache-2.0
// k-means in integers: start centroids, nearest centroid of every row; means in update.hpp.
//
// Nearest: |c|^2 - 2 x.c on tensor cores, exact in int32. A score lies in (-2^22, 2^23), so
// 256 |c|^2 - 512 x.c + t, 0 < t < 256, is one 32-bit key: its minimum is the nearest centroid and
// the lowest of equals, because a lane meets two columns of each group of eight, in ascending t.
// t = 0 stands for the nearest of the chunks of centroids before.
#pragma once

#include "kernels/group/bits.hpp"

namespace vca::kernels::group {

// Rows of the sample, written where the order will be: place i of the problem holds row i.
struct SampleRows {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kItemRows = 1024;
  static int64_t smem_bytes(const Params&) { return 0; }
  static int64_t tiles(const Params& p) {
    return ceil_div(max_sample(p, p.max_blocks * kRows), kItemRows);
  }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    const int64_t tiles = items / p.n_problems;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      if (!clusters(p, x)) continue;
      const int64_t m = sample_size(p, x), first = int64_t{at.part} * kItemRows;
      for (int64_t i = first + thread(); i < min_i64(m, first + kItemRows); i += kThreads)
        p.order[x.block0 * kRows + i] = static_cast<int32_t>(sample_row(i, x.n, m));
    }
  }
};

struct StartCentroids {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static int64_t smem_bytes(const Params&) { return 0; }
  // An item: 32 centroids of a problem.
  static constexpr int kCentroids = 32;
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    const int64_t tiles = ceil_div(p.max_blocks, kCentroids);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      if (!clusters(p, x)) continue;
      const int64_t m = sample_size(p, x);
      const int parts = p.d_pad / 16;
      for (int i = thread(); i < kCentroids * parts; i += kThreads) {
        const int64_t c = int64_t{at.part} * kCentroids + i / parts;
        if (c >= x.k) continue;
        const int64_t row = p.order[x.block0 * kRows + sample_row(c, m, x.k)];
        store_word4(p.centroids + (x.block0 + c) * p.d_pad + i % parts * 16,
                    load_word4(p.values + (x.row0 + row) * p.d_pad + i % parts * 16));
      }
    }
  }
};

// Labels of the sample or of all rows: products of 64 rows by 128 centroids, one warpgroup each.
// All centroids (up to kChunk) lie in shared memory; a CTA takes a run of items, so that it loads
// them once a problem. Rows lie in registers: reading both operands of every product from shared
// memory leaves no time for the base keys. Four warpgroups share the tensor cores of a processor:
// while one compares, the others multiply.
template <int kD, bool kSample>
struct Assign {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 2;
  // All rows are labelled while the centroids are chained: neither needs the other.
  static constexpr Overlap kOverlap = kSample ? Overlap::none : Overlap::last;
  static constexpr int kGroupThreads = 128, kGroupRows = 64, kTile = 128;
  static constexpr int kItemRows = kThreads / kGroupThreads * kGroupRows;
  static constexpr int kChunk = 640;  // centroids in shared memory, of two CTAs
  static constexpr int kParts = kD / 16;
  static constexpr ptx::Swizzle kSwizzle = kD == 128 ? ptx::Swizzle::b128 : ptx::Swizzle::b64;

  static constexpr int64_t held(int64_t blocks) {
    return blocks < kChunk ? ceil_div(blocks, kTile) * kTile : kChunk;
  }
  static int64_t smem_bytes(const Params& p) { return held(p.max_blocks) * (kD + 4); }
  static int64_t tiles(const Params& p) {
    const int64_t rows = p.max_blocks * kRows;
    return ceil_div(kSample ? max_sample(p, rows) : rows, kItemRows);
  }

  // `iteration`: of k-means over the sample.
  VCA_DEVICE static void run(const Params& p, int32_t iteration, int64_t items) {
    if (*p.any_cold == 0) return;
    // Fewer items than 2^31: each stands for at least 128 rows of INT8 in memory.
    const auto tiles = static_cast<int32_t>(items / p.n_problems);
    const auto last =
        static_cast<int32_t>(items * (ptx::cta_index() + int64_t{1}) / ptx::grid_size());
    int32_t loaded = -1;  // problem whose only chunk is in shared memory
    Problem x;
    x.index = -1;
    for (auto item = static_cast<int32_t>(items * ptx::cta_index() / ptx::grid_size()); item < last;
         ++item) {
      const Piece at = piece_of(item, tiles);
      if (x.index != at.whole) x = problem_at(p, at.whole);
      if (!clusters(p, x) || (kSample && iteration >= iterations_of(p, x))) continue;
      const int32_t m = kSample ? sample_size(p, x) : x.n;
      const int64_t row0 = int64_t{at.part} * kItemRows;
      if (row0 >= m) continue;
      label_rows(p, x, m, row0, loaded);
    }
  }

 private:
  static constexpr int kSteps = RowShare<kD>::kSteps;
  // 16 rows of a warp as first operands.
  struct Rows {
    uint32_t step[kSteps][4];
  };
  // Shared memory: centroids | base keys of the centroids.
  VCA_DEVICE static int32_t* base_of(const Params& p) {
    return shared_at<int32_t>(held(p.max_blocks) * kD);
  }

  VCA_DEVICE static void load_centroids(const Params& p, const int8_t* from, int32_t n) {
    const int padded = (n + kTile - 1) / kTile * kTile;
    // Which channel a product calls k does not matter, as long as both operands agree: the words
    // that a lane of the first operand has in one load (RowShare) belong to different steps.
    VCA_UNROLL_4
    for (int i = thread(); i < padded * kParts; i += kThreads) {
      const int c = i / kParts, part = i % kParts;
      ptx::Words4 to = {};
      if (c < n) {
        const auto* words = reinterpret_cast<const uint32_t*>(from + int64_t{c} * kD);
        VCA_UNROLL
        for (int t = 0; t < 4; ++t) to.word[t] = words[part / 4 * 16 + t * 4 + part % 4];
      }
      ptx::st_shared_v4(
          ptx::dynamic_smem() + ptx::swizzled_offset(static_cast<uint32_t>(c),
                                                     static_cast<uint32_t>(part) * 16, kSwizzle),
          to);
    }
    ptx::fence_proxy_async_shared_cta();
    sync_threads(kThreads);
    int32_t* base = base_of(p);
    const auto* rows = shared_at<unsigned char>(0);
    for (int c = thread(); c < padded; c += kThreads) {
      int32_t norm = 0;  // the swizzle permutes a row's words only
      for (int i = 0; i < kParts; ++i) {
        const Word4 w = load_word4(rows + c * kD + (i + c) % kParts * 16);
        for (int j = 0; j < 4; ++j) norm = ptx::dp4a(word_of(w, j), word_of(w, j), norm);
      }
      base[c] = c < n ? norm * 256 + c / 8 * 2 + c % 2 + 1 : INT32_MAX;
    }
    sync_threads(kThreads);
  }

  // The warp's rows of [first, first + left).
  VCA_DEVICE static Rows load_rows(const Params& p, const Problem& x, int64_t first, int32_t left) {
    const int32_t* sampled = p.order + x.block0 * kRows + first;
    const int8_t* values = p.values + (x.row0 + (kSample ? 0 : first)) * kD;
    Rows out;
    VCA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = warp() % 4 * 16 + half * 8 + lane() / 4;
      RowShare<kD> share = empty_share<kD>();
      if (row < left)
        share =
            share_from_global<kD>(values + int64_t{kSample ? sampled[row] : row} * kD, lane() % 4);
      VCA_UNROLL
      for (int j = 0; j < kSteps; ++j) {
        out.step[j][half] = share.low(j);
        out.step[j][2 + half] = share.high(j);
      }
    }
    return out;
  }

  VCA_DEVICE static void label_rows(const Params& p, const Problem& x, int32_t m, int64_t row0,
                                    int32_t& loaded) {
    const int group = thread() / kGroupThreads, t = lane() % 4;
    const int64_t first = row0 + group * kGroupRows;
    const auto left = static_cast<int32_t>(m - first < kGroupRows ? m - first : kGroupRows);
    Rows rows = load_rows(p, x, first, left);
    const auto index = static_cast<int32_t>(x.index);
    const int8_t* centroids = p.centroids + x.block0 * kD;
    int32_t key[2] = {INT32_MAX, INT32_MAX}, nearest[2] = {0, 0};
    for (int32_t c0 = 0; c0 < x.k; c0 += kChunk) {
      const int32_t n = x.k - c0 < kChunk ? x.k - c0 : kChunk;
      if (loaded != index) {
        sync_threads(kThreads);  // the others may still read the chunk before
        load_centroids(p, centroids + int64_t{c0} * kD, n);
        loaded = x.k <= kChunk ? index : -1;
      }
      meet_centroids(p, rows, c0, n, key, nearest);
    }
    int32_t* labels = p.labels + x.row0 + first;
    VCA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = warp() % 4 * 16 + lane() / 4 + half * 8;
      const int32_t label = join_lanes(key[half] >> 8, nearest[half]);
      if (t == 0 && row < left) labels[row] = label;
    }
  }

  VCA_DEVICE static void meet_centroids(const Params& p, Rows& rows, int32_t c0, int32_t n,
                                        int32_t (&key)[2], int32_t (&nearest)[2]) {
    const int t = lane() % 4;
    const int32_t* base = base_of(p) + 2 * t;
    ptx::MatrixDesc b = ptx::matrix_desc(ptx::dynamic_smem(), kSwizzle);
    for (int32_t c = 0; c < n; c += kTile) {
      int32_t dot[64];
      ptx::wgmma_fence();
      VCA_UNROLL
      for (uint32_t step = 0; step < kSteps; ++step)
        ptx::wgmma_m64n128k32_s32_s8_s8(dot, rows.step[step], ptx::advance(b, step * 32), step > 0);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      VCA_UNROLL
      for (int i = 0; i < 64; ++i) ptx::keep(dot[i]);
      VCA_UNROLL
      for (int i = 0; i < 4 * kSteps; ++i) ptx::keep(rows.step[i / 4][i % 4]);
      VCA_UNROLL
      for (int i = 0; i < 16; ++i) {
        const int32_t even = base[c + 8 * i], odd = base[c + 8 * i + 1];
        key[0] = min3(key[0], even - 512 * dot[4 * i], odd - 512 * dot[4 * i + 1]);
        key[1] = min3(key[1], even - 512 * dot[4 * i + 2], odd - 512 * dot[4 * i + 3]);
      }
      b = ptx::advance(b, kTile * kD);
    }
    VCA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int32_t at = (key[half] & 255) - 1;
      if (at < 0) continue;
      nearest[half] = c0 + at / 2 * 8 + 2 * t + at % 2;
      key[half] &= ~255;
    }
  }

  // The four lanes of a row.
  VCA_DEVICE static int32_t join_lanes(int32_t score, int32_t centroid) {
    for (uint32_t mask = 1; mask < 4; mask *= 2) {
      const int32_t other = ptx::shfl_sync_bfly(score, mask);
      const int32_t its = ptx::shfl_sync_bfly(centroid, mask);
      if (other < score || (other == score && its < centroid)) {
        score = other;
        centroid = its;
      }
    }
    return centroid;
  }
};

}  // namespace vca::kernels::group
