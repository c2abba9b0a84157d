// SPDX-License-Identifier: Apache-2.0
// One K tile: gather, RoPE, minus the offset, optional Hadamard, INT8 per scale group with pads
// copied from their own group, or E4M3 per head with pads copied from column 0 (docs/numerics.md
// B3, B4, D1).
#pragma once

#include "kernels/prep/tensor.hpp"
#include "spec/tiles.hpp"

namespace vca::kernels::prep {

struct KeyTiles {
  using Params = prep::Params;
  static constexpr int kThreads = 256;
  static constexpr int kPhases = 6;
  struct Shared {
    KvBlock block;
    bool active;
    Quantiser quantiser[4];
    float amax[kThreads];  // two halves of a row
    float x[kRows][kRowFloats];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t block, int thread) {
    if (phase == 0) {
      if (thread == 0) s.active = locate(p, block, s.block);
      return;
    }
    if (!s.active) return;
    switch (phase) {
      case 1:
        return load(p, s, thread);
      case 2:
        if (p.hadamard && thread < s.block.n_valid) hadamard_in_place(s.x[thread], p.d_pad);
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
  VCA_DEVICE static int group_of(int column) { return column % 8 / 2; }

  VCA_DEVICE static void load(const Params& p, Shared& s, int thread) {
    const float* offset = p.k_offset + s.block.unit * p.d_pad;
    for (int at = thread; at < s.block.n_valid * p.d_pad; at += kThreads) {
      const int n = at >> p.d_pad_log2, i = at & (p.d_pad - 1);
      const int64_t token = token_of(p, s.block, n);
      const int64_t row = row_offset(p.k, s.block.batch, s.block.head, token);
      const float x = load_rotated(p, p.k, row, token, i);
      s.x[n][i] = i < p.d ? sub(x, offset[i]) : x;
    }
  }
  VCA_DEVICE static void find_row_maximum(const Params& p, Shared& s, int thread) {
    const int n = thread / 2, half = p.d_pad / 2;
    float amax = 0.0f;
    if (n < s.block.n_valid)
      for (int i = thread % 2 * half; i < (thread % 2 + 1) * half; ++i)
        amax = max_f32(amax, abs_f32(s.x[n][i]));
    s.amax[thread] = amax;
  }
  VCA_DEVICE static void make_quantisers(const Params& p, Shared& s, int thread) {
    if (thread >= 4) return;
    // An empty group takes column 0's scale: group 0.
    const int group = 2 * thread < s.block.n_valid ? thread : 0;
    float amax = 0.0f;
    for (int n = 0; n < kRows; ++n)
      if (group_of(n) == group) amax = max_f32(amax, max_f32(s.amax[2 * n], s.amax[2 * n + 1]));
    if (p.e4m3_head) amax = p.k_head_max[s.block.unit];
    s.quantiser[thread] = make_quantiser(amax, p.code_max);
    p.k_scale[s.block.index * 4 + thread] = s.quantiser[thread].scale;
  }
  VCA_DEVICE static void store(const Params& p, const Shared& s, int thread) {
    uint8_t* tile = p.k_tiles + s.block.index * spec::t128_qk_tile_bytes(p.d_pad);
    const int chunks_log2 = p.d_pad_log2 - 4;
    for (int at = thread; at < kRows << chunks_log2; at += kThreads) {
      const int n = at >> chunks_log2, byte = (at & ((1 << chunks_log2) - 1)) * 16;
      int from = n;  // pads copy the lowest valid column of their group, or column 0
      if (n >= s.block.n_valid)
        from = !p.e4m3_head && 2 * group_of(n) < s.block.n_valid ? 2 * group_of(n) : 0;
      const float factor = s.quantiser[group_of(from)].factor;
      store16(tile + spec::t128_offset(n, byte, p.d_pad),
              encode_chunk(p, s.x[from] + byte, factor));
    }
  }
};

}  // namespace vca::kernels::prep
