// SPDX-License-Identifier: Apache-2.0
// Stable counting sort of the rows of a problem by bucket: a histogram for every 2,048 rows, sums
// over (bucket, histogram), then every row to its place. Rows of a bucket stay ascending.
#pragma once

#include "kernels/group/bits.hpp"

namespace vca::kernels::group {

// Problems that are sorted, and the bucket of a label.
VCA_DEVICE bool sorts(const Params& p, const Problem& x) {
  if (x.start != Start::cold) return false;
  if (p.kind == spec::Grouping::cubes)
    return x.n > 0 && p.entries[piece_of(x.index, p.h_kv).whole].grid_w > 0;
  return clusters(p, x);
}
VCA_DEVICE int32_t buckets(const Params& p, const Problem& x) {
  return p.kind == spec::Grouping::cubes
             ? static_cast<int32_t>(p.entries[piece_of(x.index, p.h_kv).whole].labels)
             : x.k;
}

// Number of the 4 x 4 x 8 cube of a token in serpentine order: every second row of cubes runs
// backwards, so that cubes which meet in a block are neighbours.
VCA_DEVICE int32_t cube_number(int64_t place, int64_t grid_h, int64_t grid_w) {
  const int64_t t = place / (grid_h * grid_w), h = place / grid_w % grid_h, w = place % grid_w;
  const int64_t rows = (grid_h - 1) / 4 + 1, columns = (grid_w - 1) / 8 + 1;
  const int64_t ct = t / 4;
  int64_t ch = h / 4, cw = w / 8;
  if (ct % 2 != 0) ch = rows - 1 - ch;
  if ((ct * rows + ch) % 2 != 0) cw = columns - 1 - cw;
  return static_cast<int32_t>((ct * rows + ch) * columns + cw);
}

VCA_DEVICE int32_t bucket_of(const Params& p, const Problem& x, int64_t i) {
  if (p.kind == spec::Grouping::cubes) {
    const Entry& e = p.entries[piece_of(x.index, p.h_kv).whole];
    const int32_t* tokens = p.tokens + p.extra[x.sub].chunk_base * kRows + x.rank0;
    return cube_number(tokens[i] - e.begin, e.grid_h, e.grid_w);
  }
  const int32_t label = p.labels[x.row0 + i];
  return p.kind == spec::Grouping::kmeans ? label : p.bucket[x.block0 + label];
}

struct Histogram {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 2;
  static int64_t smem_bytes(const Params& p) { return 4 * p.max_labels; }
  static int64_t tiles(const Params& p) { return ceil_div(p.max_blocks * kRows, kHistogramRows); }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    auto* count = shared_at<int32_t>(0);
    const int64_t tiles = ceil_div(p.max_blocks * kRows, kHistogramRows);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      const int64_t first = int64_t{at.part} * kHistogramRows;
      if (!sorts(p, x) || first >= x.n) continue;
      const int32_t k = buckets(p, x);
      const int64_t last = min_i64(x.n, first + kHistogramRows);
      for (int c = thread(); c < k; c += kThreads) count[c] = 0;
      sync_threads(kThreads);
      for (int64_t i = first + thread(); i < last; i += kThreads)
        ptx::red_shared_add(&count[bucket_of(p, x, i)], 1);
      sync_threads(kThreads);
      int32_t* out = histogram_of(p, x) + int64_t{at.part} * k;
      for (int c = thread(); c < k; c += kThreads) out[c] = count[c];
      sync_threads(kThreads);
    }
  }
};

// Counts become first places. One block a problem.
struct HistogramSums {
  static constexpr int kThreads = 1024;
  static constexpr int kMinBlocks = 1;
  static int64_t smem_bytes(const Params&) { return 4 * (kThreads / 32); }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    auto* of_warp = shared_at<int32_t>(0);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item);
      if (!sorts(p, x)) continue;
      const int32_t k = buckets(p, x);
      const auto tiles = static_cast<int32_t>(ceil_div(x.n, kHistogramRows));
      int32_t* table = histogram_of(p, x);
      int32_t carry = 0;
      for (int32_t c0 = 0; c0 < k; c0 += kThreads) {
        const int32_t c = c0 + thread();
        int32_t total = 0;
        if (c < k) {
          VCA_UNROLL_4
          for (int32_t i = 0; i < tiles; ++i) total += table[int64_t{i} * k + c];
        }
        // Inclusive scan of the block.
        const int32_t sum = sum_up_to_lane(total);
        if (lane() == 31) of_warp[warp()] = sum;
        sync_threads(kThreads);
        int32_t before = carry, all = carry;
        for (int w = 0; w < kThreads / 32; ++w) {
          if (w < warp()) before += of_warp[w];
          all += of_warp[w];
        }
        sync_threads(kThreads);
        carry = all;
        int32_t place = before + sum - total;
        if (c < k)
          for (int32_t i = 0; i < tiles; ++i) {
            int32_t& at = table[int64_t{i} * k + c];
            const int32_t count = at;
            at = place;
            place += count;
          }
      }
    }
  }
};

// Each warp takes 256 rows in a row; first it counts them, then it places them.
struct Scatter {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 2;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kWarpRows = kHistogramRows / kWarps;
  static int64_t smem_bytes(const Params& p) { return 4 * kWarps * p.max_labels; }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    auto* next = shared_at<int32_t>(0);  // [warp][bucket]
    const int64_t tiles = ceil_div(p.max_blocks * kRows, kHistogramRows);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, tiles);
      const Problem x = problem_at(p, at.whole);
      const int64_t first = int64_t{at.part} * kHistogramRows;
      if (!sorts(p, x) || first >= x.n) continue;
      const int32_t k = buckets(p, x);
      for (int c = thread(); c < kWarps * k; c += kThreads) next[c] = 0;
      sync_threads(kThreads);
      int32_t* own = next + warp() * k;
      const int64_t begin = first + warp() * kWarpRows;
      int32_t bucket[kWarpRows / 32];  // of a lane's rows
      VCA_UNROLL
      for (int step = 0; step < kWarpRows / 32; ++step) {
        const int64_t i = begin + step * 32 + lane();
        bucket[step] = i < x.n ? bucket_of(p, x, i) : -1;
      }
      VCA_UNROLL
      for (int step = 0; step < kWarpRows / 32; ++step)
        if (bucket[step] >= 0) ptx::red_shared_add(&own[bucket[step]], 1);
      sync_threads(kThreads);
      const int32_t* start = histogram_of(p, x) + int64_t{at.part} * k;
      for (int c = thread(); c < k; c += kThreads) {
        int32_t place = start[c];
        for (int w = 0; w < kWarps; ++w) {
          const int32_t count = next[w * k + c];
          next[w * k + c] = place;
          place += count;
        }
      }
      sync_threads(kThreads);
      int32_t* order = p.order + x.block0 * kRows;
      VCA_UNROLL
      for (int step = 0; step < kWarpRows / 32; ++step) {
        const int64_t i = begin + step * 32 + lane();
        const int32_t c = bucket[step];
        const bool valid = c >= 0;
        const uint32_t same = ptx::match_sync_any(static_cast<uint32_t>(c));
        const int32_t before = popcount(same & ((1u << lane()) - 1u));
        const int32_t place = valid ? own[c] : 0;
        ptx::bar_warp_sync();  // all lanes have read before one writes
        if (valid && before == 0) own[c] = place + popcount(same);
        ptx::bar_warp_sync();
        if (valid) order[place + before] = x.rank0 + static_cast<int32_t>(i);
      }
      sync_threads(kThreads);
    }
  }
};

}  // namespace vca::kernels::group
