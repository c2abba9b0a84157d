// SPDX-License-Identifier: Apache-2.0
// Eight principal axes of a head, and the projections of all rows on them (spec/grouping/axes.cpp,
// operation by operation: products and sums of the floating point part are rounded one by one).
#pragma once

#include "kernels/group/tokens.hpp"
#include "spec/grouping/axes.hpp"

namespace vca::kernels::group {

inline constexpr int kAxes = spec::grouping::kAxes;

// Units that grow a tree.
VCA_DEVICE bool grows_tree(const Params& p, Start start) {
  return p.kind == spec::Grouping::kdtree && start == Start::cold;
}

// A unit. Products of all pairs of channels over the sample, in integers; then subspace iterations
// with a thread for each of the 8 * d outputs, and Gram-Schmidt by one warp.
template <int kD>
struct Axes {
  static constexpr int kThreads = kAxes * kD;
  static constexpr int kMinBlocks = 1;
  static constexpr int kChunk = 512;  // sampled rows in shared memory, channel by channel
  static constexpr int kTile = 4;     // a thread's products: 4 x 4 channels, or half of that
  struct Shared {
    union {
      uint32_t column[kD][kChunk / 4 + 1];  // one word of padding: channels fall into other banks
      float covariance[kD][kD];
    };
    int32_t sums[kD];
    float q[kAxes * kD];
  };
  static int64_t smem_bytes(const Params&) { return sizeof(Shared); }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    auto& s = *shared_at<Shared>(0);
    for (int64_t unit = ptx::cta_index(); unit < items; unit += ptx::grid_size()) {
      if (grows_tree(p, p.units[unit].start)) find(p, s, unit);
      sync_threads(kThreads);
    }
  }

 private:
  static constexpr int kSide = kD / kTile;                       // tiles along a side
  static constexpr int kOwn = kSide * kSide * kTile / kThreads;  // rows of a tile a thread has
  static_assert(kOwn == 4 || kOwn == 2);

  VCA_DEVICE static void find(const Params& p, Shared& s, int64_t unit) {
    const int64_t sub = piece_of(unit, p.h_kv).whole, head = piece_of(unit, p.h_kv).part,
                  n = p.n_valid[sub];
    const auto m = static_cast<int32_t>(min_i64(n, p.axes_rows));
    const int8_t* values = p.values + rows_of(p, sub, head) * kD;
    const int per_tile = kTile / kOwn;  // threads
    const int tile = thread() / per_tile;
    const int a0 = tile / kSide * kTile + thread() % per_tile * kOwn, b0 = tile % kSide * kTile;
    int32_t products[kOwn][kTile] = {}, sum = 0;
    for (int32_t first = 0; first < m; first += kChunk) {
      sync_threads(kThreads);
      for (int i = thread(); i < kChunk * (kD / 16); i += kThreads) {
        const int row = i / (kD / 16), part = i % (kD / 16);
        const Word4 w = first + row < m
                            ? load_word4(values + sample_row(first + row, n, m) * kD + part * 16)
                            : Word4{0, 0, 0, 0};
        for (int j = 0; j < 16; ++j)
          reinterpret_cast<int8_t*>(s.column[part * 16 + j])[row] =
              static_cast<int8_t>(word_of(w, j / 4) >> (8 * (j % 4)));
      }
      sync_threads(kThreads);
      for (int i = 0; i < kChunk / 4; ++i) {
        uint32_t b[kTile];
        VCA_UNROLL
        for (int j = 0; j < kTile; ++j) b[j] = s.column[b0 + j][i];
        VCA_UNROLL
        for (int k = 0; k < kOwn; ++k) {
          const uint32_t a = s.column[a0 + k][i];
          VCA_UNROLL
          for (int j = 0; j < kTile; ++j) products[k][j] = ptx::dp4a(a, b[j], products[k][j]);
        }
      }
      if (thread() < kD)
        for (int i = 0; i < kChunk / 4; ++i)
          sum = ptx::dp4a(s.column[thread()][i], 0x01010101u, sum);
    }
    if (thread() < kD) s.sums[thread()] = sum;
    sync_threads(kThreads);  // the columns are not needed any more
    VCA_UNROLL
    for (int k = 0; k < kOwn; ++k) VCA_UNROLL
    for (int j = 0; j < kTile; ++j)
      s.covariance[a0 + k][b0 + j] =
          prep::to_float(int64_t{m} * products[k][j] - int64_t{s.sums[a0 + k]} * s.sums[b0 + j]);
    const int a = thread() / kD, r = thread() % kD;
    s.q[a * kD + r] = popcount(static_cast<uint32_t>(r & (a + 1))) % 2 == 0 ? 1.0f : -1.0f;
    sync_threads(kThreads);
    for (int i = 0; i < p.axes_iterations; ++i) {
      float out = 0.0f;
      for (int k = 0; k < kD; ++k)
        out = prep::add(out, prep::mul(s.covariance[k][r], s.q[a * kD + k]));
      sync_threads(kThreads);
      s.q[a * kD + r] = out;
      sync_threads(kThreads);
      if (warp() == 0) orthonormalise(s);
      sync_threads(kThreads);
    }
    float amax = 0.0f;
    for (int i = lane(); i < kAxes * kD; i += 32) amax = prep::max_f32(amax, prep::abs_f32(s.q[i]));
    for (uint32_t mask = 16; mask > 0; mask /= 2)
      amax = prep::max_f32(amax, ptx::shfl_sync_bfly(amax, mask));
    float x = prep::mul(s.q[a * kD + r], prep::div(127.0f, amax));
    x = x > 127.0f ? 127.0f : x;
    x = x < -127.0f ? -127.0f : x;
    // Adding 1.5 * 2^23 rounds to nearest even and leaves the integer in the low bits.
    p.axes[(unit * kAxes + a) * kD + r] =
        static_cast<int8_t>(spec::float_bits(prep::add(x, 0x1.8p23f)) & 0xFFu);
  }

  // A lane has kD / 32 channels of each axis. Modified Gram-Schmidt in index order.
  static constexpr int kShare = kD / 32;
  VCA_DEVICE static float dot(const float (&a)[kShare], const float (&b)[kShare]) {
    float sum = prep::add(prep::mul(a[0], b[0]), prep::mul(a[1], b[1]));
    if constexpr (kShare == 4)
      sum = prep::add(sum, prep::add(prep::mul(a[2], b[2]), prep::mul(a[3], b[3])));
    for (uint32_t mask = 1; mask < 32; mask *= 2)
      sum = prep::add(sum, ptx::shfl_sync_bfly(sum, mask));
    return sum;
  }
  VCA_DEVICE static void orthonormalise(Shared& s) {
    int next_unit = 0;
    for (int a = 0; a < kAxes; ++a) {
      float v[kShare];
      for (int i = 0; i < kShare; ++i) v[i] = s.q[a * kD + lane() * kShare + i];
      for (int b = 0; b < a; ++b) {
        float u[kShare];
        for (int i = 0; i < kShare; ++i) u[i] = s.q[b * kD + lane() * kShare + i];
        const float c = dot(u, v);
        for (int i = 0; i < kShare; ++i) v[i] = prep::sub(v[i], prep::mul(c, u[i]));
      }
      const float norm = square_root(dot(v, v));
      for (int i = 0; i < kShare; ++i) {
        if (norm == 0.0f)
          v[i] = lane() * kShare + i == next_unit ? 1.0f : 0.0f;
        else
          v[i] = prep::div(v[i], norm);
        s.q[a * kD + lane() * kShare + i] = v[i];
      }
      if (norm == 0.0f) ++next_unit;
      ptx::bar_warp_sync();
    }
  }
};

// 128 rows of a unit by eight axes: one column of an MMA each.
template <int kD>
struct Project {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static int64_t smem_bytes(const Params&) { return 0; }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    if (*p.any_cold == 0) return;
    const int g = lane() / 4, t = lane() % 4;
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, p.max_unit_blocks);
      const int64_t unit = at.whole, first = int64_t{at.part} * kRows;
      const int64_t sub = piece_of(unit, p.h_kv).whole, head = piece_of(unit, p.h_kv).part;
      const int64_t n = min_i64(p.n_valid[sub] - first, kRows);
      if (n <= 0 || !grows_tree(p, p.units[unit].start)) continue;
      const int64_t row0 = rows_of(p, sub, head) + first;
      const int upper = warp() * 16 + g, lower = upper + 8;
      RowShare<kD> a = empty_share<kD>(), b = empty_share<kD>();
      if (upper < n) a = share_from_global<kD>(p.values + (row0 + upper) * kD, t);
      if (lower < n) b = share_from_global<kD>(p.values + (row0 + lower) * kD, t);
      const RowShare<kD> axis = share_from_global<kD>(p.axes + (unit * kAxes + g) * kD, t);
      int32_t out[4] = {0, 0, 0, 0};
      ptx::bar_warp_sync();
      multiply<kD>(out, a, b, axis);
      int32_t* to = p.projections + row0 * kAxes + 2 * t;
      if (upper < n) {
        to[int64_t{upper} * kAxes] = out[0];
        to[int64_t{upper} * kAxes + 1] = out[1];
      }
      if (lower < n) {
        to[int64_t{lower} * kAxes] = out[2];
        to[int64_t{lower} * kAxes + 1] = out[3];
      }
    }
  }
};

}  // namespace vca::kernels::group
