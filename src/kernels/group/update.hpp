// SPDX-License-Identifier: Apache-2.0
// k-means in integers: centroids become the rounded means of their sampled rows.
#pragma once

#include "kernels/group/bits.hpp"

namespace vca::kernels::group {

// Up to 64 centroids of a problem. The rows labelled with them are listed centroid by centroid (a
// counting sort of up to kRowsAtOnce rows at a time), then the list is summed in even shares: the
// rows of a centroid lie together, so that sums stay in registers until the centroid changes. In
// which order rows of a centroid are listed does not matter: integer additions commute.
template <int kD>
struct Update {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static constexpr int kCentroids = 64;
  static constexpr int32_t kRowsAtOnce = 10240;  // of the sample, 16-bit numbers
  struct Shared {
    int32_t sums[kCentroids * kD];
    int32_t counts[kCentroids];  // rows of a centroid so far
    int32_t last[kCentroids];    // behind the rows of a centroid in the list
    uint16_t listed[kRowsAtOnce];
  };
  static_assert(kMinBlocks * (sizeof(Shared) + 1024) <= 228 * 1024);
  static int64_t smem_bytes(const Params&) { return sizeof(Shared); }
  // Centroids of a CTA: all 64, unless that leaves processors without work. Every CTA reads all
  // labels, but sums the rows of its own centroids only: of a short video a CTA with all centroids
  // sums the whole sample while others wait.
  static constexpr int32_t kFewest = 2;
  static constexpr int64_t kEnough = 2 * 132;  // two CTAs a processor of an H200
  static int32_t share(int64_t problems, int64_t blocks) {
    int32_t centroids = kCentroids;
    while (centroids > kFewest && problems * ceil_div(blocks, centroids) < kEnough) centroids /= 2;
    return centroids;
  }

  VCA_DEVICE static void run(const Params& p, int32_t iteration, int32_t share, int64_t items) {
    if (*p.any_cold == 0) return;
    const int64_t tiles = items / p.n_problems;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      const int32_t c0 = at.part * share;
      if (!clusters(p, x) || iteration >= iterations_of(p, x) || c0 >= x.k) continue;
      update(p, x, c0, x.k - c0 < share ? x.k - c0 : share);
      sync_threads(kThreads);
    }
  }

 private:
  static constexpr int kLanes = kD / 16;     // of a row, 16 channels each
  static constexpr int32_t kMostRows = 256;  // sums of unsigned bytes in halves of a word hold 257

  VCA_DEVICE static void update(const Params& p, const Problem& x, int32_t c0, int32_t n) {
    auto& s = *shared_at<Shared>(0);
    for (int i = thread(); i < n * kD; i += kThreads) s.sums[i] = 0;
    if (thread() < kCentroids) s.counts[thread()] = 0;
    const int32_t m = sample_size(p, x);
    for (int32_t first = 0; first < m; first += kRowsAtOnce) {
      const int32_t rows = m - first < kRowsAtOnce ? m - first : kRowsAtOnce;
      const int32_t* labels = p.labels + x.row0 + first;
      const int32_t listed = list_rows(s, labels, rows, c0, n);
      sum_rows(p, x, s, p.order + x.block0 * kRows + first, listed);
      sync_threads(kThreads);
    }
    for (int i = thread(); i < n * kD; i += kThreads) {
      const int c = i / kD, channel = i % kD;
      const int32_t count = s.counts[c],
                    sum = s.sums[c * kD + channel % 16 * kLanes + channel / 16];
      if (count > 0)
        p.centroids[(x.block0 + c0) * kD + i] = static_cast<int8_t>(round_div(sum, count));
    }
  }

  // Numbers of the rows of each centroid, one centroid after the other; how many there are.
  VCA_DEVICE static int32_t list_rows(Shared& s, const int32_t* labels, int32_t rows, int32_t c0,
                                      int32_t n) {
    if (thread() < kCentroids) s.last[thread()] = 0;
    sync_threads(kThreads);
    each_label(labels, rows, c0, n,
               [&s](int32_t, uint32_t c) { ptx::red_shared_add(&s.last[c], 1); });
    sync_threads(kThreads);
    static_assert(kCentroids == 64);
    if (warp() == 0) {
      const int32_t even = s.last[2 * lane()], odd = s.last[2 * lane() + 1];
      const int32_t sum = sum_up_to_lane(even + odd);
      s.counts[2 * lane()] += even;
      s.counts[2 * lane() + 1] += odd;
      // First places; every row that is listed moves its centroid's place on.
      s.last[2 * lane()] = sum - odd - even;
      s.last[2 * lane() + 1] = sum - odd;
    }
    sync_threads(kThreads);
    each_label(labels, rows, c0, n, [&s](int32_t row, uint32_t c) {
      s.listed[ptx::atom_shared_add(&s.last[c], 1)] = static_cast<uint16_t>(row);
    });
    sync_threads(kThreads);
    return s.last[kCentroids - 1];
  }

  // Calls take(row, c) for the rows labelled c0 + c, c < n. Labels are read in turns: one by one
  // each would wait for the one before it.
  template <class Take>
  VCA_DEVICE static void each_label(const int32_t* labels, int32_t rows, int32_t c0, int32_t n,
                                    const Take& take) {
    constexpr int kAtOnce = 10;
    VCA_UNROLL_1
    for (int32_t i0 = thread(); i0 < rows; i0 += kAtOnce * kThreads) {
      int32_t label[kAtOnce];
      VCA_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        label[k] = i0 + k * kThreads < rows ? labels[i0 + k * kThreads] : -1;
      VCA_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        if (label[k] >= c0 && label[k] < c0 + n)
          take(i0 + k * kThreads, static_cast<uint32_t>(label[k] - c0));
    }
  }

  // The lanes of a row and those of the next rows in the list sum a share of it each, kAtOnce rows
  // on the way, and pass on what they have when the centroid changes.
  VCA_DEVICE static void sum_rows(const Params& p, const Problem& x, Shared& s,
                                  const int32_t* sampled, int32_t listed) {
    constexpr int kGroups = kThreads / kLanes, kAtOnce = 4;
    const int group = thread() / kLanes, own = thread() % kLanes;
    const int8_t* values = p.values + x.row0 * kD + own * 16;
    int32_t at = group * listed / kGroups;
    const int32_t end = (group + 1) * listed / kGroups;
    // All lanes of a warp turn as often, so that they can tell each other rows.
    const int32_t turns = ((listed + kGroups - 1) / kGroups + kAtOnce - 1) / kAtOnce;
    static_assert(kAtOnce <= kLanes);
    int32_t row = own < kAtOnce && at + own < end ? sampled[s.listed[at + own]] : 0;
    int c = 0;
    int32_t last = 0;  // behind the rows of c, once it is found
    Sums sums{};
    for (int32_t turn = 0; turn < turns; ++turn) {
      Word4 w[kAtOnce];
      VCA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const auto from = static_cast<uint32_t>(lane() / kLanes * kLanes + i);
        const auto its = static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(row), from));
        if (at + i < end) w[i] = load_word4(values + int64_t{its} * kD);
      }
      const int32_t next = at + kAtOnce + own;
      row = own < kAtOnce && next < end ? sampled[s.listed[next]] : 0;
      VCA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (at + i >= end) break;
        if (at + i >= last || sums.rows == kMostRows) {
          add(s, c, own, sums);
          while (s.last[c] <= at + i) ++c;
          last = s.last[c];
        }
        sums.take(w[i]);
      }
      at += kAtOnce;
    }
    add(s, c, own, sums);
  }

  struct Sums {
    uint32_t even[4], odd[4];
    int32_t rows;
    VCA_DEVICE void take(const Word4& w) {
      VCA_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint32_t shifted = word_of(w, j) ^ 0x80808080u;  // + 128
        even[j] += shifted & 0x00FF00FFu;
        odd[j] += shifted >> 8 & 0x00FF00FFu;
      }
      ++rows;
    }
  };
  // Adds what the lane has to the sums of centroid c and forgets it. Channel 16 own + j lies at
  // kLanes j + own, so that the lanes of a row fall into different banks.
  VCA_DEVICE static void add(Shared& s, int c, int own, Sums& sums) {
    if (sums.rows == 0) return;
    const int32_t bias = 128 * sums.rows;
    int32_t* to = s.sums + c * kD + own;
    VCA_UNROLL
    for (int j = 0; j < 4; ++j) {
      ptx::red_shared_add(to + kLanes * (4 * j),
                          static_cast<int32_t>(sums.even[j] & 0xFFFFu) - bias);
      ptx::red_shared_add(to + kLanes * (4 * j + 1),
                          static_cast<int32_t>(sums.odd[j] & 0xFFFFu) - bias);
      ptx::red_shared_add(to + kLanes * (4 * j + 2),
                          static_cast<int32_t>(sums.even[j] >> 16) - bias);
      ptx::red_shared_add(to + kLanes * (4 * j + 3),
                          static_cast<int32_t>(sums.odd[j] >> 16) - bias);
    }
    sums = {};
  }
};

}  // namespace vca::kernels::group
