// SPDX-License-Identifier: Apache-2.0
// Values to INT8 tokens: sigma of a strided sample, clip at 3 sigma (docs/grouping.md, "sigma",
// "tokens"). The arithmetic is spec/grouping/tokens.cpp's, operation by operation.
#pragma once

#include <cmath>

#include "kernels/group/bits.hpp"

namespace vca::kernels::group {

VCA_DEVICE int64_t row_offset(const prep::Tensor& t, int64_t b, int64_t h, int64_t s) {
  return b * t.stride_b + h * t.stride_h + s * t.stride_s;
}

// Byte by byte: for views of any alignment, and rows that are not a multiple of 16 bytes.
VCA_DEVICE float load_element(const prep::Tensor& t, int64_t at) {
  const int bytes = t.dtype == spec::DType::fp32 ? 4 : 2;
  const auto* from = static_cast<const unsigned char*>(t.data) + at * bytes;
  uint32_t bits = 0;
  for (int i = 0; i < bytes; ++i) bits |= uint32_t{from[i]} << (8 * i);
  if (t.dtype == spec::DType::fp32) return spec::float_from_bits(bits);
  return t.dtype == spec::DType::bf16 ? spec::bf16_decode(static_cast<uint16_t>(bits))
                                      : spec::fp16_decode(static_cast<uint16_t>(bits));
}

// kN consecutive channels of a row, zero from d up; 16-bit elements in vectors where the row allows
// it.
template <int kN>
VCA_DEVICE void load_channels(const prep::Tensor& t, int64_t row, int first, int d, float* out) {
#if defined(__CUDACC__)
  if (t.dtype != spec::DType::fp32 && first + kN <= d) {
    const auto* at = static_cast<const unsigned char*>(t.data) + 2 * (row + first);
    if (reinterpret_cast<uintptr_t>(at) % (kN >= 8 ? 16 : 2 * kN) == 0) {
      uint32_t words[kN / 2];
      if constexpr (kN >= 8) {
        for (int i = 0; i < kN / 8; ++i) {
          const uint4 w = __ldg(reinterpret_cast<const uint4*>(at) + i);
          words[4 * i] = w.x;
          words[4 * i + 1] = w.y;
          words[4 * i + 2] = w.z;
          words[4 * i + 3] = w.w;
        }
      } else if constexpr (kN == 4) {
        const uint2 w = __ldg(reinterpret_cast<const uint2*>(at));
        words[0] = w.x;
        words[1] = w.y;
      } else {
        words[0] = __ldg(reinterpret_cast<const uint32_t*>(at));
      }
      VCA_UNROLL
      for (int i = 0; i < kN; ++i) {
        const auto bits = static_cast<uint16_t>(words[i / 2] >> (16 * (i % 2)));
        out[i] = t.dtype == spec::DType::bf16 ? spec::bf16_decode(bits) : spec::fp16_decode(bits);
      }
      return;
    }
  }
#endif
  VCA_UNROLL
  for (int i = 0; i < kN; ++i) out[i] = first + i < d ? load_element(t, row + first + i) : 0.0f;
}

// The power of two that brings amax into [0.5, 1).
VCA_DEVICE float power_of(float amax) {
  const int32_t e = static_cast<int32_t>(spec::float_bits(amax) >> 23) - 126;  // frexp's exponent
  const int32_t biased = 127 - e;
  // Below the smallest normal number there are 2^-127 and 2^-128 only.
  return spec::float_from_bits(biased > 0 ? static_cast<uint32_t>(biased) << 23
                                          : 0x00400000u >> -biased);
}

// One block a unit.
struct Sigma {
  static constexpr int kThreads = 1024;
  static constexpr int kMinBlocks = 1;
  static constexpr int kMaxRows = 2048;
  static int64_t smem_bytes(const Params&) { return 4 * (kMaxRows + 64) + 8 * kMaxRows; }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    for (int64_t unit = ptx::cta_index(); unit < items; unit += ptx::grid_size()) {
      if (p.d_pad == 128)
        find<4>(p, unit);
      else
        find<2>(p, unit);
      sync_threads(kThreads);
    }
  }

  VCA_DEVICE static float square_root(float x) {
#if defined(__CUDACC__)
    return __fsqrt_rn(x);
#else
    return std::sqrt(x);
#endif
  }

 private:
  // kN channels a lane.
  template <int kN>
  VCA_DEVICE static void find(const Params& p, int64_t unit) {
    auto* sums = shared_at<float>(0);
    auto* maxima = shared_at<float>(4 * kMaxRows);
    const int64_t sub = piece_of(unit, p.h_kv).whole, head = piece_of(unit, p.h_kv).part;
    const int64_t n = p.n_valid[sub];
    const auto m = static_cast<int32_t>(min_i64(n, p.sigma_rows));
    const int32_t* tokens = p.tokens + p.extra[sub].chunk_base * kRows;
    auto* rows = shared_at<int64_t>(4 * (kMaxRows + 64));  // where they begin
    for (int32_t i = thread(); i < m; i += kThreads)
      rows[i] = row_offset(p.v, p.subs[sub].batch, head, tokens[sample_row(i, n, m)]);
    sync_threads(kThreads);
    const auto load = [&](int32_t i, float* x) {
      load_channels<kN>(p.v, rows[i], lane() * kN, p.d, x);
    };
    // Not finite counts as infinity.
    float amax = 0.0f;
    VCA_UNROLL_8
    for (int32_t i = warp(); i < m; i += kThreads / 32) {
      float x[kN];
      load(i, x);
      VCA_UNROLL
      for (int c = 0; c < kN; ++c) {
        const float a = prep::abs_f32(x[c]);
        amax = a <= amax ? amax : a == a ? a : spec::float_from_bits(0x7F800000u);
      }
    }
    for (uint32_t mask = 16; mask > 0; mask /= 2)
      amax = prep::max_f32(amax, ptx::shfl_sync_bfly(amax, mask));
    if (lane() == 0) maxima[warp()] = amax;
    sync_threads(kThreads);
    amax = maxima[lane()];
    for (uint32_t mask = 16; mask > 0; mask /= 2)
      amax = prep::max_f32(amax, ptx::shfl_sync_bfly(amax, mask));
    if (m == 0 || amax < 0x1p-100f || amax == spec::float_from_bits(0x7F800000u)) {
      if (thread() == 0) p.scales[unit] = {0.0f, 0.0f};
      return;
    }
    const float power = power_of(amax);
    VCA_UNROLL_8
    for (int32_t i = warp(); i < m; i += kThreads / 32) {
      float x[kN];
      load(i, x);
      VCA_UNROLL
      for (int c = 0; c < kN; ++c) {
        x[c] = prep::mul(x[c], power);
        x[c] = prep::mul(x[c], x[c]);
      }
      float sum = prep::add(x[0], x[1]);
      if constexpr (kN == 4) sum = prep::add(sum, prep::add(x[2], x[3]));
      for (uint32_t mask = 1; mask < 32; mask *= 2)
        sum = prep::add(sum, ptx::shfl_sync_bfly(sum, mask));
      if (lane() == 0) sums[i] = sum;
    }
    sync_threads(kThreads);
    // B1's tree, level by level; an odd last element waits for the next level.
    for (int32_t width = m; width > 1; width = (width + 1) / 2) {
      float sum = 0.0f;
      const int32_t i = thread();
      if (2 * i + 1 < width)
        sum = prep::add(sums[2 * i], sums[2 * i + 1]);
      else if (2 * i < width)
        sum = sums[2 * i];
      sync_threads(kThreads);
      if (2 * i < width) sums[i] = sum;
      sync_threads(kThreads);
    }
    if (thread() == 0) {
      const float mean = prep::mul(sums[0], prep::inverse_of(int64_t{m} * p.d));
      const float sigma = square_root(mean);
      p.scales[unit] = {power, prep::div(127.0f, prep::mul(3.0f, sigma))};
    }
  }
};

// 128 rows of a unit.
struct Tokens {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 4;
  static int64_t smem_bytes(const Params&) { return 0; }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, p.max_unit_blocks);
      const int64_t unit = at.whole, first = int64_t{at.part} * kRows;
      const int64_t sub = piece_of(unit, p.h_kv).whole, head = piece_of(unit, p.h_kv).part;
      const int64_t n = min_i64(p.n_valid[sub] - first, kRows);
      if (n <= 0) continue;
      const int32_t* tokens = p.tokens + p.extra[sub].chunk_base * kRows + first;
      int8_t* out = p.values + (rows_of(p, sub, head) + first) * p.d_pad;
      const prep::TokenScale scale = p.scales[unit];
      const int parts = p.d_pad / 16, part = thread() % parts;
      VCA_UNROLL_4
      for (int row = thread() / parts; row < n; row += kThreads / parts) {
        float x[16];
        load_channels<16>(p.v, row_offset(p.v, p.subs[sub].batch, head, tokens[row]), part * 16,
                          p.d, x);
        Word4 w;
        w.x = prep::int8_tokens(x, scale);
        w.y = prep::int8_tokens(x + 4, scale);
        w.z = prep::int8_tokens(x + 8, scale);
        w.w = prep::int8_tokens(x + 12, scale);
        store_word4(out + int64_t{row} * p.d_pad + part * 16, w);
      }
    }
  }
};

}  // namespace vca::kernels::group
