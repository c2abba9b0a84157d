// SPDX-License-Identifier: Apache-2.0
// One V tile: block mean, residual codes, transposed, indicator rows; and the block's column of the
// mean tile (docs/numerics.md B7, B9, D1). Recipes without block means: a mean of 0, not stored.
// Thread = channel = tile row, so a thread writes whole 16-byte chunks and nothing has to be
// transposed between threads.
#pragma once

#include "kernels/prep/tensor.hpp"
#include "spec/tiles.hpp"

namespace vca::kernels::prep {

// Column of a mean tile that holds block b (kMuBlockOfColumn, inverted).
constexpr int mu_column(int b) { return b / 2 + 4 * (b % 2); }
constexpr bool mu_columns_match() {
  for (int c = 0; c < spec::kMuBlocks; ++c)
    if (mu_column(spec::kMuBlockOfColumn[c]) != c) return false;
  return true;
}
static_assert(mu_columns_match());

VCA_DEVICE uint8_t* mu_tile_of(const Params& p, const KvBlock& b) {
  const SubInfo& sub = p.subs[b.sub];
  const int64_t group = sub.mu_group_base + b.head * sub.mu_group_stride + b.j / spec::kMuBlocks;
  return p.mu_tiles + group * spec::t128_mu_tile_bytes(p.d_pad);
}

struct ValueTiles {
  using Params = prep::Params;
  static constexpr int kThreads = kRows;
  static constexpr int kPhases = 3;
  struct Shared {
    KvBlock block;
    bool active;
    int64_t row[kRows];  // element offset of each valid column's row
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t block, int thread) {
    if (phase == 0) {
      if (thread == 0) s.active = locate(p, block, s.block);
      return;
    }
    if (!s.active) return;
    if (phase == 1) {
      if (thread < s.block.n_valid)
        s.row[thread] = row_offset(p.v, s.block.batch, s.block.head, token_of(p, s.block, thread));
      return;
    }
    store_indicators(p, s, thread);
    if (thread < p.d_pad) store_channel(p, s, thread);
  }

 private:
  VCA_DEVICE static uint8_t* tile_of(const Params& p, const Shared& s) {
    return p.v_tiles + s.block.index * spec::t128_v_tile_bytes(p.d_pad);
  }

  VCA_DEVICE static void store_indicators(const Params& p, const Shared& s, int thread) {
    if (thread >= spec::kIndicatorRows * 8) return;
    const int row = thread / 8, first = thread % 8 * 16;
    Bytes16 out;
    for (int w = 0; w < 4; ++w) {
      out.word[w] = 0;
      for (int i = 0; i < 4; ++i)
        if (row == s.block.j % spec::kIndicatorRows &&
            spec::v_key_of_column(first + 4 * w + i) < s.block.n_valid)
          out.word[w] |= uint32_t{spec::kIndicatorE4m3} << (8 * i);
    }
    store16(tile_of(p, s) + spec::t128_offset(p.d_pad + row, first, 128), out);
  }

  VCA_DEVICE static void store_channel(const Params& p, const Shared& s, int channel) {
    const int n_valid = s.block.n_valid;
    const auto value = [&](int64_t n) {
      return channel < p.d ? load_element(p.v, s.row[n] + channel) : 0.0f;
    };
    const float factor = p.v_factor[s.block.unit * p.d_pad + channel];
    const float mu = p.plain_values ? 0.0f : store_mean(p, s, channel, factor, value);
    uint8_t* tile = tile_of(p, s);
    for (int first = 0; first < kRows; first += 16) {
      Bytes16 out;
      for (int w = 0; w < 4; ++w) {
        float x[4];
        for (int i = 0; i < 4; ++i) {
          const int n = spec::v_key_of_column(first + 4 * w + i);
          x[i] = n < n_valid ? fma(value(n), factor, -mu) : 0.0f;
        }
        out.word[w] = encode_e4m3x4(x);
      }
      store16(tile + spec::t128_offset(channel, first, 128), out);
    }
  }

  // Returns the stored mean, in units of s_v. The last block of a unit also clears the columns of
  // the blocks that are missing in its group.
  template <class Value>
  VCA_DEVICE static float store_mean(const Params& p, const Shared& s, int channel, float factor,
                                     const Value& value) {
    const int n_valid = s.block.n_valid;
    float sum;
    if (n_valid == kRows)
      sum = full_tree<7, 4>([&](int n) { return value(n); });
    else
      sum = spec::tree_sum(n_valid, value);
    const float mu = spec::bf16_round(mul(mul(sum, inverse_of(n_valid)), factor));
    uint8_t* tile = mu_tile_of(p, s.block);
    const int b = s.block.j % spec::kMuBlocks;
    store_f32(tile + spec::t128_offset(channel, mu_column(b) * 4, 32), mu);
    if (s.block.j == s.block.n_blocks - 1)
      for (int missing = b + 1; missing < spec::kMuBlocks; ++missing)
        store_f32(tile + spec::t128_offset(channel, mu_column(missing) * 4, 32), 0.0f);
    return mu;
  }
};

}  // namespace vca::kernels::prep
