// SPDX-License-Identifier: Apache-2.0
// One V tile: block mean, residual codes, transposed, indicator rows; the block's column of the
// mean tile; and, when f is asked for, the squared norms (docs/numerics.md B7, B9, B11, D1).
// Recipes without block means: a mean of 0, not stored.
//
// A thread holds 8 channels of 8 consecutive keys, a slot; 16 slots make the block. V is read once:
//
//   sum over the thread's keys -> lanes -> warps (shared memory)      B1's tree, in key order
//   mean -> residual -> codes, 4 keys of a channel in a word
//   slots 2m, 2m + 1 exchange halves: 16 keys of a channel = chunk m of the tile's row
//   tile in shared memory -> whole lines to global memory
#pragma once

#include "kernels/prep/energy.hpp"
#include "kernels/prep/rows.hpp"
#include "kernels/prep/value_range.hpp"
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

template <Source kSource, int kDPad, int kCtas>
struct ValueTilesTuned {
  using Params = prep::Params;
  using Lanes = RowLanes<kDPad>;
  static constexpr int kThreads = Lanes::kThreads;
  static constexpr int kMinBlocks = kCtas * 256 / kThreads;
  // Shared memory: the warps' sums and later the tile; then, for each pair of channels, two factors
  // and two means.
  static constexpr uint32_t kFactors = kDPad * 128;
  static constexpr uint32_t kSharedBytes = kFactors + kDPad * 8;

  VCA_DEVICE static void run(const Params& p, uint32_t block_index) {
    KvBlock block;
    if (!locate(p, block_index, block)) return;
    if (block.n_valid == kRows)
      run_block<true>(p, block);
    else
      run_block<false>(p, block);
  }

 private:
  using Raw = Octet<kSource>[8];

  // kFull: all columns are valid.
  template <bool kFull>
  VCA_DEVICE static void run_block(const Params& p, const KvBlock& block) {
    const uint32_t thread = ptx::thread_index(), lane = thread % 32;
    const int channel = static_cast<int>(lane % Lanes::kLanes) * 8;
    const auto slot = static_cast<int>(thread / Lanes::kLanes);
    Raw raw;
    load_slot<kFull>(p, block, slot, channel, raw);
    // Early, because the threads that need it have the others wait for them.
    const float factor = thread < kDPad ? p.v_factor[int64_t{block.unit} * kDPad + thread] : 0.0f;
    store_indicators(p, block);
    find_means<kFull>(p, block, raw, channel, factor);
    if (p.energy_rows != nullptr && !p.plain_values) store_energy(p, block, raw, slot, channel);
    if (thread < kDPad && !p.plain_values) store_mean(p, block, static_cast<int>(thread));
    uint32_t code[8][2];  // [channel][keys 0-3, 4-7]
    encode<kFull>(block, raw, slot, channel, code);
    store_codes(slot, channel, code);
    ptx::bar_sync(0, kThreads);
    uint8_t* tile = tile_of(p, block);
    VCA_UNROLL
    for (int i = 0; i < kDPad * 8 / kThreads; ++i) {
      const uint32_t at = (thread + static_cast<uint32_t>(i * kThreads)) * 16;
      ptx::st_global_v4(tile + at, ptx::ld_shared_v4(ptx::dynamic_smem() + at));
    }
  }

  VCA_DEVICE static uint8_t* tile_of(const Params& p, const KvBlock& block) {
    return p.v_tiles + int64_t{block.index} * spec::t128_v_tile_bytes(kDPad);
  }
  // Missing columns: -0.
  template <bool kFull>
  VCA_DEVICE static void load_slot(const Params& p, const KvBlock& block, int slot, int channel,
                                   Raw& raw) {
    const RowReader<kSource> reader(p, p.v, block.batch, block.head, channel);
    int32_t token[8];
    VCA_UNROLL
    for (int k = 0; k < 8; ++k)
      token[k] = token_of(p, block, kFull || 8 * slot + k < block.n_valid ? 8 * slot + k : 0);
    VCA_UNROLL
    for (int k = 0; k < 8; ++k) {
      raw[k] = reader.load(token[k]);
      if (!kFull && 8 * slot + k >= block.n_valid) raw[k] = negative_zeros<kSource>();
    }
  }

  // Sums over the keys; then a thread a channel.
  template <bool kFull>
  VCA_DEVICE static void find_means(const Params& p, const KvBlock& block, const Raw& raw,
                                    int channel, float factor) {
    float sum[8];
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      float x[8][2];
      VCA_UNROLL
      for (int k = 0; k < 8; ++k) decode_pair(raw[k], i, x[k]);
      VCA_UNROLL
      for (int c = 0; c < 2; ++c)
        sum[2 * i + c] = unrolled_tree<3>([&x, c](int k) { return x[k][c]; }, 0);
    }
    sum_over_slots<kDPad>(sum, channel, [&](uint32_t i, float of_block) {
      constexpr float kInverse = 1.0f / kRows;
      const float inverse = kFull ? kInverse : inverse_of(block.n_valid);
      float mu = 0.0f;  // plain values: x * factor - 0, the product itself
      if (!p.plain_values) mu = spec::bf16_round(mul(mul(of_block, inverse), factor));
      const ptx::SmemAddr at = ptx::dynamic_smem() + kFactors + i / 2 * 16 + i % 2 * 4;
      ptx::st_shared_f32(at, factor);
      ptx::st_shared_f32(at + 8, mu);
    });
    ptx::bar_sync(0, kThreads);
  }

  // Factors and means of channels `channel` and `channel` + 1.
  struct Pair {
    float factor[2], mu[2];
  };
  VCA_DEVICE static Pair pair_of(int channel) {
    const ptx::Words4 x =
        ptx::ld_shared_v4(ptx::dynamic_smem() + kFactors + static_cast<uint32_t>(channel) * 8);
    return {{ptx::bits_float(x.word[0]), ptx::bits_float(x.word[1])},
            {ptx::bits_float(x.word[2]), ptx::bits_float(x.word[3])}};
  }
  template <bool kFull>
  VCA_DEVICE static void encode(const KvBlock& block, const Raw& raw, int slot, int channel,
                                uint32_t (&code)[8][2]) {
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const Pair pair = pair_of(channel + 2 * i);
      VCA_UNROLL
      for (int quad = 0; quad < 2; ++quad) {
        float x[4][2];
        VCA_UNROLL
        for (int k = 0; k < 4; ++k) {
          decode_pair(raw[4 * quad + k], i, x[k]);
          const bool valid = kFull || 8 * slot + 4 * quad + k < block.n_valid;
          VCA_UNROLL
          for (int c = 0; c < 2; ++c)
            x[k][c] = valid ? fma(x[k][c], pair.factor[c], -pair.mu[c]) : 0.0f;
        }
        VCA_UNROLL
        for (int c = 0; c < 2; ++c)
          code[2 * i + c][quad] =
              ptx::cvt_rn_satfinite_e4m3x4_f32(x[0][c], x[1][c], x[2][c], x[3][c]);
      }
    }
  }

  // Chunk m of row `channel` holds the pairs of keys of slots 2m and 2m + 1 by turns. The even slot
  // finishes channels 0-3 of the eight, the odd one 4-7. Lanes start at different channels, so that
  // their chunks lie in different banks.
  VCA_DEVICE static void store_codes(int slot, int channel, const uint32_t (&code)[8][2]) {
    const uint32_t lane = ptx::thread_index() % 32;
    const bool odd = slot % 2 != 0;
    const uint32_t low = odd ? 0x1054u : 0x5410u, high = odd ? 0x3276u : 0x7632u;
    ptx::Words4 chunk[4];
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      VCA_UNROLL
      for (int half = 0; half < 2; ++half) {
        const uint32_t keep = odd ? code[4 + i][half] : code[i][half];
        const uint32_t other =
            ptx::shfl_sync_bfly(odd ? code[i][half] : code[4 + i][half], Lanes::kLanes);
        chunk[i].word[2 * half] = ptx::prmt(keep, other, low);
        chunk[i].word[2 * half + 1] = ptx::prmt(keep, other, high);
      }
    }
    exchange_if((lane & 1) != 0, chunk[0], chunk[1]);
    exchange_if((lane & 1) != 0, chunk[2], chunk[3]);
    exchange_if((lane & 2) != 0, chunk[0], chunk[2]);
    exchange_if((lane & 2) != 0, chunk[1], chunk[3]);
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int row = channel + (odd ? 4 : 0) + (i ^ static_cast<int>(lane & 3));
      ptx::st_shared_v4(
          ptx::dynamic_smem() + static_cast<uint32_t>(spec::t128_offset(row, slot / 2 * 16, 128)),
          chunk[i]);
    }
  }
  VCA_DEVICE static void exchange_if(bool condition, ptx::Words4& a, ptx::Words4& b) {
    VCA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const uint32_t x = a.word[i], y = b.word[i];
      a.word[i] = condition ? y : x;
      b.word[i] = condition ? x : y;
    }
  }

  VCA_DEVICE static void store_indicators(const Params& p, const KvBlock& block) {
    const auto thread = static_cast<int>(ptx::thread_index());
    if (thread >= spec::kIndicatorRows * 8) return;
    const int row = thread / 8, first = thread % 8 * 16;
    ptx::Words4 out;
    VCA_UNROLL
    for (int w = 0; w < 4; ++w) {
      out.word[w] = 0;
      VCA_UNROLL
      for (int i = 0; i < 4; ++i)
        if (row == block.j % spec::kIndicatorRows &&
            spec::v_key_of_column(first + 4 * w + i) < block.n_valid)
          out.word[w] |= uint32_t{spec::kIndicatorE4m3} << (8 * i);
    }
    ptx::st_global_v4(tile_of(p, block) + spec::t128_offset(kDPad + row, first, 128), out);
  }

  // The last block of a unit also clears the columns of the blocks that are missing in its group.
  VCA_DEVICE static void store_mean(const Params& p, const KvBlock& block, int channel) {
    const uint32_t at = kFactors + static_cast<uint32_t>(channel / 2 * 16 + 8 + channel % 2 * 4);
    const float mu = ptx::ld_shared_f32(ptx::dynamic_smem() + at);
    uint8_t* tile = mu_tile_of(p, block);
    const int b = block.j % spec::kMuBlocks;
    store_f32(tile + spec::t128_offset(channel, mu_column(b) * 4, 32), mu);
    if (block.j != block.n_blocks - 1) return;
    for (int missing = b + 1; missing < spec::kMuBlocks; ++missing)
      store_f32(tile + spec::t128_offset(channel, mu_column(missing) * 4, 32), 0.0f);
  }

  // Squared norms of the rows, and n |mu s_v|^2; channels beyond head_dim do not count.
  VCA_DEVICE static void store_energy(const Params& p, const KvBlock& block, const Raw& raw,
                                      int slot, int channel) {
    const uint32_t lane = ptx::thread_index() % 32;
    const float factor = range_factor(p.v_abs_max[block.unit]);
    VCA_NO_UNROLL
    for (int k = 0; k < 8; ++k) {
      float x[8];
      Octet<kSource> row = raw[0];
      VCA_UNROLL
      for (int i = 1; i < 8; ++i)
        if (k == i) row = raw[i];
      decode(row, x);
      VCA_UNROLL
      for (int i = 0; i < 8; ++i) {
        const float y = mul(x[i], factor);
        x[i] = channel + i < p.d ? mul(y, y) : -0.0f;
      }
      const float sum = lanes_sum<Lanes::kLanes>(sum8(x));
      if (lane % Lanes::kLanes == 0 && 8 * slot + k < block.n_valid)
        p.energy_rows[(int64_t{block.index} - block.j) * kRows + block.rank + 8 * slot + k] = sum;
    }
    if (slot >= Lanes::kRowsAtOnce) return;  // one warp's lanes reach every mean
    float mu[8];
    VCA_UNROLL
    for (int i = 0; i < 8; i += 2) {
      const Pair pair = pair_of(channel + i);
      mu[i] = pair.mu[0];
      mu[i + 1] = pair.mu[1];
    }
    VCA_UNROLL
    for (int i = 0; i < 8; ++i) {
      float y = 0.0f;
      if (channel + i < p.d)
        y = mul(mul(mu[i], p.s_v[int64_t{block.unit} * kDPad + channel + i]), factor);
      mu[i] = channel + i < p.d ? mul(y, y) : -0.0f;
    }
    const float sum = lanes_sum<Lanes::kLanes>(sum8(mu));
    if (lane == 0) p.energy_blocks[block.index] = mul(sum, to_float(int64_t{block.n_valid}));
  }
};

template <Source kSource, int kDPad>
struct ValueTiles : ValueTilesTuned<kSource, kDPad,
                                    Octet<kSource>::kWide ? 2
                                    : kDPad == 64         ? 3
                                                          : 4> {};

}  // namespace vca::kernels::prep
