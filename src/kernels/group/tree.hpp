// SPDX-License-Identifier: Apache-2.0
// The k-d tree: all nodes of a level at once, a CTA each. A node keeps its range of places and
// sorts its rows into those of the left child and the rest; inside a child, any order will do.
#pragma once

#include "kernels/group/axes.hpp"

namespace vca::kernels::group {

// Levels until every node is one block.
inline int32_t tree_levels(int64_t blocks) {
  int32_t levels = 0;
  for (; blocks > 1; blocks = (blocks + 1) / 2) ++levels;
  return levels;
}

struct SplitNodes {
  static constexpr int kThreads = 1024;
  static constexpr int kMinBlocks = 1;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;
  // Digits of a key, most significant first: two of the projection, three of the rank.
  static constexpr int kDigits = 5;
  struct Shared {
    int32_t bins[kBins];
    int64_t parts[kWarps][kAxes];
    int64_t sums[kAxes];
    int32_t bin, before, count;  // the digit of the last left row
    int32_t next[2];             // places taken, left and right
  };
  // Rows [begin, begin + n) of a problem.
  struct Node {
    int32_t begin, n;
  };
  static int64_t smem_bytes(const Params&) { return sizeof(Shared); }
  VCA_DEVICE static void run(const Params& p, int32_t level, int64_t items) {
    if (*p.any_cold == 0) return;
    auto& s = *shared_at<Shared>(0);
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Problem x = problem_at(p, item >> level);
      if (!grows_tree(p, x.start)) continue;
      const Node node = node_at(x.n, level, static_cast<int32_t>(item & ((1 << level) - 1)));
      if (node.n > kRows) split(p, x, s, node);
    }
  }

 private:
  VCA_DEVICE static int32_t left_rows(int32_t n) {
    const int32_t blocks = (n + kRows - 1) / kRows;
    return (blocks + 1) / 2 * kRows;
  }
  // Node number `path` of a level: its bits, from the highest, say left or right. Empty where a
  // node above it is not split.
  VCA_DEVICE static Node node_at(int32_t n, int32_t level, int32_t path) {
    Node node{0, n};
    for (int32_t bit = level - 1; bit >= 0; --bit) {
      if (node.n <= kRows) return {0, 0};
      const int32_t left = left_rows(node.n);
      if ((path >> bit & 1) == 0) {
        node.n = left;
      } else {
        node.begin += left;
        node.n -= left;
      }
    }
    return node;
  }

  VCA_DEVICE static void split(const Params& p, const Problem& x, Shared& s, const Node& node) {
    int32_t* rows = p.order + x.block0 * kRows + node.begin;
    // Projections by rank of the unit.
    const int32_t* projections = p.projections + (x.row0 - x.rank0) * kAxes;
    const int axis = widest_axis(s, rows, projections, node.n);
    const int32_t left = left_rows(node.n);
    // The key of the last row of the left child, digit by digit.
    uint64_t last = 0;
    int32_t need = left;
    for (int digit = 0; digit < kDigits; ++digit) {
      find_digit(s, rows, projections + axis, node.n, digit, last, need);
      last |= static_cast<uint64_t>(s.bin) << shift_of(digit);
      need -= s.before;
      const bool all = need == s.count;
      sync_threads(kThreads);
      if (all) {  // all rows of this digit
        last |= (uint64_t{1} << shift_of(digit)) - 1;
        break;
      }
    }
    if (thread() < 2) s.next[thread()] = 0;
    sync_threads(kThreads);
    int32_t* to = p.labels + x.row0 + node.begin;
    for (int32_t first = warp() * 32; first < node.n; first += kThreads) {
      const int32_t i = first + lane();
      const bool real = i < node.n;
      const int32_t rank = real ? rows[i] : 0;
      const bool low = real && key_of(projections + axis, rank) <= last;
      const uint32_t lows = ptx::vote_sync_ballot(low), highs = ptx::vote_sync_ballot(real && !low);
      int32_t at = 0;
      if (lane() < 2)
        at = ptx::atom_shared_add(&s.next[lane()], popcount(lane() == 0 ? lows : highs));
      const auto low_at = static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(at), 0));
      const auto high_at = static_cast<int32_t>(ptx::shfl_sync_idx(static_cast<uint32_t>(at), 1));
      const uint32_t below = (1u << lane()) - 1u;
      if (real)
        to[low ? low_at + popcount(lows & below) : left + high_at + popcount(highs & below)] = rank;
    }
    sync_threads(kThreads);
    for (int32_t i = thread(); i < node.n; i += kThreads) rows[i] = to[i];
    sync_threads(kThreads);
  }

  // Largest sum of squared deviations from the floor of the mean, on a common shift that keeps it
  // inside int64; the lower axis of equals.
  VCA_DEVICE static int widest_axis(Shared& s, const int32_t* rows, const int32_t* projections,
                                    int32_t n) {
    int shift = 0;
    while ((int64_t{n} >> (19 + 2 * shift)) != 0) ++shift;
    int64_t sum[kAxes] = {};
    for (int32_t i = thread(); i < n; i += kThreads) {
      const int32_t* row = projections + int64_t{rows[i]} * kAxes;
      VCA_UNROLL
      for (int a = 0; a < kAxes; ++a) sum[a] += row[a];
    }
    reduce(s, sum);
    int32_t mean[kAxes];
    VCA_UNROLL
    for (int a = 0; a < kAxes; ++a) {
      const int64_t q = s.sums[a] / n;
      mean[a] = static_cast<int32_t>(q * n > s.sums[a] ? q - 1 : q);
      sum[a] = 0;
    }
    for (int32_t i = thread(); i < n; i += kThreads) {
      const int32_t* row = projections + int64_t{rows[i]} * kAxes;
      VCA_UNROLL
      for (int a = 0; a < kAxes; ++a) {
        const int64_t away = (row[a] - mean[a]) >> shift;
        sum[a] += away * away;
      }
    }
    sync_threads(kThreads);  // all have read the sums
    reduce(s, sum);
    int best = 0;
    for (int a = 1; a < kAxes; ++a)
      if (s.sums[a] > s.sums[best]) best = a;
    return best;
  }
  // s.sums = sums over all threads.
  VCA_DEVICE static void reduce(Shared& s, int64_t (&sum)[kAxes]) {
    VCA_UNROLL
    for (int a = 0; a < kAxes; ++a) {
      sum[a] = warp_sum(sum[a]);
      if (lane() == 0) s.parts[warp()][a] = sum[a];
    }
    sync_threads(kThreads);
    if (thread() < kAxes) {
      int64_t all = 0;
      for (int w = 0; w < kWarps; ++w) all += s.parts[w][thread()];
      s.sums[thread()] = all;
    }
    sync_threads(kThreads);
  }

  // (projection, rank) as one number: a projection is below 2^21 in magnitude.
  VCA_DEVICE static uint64_t key_of(const int32_t* projections, int32_t rank) {
    const auto p = static_cast<uint32_t>(projections[int64_t{rank} * kAxes] + (1 << 21));
    return static_cast<uint64_t>(p) << 33 | static_cast<uint32_t>(rank);
  }
  VCA_DEVICE static int shift_of(int digit) { return (kDigits - 1 - digit) * kDigitBits; }

  // Among the rows that agree with `last` in the digits before: s.bin, the digit of the row number
  // `need`, counted from 1; s.before, rows of a smaller one; s.count, rows of this one.
  VCA_DEVICE static void find_digit(Shared& s, const int32_t* rows, const int32_t* projections,
                                    int32_t n, int digit, uint64_t last, int32_t need) {
    for (int i = thread(); i < kBins; i += kThreads) s.bins[i] = 0;
    sync_threads(kThreads);
    const int shift = shift_of(digit);
    for (int32_t i = thread(); i < n; i += kThreads) {
      const uint64_t key = key_of(projections, rows[i]);
      if (key >> shift >> kDigitBits != last >> shift >> kDigitBits) continue;
      ptx::red_shared_add(&s.bins[key >> shift & (kBins - 1)], 1);
    }
    sync_threads(kThreads);
    if (warp() == 0) {
      constexpr int kOwn = kBins / 32;
      int32_t own = 0;
      for (int i = 0; i < kOwn; ++i) own += s.bins[lane() * kOwn + i];
      const int32_t up_to = sum_up_to_lane(own);
      int32_t before = up_to - own;
      if (before < need && need <= up_to) {
        int i = 0;
        while (before + s.bins[lane() * kOwn + i] < need) before += s.bins[lane() * kOwn + i++];
        s.bin = lane() * kOwn + i;
        s.before = before;
        s.count = s.bins[lane() * kOwn + i];
      }
    }
    sync_threads(kThreads);
  }
};

}  // namespace vca::kernels::group
