// SPDX-License-Identifier: Apache-2.0
// k-means in integers: start centroids, nearest centroid of every row, means.
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
      const Problem x = problem_at(p, item / tiles);
      if (!clusters(p, x)) continue;
      const int64_t m = sample_size(p, x), first = item % tiles * kItemRows;
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
      const Problem x = problem_at(p, item / tiles);
      if (!clusters(p, x)) continue;
      const int64_t m = sample_size(p, x);
      const int parts = p.d_pad / 16;
      for (int i = thread(); i < kCentroids * parts; i += kThreads) {
        const int64_t c = item % tiles * kCentroids + i / parts;
        if (c >= x.k) continue;
        const int64_t row = p.order[x.block0 * kRows + sample_row(c, m, x.k)];
        store_word4(p.centroids + (x.block0 + c) * p.d_pad + i % parts * 16,
                    load_word4(p.values + (x.row0 + row) * p.d_pad + i % parts * 16));
      }
    }
  }
};

// Labels of the sample or of all rows. A warp keeps 64 rows in registers and meets all centroids,
// which lie in shared memory; a CTA takes a run of items, so that it loads them once a problem.
template <int kD, bool kSample>
struct Assign {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 2;
  static constexpr int kTiles = 3;  // of 16 rows a warp; four would spill
  static constexpr int kItemRows = kThreads / 32 * kTiles * 16;
  static constexpr int kChunk = 768;  // centroids in shared memory

  static int64_t held(const Params& p) {
    return p.max_blocks < kChunk ? ceil_div(p.max_blocks, 8) * 8 : kChunk;
  }
  static int64_t smem_bytes(const Params& p) { return held(p) * (kD + 4); }
  static int64_t tiles(const Params& p) {
    const int64_t rows = p.max_blocks * kRows;
    return ceil_div(kSample ? max_sample(p, rows) : rows, kItemRows);
  }

  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    // Fewer items than 2^31: each stands for at least 128 rows of INT8 in memory.
    const auto tiles = static_cast<int32_t>(items / p.n_problems);
    const auto last =
        static_cast<int32_t>(items * (ptx::cta_index() + int64_t{1}) / ptx::grid_size());
    int32_t loaded = -1;  // problem whose only chunk is in shared memory
    for (auto item = static_cast<int32_t>(items * ptx::cta_index() / ptx::grid_size()); item < last;
         ++item) {
      const Problem x = problem_at(p, item / tiles);
      if (!clusters(p, x)) continue;
      const int32_t m = kSample ? sample_size(p, x) : x.n;
      const int64_t row0 = int64_t{item % tiles} * kItemRows;
      if (row0 >= m) continue;
      label_rows(p, x, m, row0, loaded);
    }
  }

 private:
  // Shared memory: centroids | their base keys.
  VCA_DEVICE static unsigned char* centroid_rows() { return shared_at<unsigned char>(0); }
  VCA_DEVICE static int32_t* base_of(const Params& p) {
    const int32_t blocks = static_cast<int32_t>(p.max_blocks);
    const int32_t held = blocks < kChunk ? (blocks + 7) / 8 * 8 : kChunk;
    return shared_at<int32_t>(held * kD);
  }

  VCA_DEVICE static void load_centroids(const Params& p, const int8_t* from, int32_t n) {
    unsigned char* rows = centroid_rows();
    const int padded = (n + 7) / 8 * 8;
    int32_t* base = base_of(p);
    constexpr int kParts = kD / 16;
    for (int i = thread(); i < padded * kParts; i += kThreads) {
      const int c = i / kParts;
      store_word4(rows + chunk_offset<kD>(c, i % kParts),
                  c < n ? load_word4(from + int64_t{i} * 16) : Word4{0, 0, 0, 0});
    }
    sync_threads(kThreads);
    for (int c = thread(); c < padded; c += kThreads)
      base[c] = c < n ? norm_of_row<kD>(rows, c) * 256 + c / 8 * 2 + c % 2 + 1 : INT32_MAX;
    sync_threads(kThreads);
  }

  VCA_DEVICE static void label_rows(const Params& p, const Problem& x, int32_t m, int64_t row0,
                                    int32_t& loaded) {
    const int g = lane() / 4, t = lane() % 4;
    const auto index = static_cast<int32_t>(x.index);
    const int8_t* centroids = p.centroids + x.block0 * kD;
    int32_t* labels = p.labels + x.row0 + row0;
    const int first = warp() * kTiles * 16 + g;
    const auto left = static_cast<int32_t>(m - row0 < kItemRows ? m - row0 : kItemRows);
    const int32_t* sampled = p.order + x.block0 * kRows + row0;
    const int8_t* values = p.values + (x.row0 + (kSample ? 0 : row0)) * kD;
    RowShare<kD> a[kTiles][2];
    VCA_UNROLL
    for (int i = 0; i < kTiles; ++i) VCA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first + i * 16 + half * 8;
      a[i][half] = empty_share<kD>();
      if (row < left)
        a[i][half] = share_from_global<kD>(values + int64_t{kSample ? sampled[row] : row} * kD, t);
    }
    int32_t key[kTiles][2], nearest[kTiles][2];
    VCA_UNROLL
    for (int i = 0; i < kTiles; ++i) key[i][0] = key[i][1] = INT32_MAX;
    for (int32_t c0 = 0; c0 < x.k; c0 += kChunk) {
      const int32_t n = x.k - c0 < kChunk ? x.k - c0 : kChunk;
      if (loaded != index) {
        sync_threads(kThreads);  // the others may still read the chunk before
        load_centroids(p, centroids + int64_t{c0} * kD, n);
        loaded = x.k <= kChunk ? index : -1;
      }
      meet_centroids(p, a, c0, n, key, nearest);
    }
    VCA_UNROLL
    for (int i = 0; i < kTiles; ++i) VCA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = first + i * 16 + half * 8;
      const int32_t label = join_lanes(key[i][half] >> 8, nearest[i][half]);
      if (t == 0 && row < left) labels[row] = label;
    }
  }

  VCA_DEVICE static void meet_centroids(const Params& p, const RowShare<kD> (&a)[kTiles][2],
                                        int32_t c0, int32_t n, int32_t (&key)[kTiles][2],
                                        int32_t (&nearest)[kTiles][2]) {
    const int g = lane() / 4, t = lane() % 4;
    const unsigned char* rows = centroid_rows();
    const int32_t* base = base_of(p);
    ptx::bar_warp_sync();  // the last rows of a segment are loaded by some lanes only
    for (int32_t c = 0; c < n; c += 8) {
      const RowShare<kD> column = share_from_shared<kD>(rows, c + g, t);
      const int32_t even = base[c + 2 * t], odd = base[c + 2 * t + 1];
      // Tiles inside steps: products that wait for each other are kTiles apart.
      int32_t dot[kTiles][4] = {};
      VCA_UNROLL
      for (int j = 0; j < RowShare<kD>::kSteps; ++j) {
        VCA_UNROLL
        for (int i = 0; i < kTiles; ++i)
          ptx::mma_m16n8k32_s32_s8_s8(dot[i], a[i][0].low(j), a[i][1].low(j), a[i][0].high(j),
                                      a[i][1].high(j), column.low(j), column.high(j));
      }
      VCA_UNROLL
      for (int i = 0; i < kTiles; ++i) {
        key[i][0] = min3(key[i][0], even - 512 * dot[i][0], odd - 512 * dot[i][1]);
        key[i][1] = min3(key[i][1], even - 512 * dot[i][2], odd - 512 * dot[i][3]);
      }
    }
    VCA_UNROLL
    for (int i = 0; i < kTiles; ++i) {
      VCA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int32_t at = (key[i][half] & 255) - 1;
        if (at < 0) continue;
        nearest[i][half] = c0 + at / 2 * 8 + 2 * t + at % 2;
        key[i][half] &= ~255;
      }
    }
  }
  VCA_DEVICE static int32_t min3(int32_t a, int32_t b, int32_t c) {
    const int32_t low = b < c ? b : c;
    return a < low ? a : low;
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

// Centroids become the rounded means of their sampled rows: 32 channels a CTA, sums in shared
// memory. Integer additions commute, so their order does not matter.
struct Update {
  static constexpr int kThreads = 384;
  static constexpr int kMinBlocks = 2;
  static constexpr int kChannels = 32;
  static constexpr int kAtOnce = 4;  // rows a lane has in flight
  static constexpr int kChunk = 1536;
  static int64_t smem_bytes(const Params& p) {
    return (p.max_blocks < kChunk ? p.max_blocks : kChunk) * (kChannels + 1) * 4;
  }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    const int slices = p.d_pad / kChannels;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item / slices);
      if (!clusters(p, x)) continue;
      for (int32_t c0 = 0; c0 < x.k; c0 += kChunk)
        update(p, x, static_cast<int>(item % slices) * kChannels, c0,
               x.k - c0 < kChunk ? x.k - c0 : kChunk);
    }
  }

 private:
  VCA_DEVICE static void update(const Params& p, const Problem& x, int channel0, int32_t c0,
                                int32_t n) {
    auto* sums = shared_at<int32_t>(0);
    int32_t* counts = sums + n * kChannels;
    for (int i = thread(); i < n * (kChannels + 1); i += kThreads) sums[i] = 0;
    sync_threads(kThreads);
    // A warp takes 32 rows: each lane looks up one, then eight lanes a row add four channels each.
    // The channels turn with the row, so that the lanes of four rows add into 32 different banks.
    const int32_t m = sample_size(p, x);
    const int q = lane() / 8, word = lane() % 8;
    const int32_t* sampled = p.order + x.block0 * kRows;
    const int8_t* values = p.values + x.row0 * p.d_pad + channel0 + word * 4;
    for (int32_t first = warp() * 32; first < m; first += kThreads) {
      const int32_t own = first + lane();
      const int32_t own_label = own < m ? p.labels[x.row0 + own] - c0 : -1;
      const int32_t own_row = own < m ? sampled[own] : 0;
      VCA_UNROLL_1
      for (int j0 = 0; j0 < 8; j0 += kAtOnce) {
        uint32_t bytes[kAtOnce];
        int32_t label[kAtOnce];
        VCA_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          const auto from = static_cast<uint32_t>(4 * (j0 + j) + q);
          const auto row =
              static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(own_row), from));
          label[j] =
              static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(own_label), from));
          bytes[j] = *reinterpret_cast<const uint32_t*>(values + int64_t{row} * p.d_pad);
        }
        VCA_UNROLL
        for (int j = 0; j < kAtOnce; ++j) {
          if (label[j] < 0 || label[j] >= n) continue;
          VCA_UNROLL
          for (int b = 0; b < 4; ++b) {
            const int turned = (b + q) & 3;
            ptx::red_shared_add(&sums[label[j] * kChannels + word * 4 + turned],
                                static_cast<int8_t>(bytes[j] >> (8 * turned)));
          }
          if (word == 0) ptx::red_shared_add(&counts[label[j]], 1);
        }
      }
    }
    sync_threads(kThreads);
    for (int i = thread(); i < n * kChannels; i += kThreads) {
      const int c = i / kChannels;
      if (counts[c] > 0)
        p.centroids[(x.block0 + c0 + c) * p.d_pad + channel0 + i % kChannels] =
            static_cast<int8_t>(round_div(sums[i], counts[c]));
    }
    sync_threads(kThreads);
  }
};

}  // namespace vca::kernels::group
