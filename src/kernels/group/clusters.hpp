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
// them once a problem. Four warpgroups share the tensor cores of a processor: while one compares,
// the others multiply.
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
  static int64_t smem_bytes(const Params& p) {
    return (held(p.max_blocks) + kItemRows) * kD + held(p.max_blocks) * 4;
  }
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
    for (auto item = static_cast<int32_t>(items * ptx::cta_index() / ptx::grid_size()); item < last;
         ++item) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      if (!clusters(p, x) || (kSample && iteration >= iterations_of(p, x))) continue;
      const int32_t m = kSample ? sample_size(p, x) : x.n;
      const int64_t row0 = int64_t{at.part} * kItemRows;
      if (row0 >= m) continue;
      label_rows(p, x, m, row0, loaded);
    }
  }

 private:
  // Shared memory: centroids | rows of both warpgroups | base keys of the centroids.
  VCA_DEVICE static ptx::SmemAddr rows_at(const Params& p, int group) {
    return ptx::dynamic_smem() +
           static_cast<uint32_t>((held(p.max_blocks) + group * kGroupRows) * kD);
  }
  VCA_DEVICE static int32_t* base_of(const Params& p) {
    return shared_at<int32_t>((held(p.max_blocks) + kItemRows) * kD);
  }
  VCA_DEVICE static uint32_t offset_of(int row, int part) {
    return ptx::swizzled_offset(static_cast<uint32_t>(row), static_cast<uint32_t>(part) * 16,
                                kSwizzle);
  }
  VCA_DEVICE static void store(ptx::SmemAddr to, const Word4& w) {
    ptx::st_shared_v4(to, ptx::Words4{{w.x, w.y, w.z, w.w}});
  }
  VCA_DEVICE static void sync_group(int group) {
    ptx::bar_warp_sync();
    ptx::bar_sync(static_cast<uint32_t>(1 + group), kGroupThreads);
  }

  VCA_DEVICE static void load_centroids(const Params& p, const int8_t* from, int32_t n) {
    const int padded = (n + kTile - 1) / kTile * kTile;
    for (int i = thread(); i < padded * kParts; i += kThreads) {
      const int c = i / kParts;
      store(ptx::dynamic_smem() + offset_of(c, i % kParts),
            c < n ? load_word4(from + int64_t{i} * 16) : Word4{0, 0, 0, 0});
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

  VCA_DEVICE static void load_rows(const Params& p, const Problem& x, int group, int64_t first,
                                   int32_t left) {
    const int32_t* sampled = p.order + x.block0 * kRows + first;
    const int8_t* values = p.values + (x.row0 + (kSample ? 0 : first)) * kD;
    const int own = thread() % kGroupThreads;
    constexpr int kAtOnce = kGroupRows * kParts / kGroupThreads;
    Word4 w[kAtOnce];
    VCA_UNROLL
    for (int i = 0; i < kAtOnce; ++i) {
      const int row = (i * kGroupThreads + own) / kParts, part = own % kParts;
      w[i] = row < left
                 ? load_word4(values + int64_t{kSample ? sampled[row] : row} * kD + part * 16)
                 : Word4{0, 0, 0, 0};
    }
    VCA_UNROLL
    for (int i = 0; i < kAtOnce; ++i)
      store(rows_at(p, group) + offset_of((i * kGroupThreads + own) / kParts, own % kParts), w[i]);
    ptx::fence_proxy_async_shared_cta();
    sync_group(group);
  }

  VCA_DEVICE static void label_rows(const Params& p, const Problem& x, int32_t m, int64_t row0,
                                    int32_t& loaded) {
    const int group = thread() / kGroupThreads, t = lane() % 4;
    const int64_t first = row0 + group * kGroupRows;
    const auto left = static_cast<int32_t>(m - first < kGroupRows ? m - first : kGroupRows);
    load_rows(p, x, group, first, left);
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
      meet_centroids(p, group, c0, n, key, nearest);
    }
    int32_t* labels = p.labels + x.row0 + first;
    VCA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int row = warp() % 4 * 16 + lane() / 4 + half * 8;
      const int32_t label = join_lanes(key[half] >> 8, nearest[half]);
      if (t == 0 && row < left) labels[row] = label;
    }
    sync_group(group);  // all have read the rows
  }

  VCA_DEVICE static void meet_centroids(const Params& p, int group, int32_t c0, int32_t n,
                                        int32_t (&key)[2], int32_t (&nearest)[2]) {
    const int t = lane() % 4;
    const int32_t* base = base_of(p) + 2 * t;
    const ptx::MatrixDesc a = ptx::matrix_desc(rows_at(p, group), kSwizzle);
    ptx::MatrixDesc b = ptx::matrix_desc(ptx::dynamic_smem(), kSwizzle);
    for (int32_t c = 0; c < n; c += kTile) {
      int32_t dot[64];
      ptx::wgmma_fence();
      VCA_UNROLL
      for (uint32_t step = 0; step < kD / 32; ++step)
        ptx::wgmma_m64n128k32_s32_s8_s8(dot, ptx::advance(a, step * 32), ptx::advance(b, step * 32),
                                        step > 0);
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      VCA_UNROLL
      for (int i = 0; i < 64; ++i) ptx::keep(dot[i]);
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

// Centroids become the rounded means of their sampled rows: 16 channels a CTA, sums in shared
// memory. Integer additions commute, so their order does not matter.
struct Update {
  static constexpr int kThreads = 384;
  static constexpr int kMinBlocks = 3;
  static constexpr int kChannels = 16;
  static constexpr int kLanes = kChannels / 4;  // a row
  static constexpr int kChunk = 1536;
  static int64_t smem_bytes(const Params& p) {
    return (p.max_blocks < kChunk ? p.max_blocks : kChunk) * (kChannels + 1) * 4;
  }
  VCA_DEVICE static void run(const Params& p, int32_t iteration, int64_t items) {
    if (*p.any_cold == 0) return;
    const int slices = p.d_pad / kChannels;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, slices);
      const Problem x = problem_at(p, at.whole);
      if (!clusters(p, x) || iteration >= iterations_of(p, x)) continue;
      for (int32_t c0 = 0; c0 < x.k; c0 += kChunk)
        update(p, x, at.part * kChannels, c0, x.k - c0 < kChunk ? x.k - c0 : kChunk);
    }
  }

 private:
  VCA_DEVICE static void update(const Params& p, const Problem& x, int channel0, int32_t c0,
                                int32_t n) {
    auto* sums = shared_at<int32_t>(0);
    int32_t* counts = sums + n * kChannels;
    for (int i = thread(); i < n * (kChannels + 1); i += kThreads) sums[i] = 0;
    sync_threads(kThreads);
    // A warp takes 32 rows: each lane looks up one, then four lanes a row add four channels each.
    // The channels turn with the row, so that rows of one centroid fall into different banks.
    const int32_t m = sample_size(p, x);
    const int q = lane() / kLanes, word = lane() % kLanes;
    const int32_t* sampled = p.order + x.block0 * kRows;
    const int8_t* values = p.values + x.row0 * p.d_pad + channel0 + word * 4;
    int32_t own = warp() * 32 + lane();
    int32_t next_label = own < m ? p.labels[x.row0 + own] - c0 : -1;
    int32_t next_row = own < m ? sampled[own] : 0;
    for (int32_t first = warp() * 32; first < m; first += kThreads) {
      const int32_t own_label = next_label, own_row = next_row;
      own += kThreads;  // looked up while this turn adds
      next_label = own < m ? p.labels[x.row0 + own] - c0 : -1;
      next_row = own < m ? sampled[own] : 0;
      uint32_t bytes[kLanes];
      int32_t label[kLanes];
      VCA_UNROLL
      for (int j = 0; j < kLanes; ++j) {
        const auto from = static_cast<uint32_t>(32 / kLanes * j + q);
        const auto row =
            static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(own_row), from));
        label[j] = static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(own_label), from));
        bytes[j] = *reinterpret_cast<const uint32_t*>(values + int64_t{row} * p.d_pad);
      }
      VCA_UNROLL
      for (int j = 0; j < kLanes; ++j) {
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
