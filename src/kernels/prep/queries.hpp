// SPDX-License-Identifier: Apache-2.0
// One Q tile: RoPE, sign of the scale, optional Hadamard, INT8 per row pair {16w + r, 16w + r + 8}
// or E4M3 per head; scale * (q . k_offset) for LSE (docs/numerics.md B4, B5, D3). q_unit receives
// the raw scales: finish.hpp turns them into units once the largest is known.
#pragma once

#include "kernels/prep/tensor.hpp"
#include "spec/tiles.hpp"

namespace vca::kernels::prep {

struct QueryTiles {
  using Params = prep::Params;
  static constexpr int kThreads = 256;
  static constexpr int kPhases = 6;
  struct Shared {
    int64_t sub, head, row0, tile;  // row0: first row within the sub-problem
    int32_t rows;                   // of the tile; 0: nothing to do
    float factor[kRows / 2];
    float amax[kThreads];
    float x[kRows][kRowFloats];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t block, int thread) {
    if (phase == 0) {
      if (thread == 0) find_tile(p, s, block);
      return;
    }
    if (s.rows == 0) return;
    switch (phase) {
      case 1:
        return load(p, s, thread);
      case 2:
        if (thread < s.rows) finish_row(p, s, thread);
        return;
      case 3:
        return find_row_maximum(p, s, thread);
      case 4:
        return make_quantisers(p, s, thread);
      default:
        return store(p, s, thread);
    }
  }

 private:
  VCA_DEVICE static void find_tile(const Params& p, Shared& s, int64_t block) {
    const int64_t head_index = block / p.max_q_tiles, t = block % p.max_q_tiles;
    s.sub = head_index / p.h_q;
    s.head = head_index % p.h_q;
    const SubInfo& sub = p.subs[s.sub];
    s.row0 = t * kRows;
    s.rows = t < sub.n_q_tiles ? static_cast<int32_t>(min_i64(kRows, sub.q_len - s.row0)) : 0;
    s.tile = sub.q_tile_base + s.head * sub.n_q_tiles + t;
  }
  VCA_DEVICE static void load(const Params& p, Shared& s, int thread) {
    const SubInfo& sub = p.subs[s.sub];
    for (int at = thread; at < s.rows * p.d_pad; at += kThreads) {
      const int n = at >> p.d_pad_log2, i = at & (p.d_pad - 1);
      const int64_t token = sub.q_begin + s.row0 + n;
      s.x[n][i] = load_rotated(p, p.q, row_offset(p.q, sub.batch, s.head, token), token, i);
    }
  }
  VCA_DEVICE static void finish_row(const Params& p, Shared& s, int n) {
    float* x = s.x[n];
    if (p.qk_offset != nullptr) {
      const int64_t unit = s.sub * p.h_kv + s.head / (p.h_q / p.h_kv);
      const float* offset = p.k_offset + unit * p.d_pad;
      double dot = 0.0;
      for (int i = 0; i < p.d; ++i)
        dot = add_f64(dot, mul_f64(static_cast<double>(x[i]), static_cast<double>(offset[i])));
      p.qk_offset[s.tile * kRows + n] = to_float(mul_f64(p.scale, dot));
    }
    if (p.negate_q)
      for (int i = 0; i < p.d_pad; ++i) x[i] = -x[i];
    if (p.hadamard) hadamard_in_place(x, p.d_pad);
  }
  VCA_DEVICE static void find_row_maximum(const Params& p, Shared& s, int thread) {
    const int n = thread / 2, half = p.d_pad / 2;
    float amax = 0.0f;
    if (n < s.rows)
      for (int i = thread % 2 * half; i < (thread % 2 + 1) * half; ++i)
        amax = max_f32(amax, abs_f32(s.x[n][i]));
    s.amax[thread] = amax;
  }
  VCA_DEVICE static void make_quantisers(const Params& p, Shared& s, int thread) {
    if (thread >= kRows / 2) return;
    const int row = thread / 8 * 16 + thread % 8;
    const float* a = s.amax + 2 * row;
    float amax = max_f32(max_f32(a[0], a[1]), max_f32(a[16], a[17]));  // rows r and r + 8
    if (p.e4m3_head) amax = row < s.rows ? p.q_head_max[s.sub * p.h_q + s.head] : 0.0f;
    const Quantiser quantiser = make_quantiser(amax, p.code_max);
    s.factor[thread] = quantiser.factor;
    p.q_unit[s.tile * (kRows / 2) + thread] = quantiser.scale;
  }
  VCA_DEVICE static void store(const Params& p, const Shared& s, int thread) {
    uint8_t* tile = p.q_tiles + s.tile * spec::t128_qk_tile_bytes(p.d_pad);
    const int chunks_log2 = p.d_pad_log2 - 4;
    for (int at = thread; at < kRows << chunks_log2; at += kThreads) {
      const int n = at >> chunks_log2, byte = (at & ((1 << chunks_log2) - 1)) * 16;
      Bytes16 out = {{0, 0, 0, 0}};
      if (n < s.rows) out = encode_chunk(p, s.x[n] + byte, s.factor[n / 16 * 8 + n % 8]);
      store16(tile + spec::t128_offset(n, byte, p.d_pad), out);
    }
  }
};

}  // namespace vca::kernels::prep
