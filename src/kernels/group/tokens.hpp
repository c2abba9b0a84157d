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

VCA_DEVICE float square_root(float x) {
#if defined(__CUDACC__)
  return __fsqrt_rn(x);
#else
  return std::sqrt(x);
#endif
}

// B1's tree over `n` <= 2 * kThreads numbers in shared memory, level by level; an odd last one
// waits for the next level. All threads get the sum.
template <int kThreads>
VCA_DEVICE float tree_sum(float* x, int32_t n) {
  for (int32_t width = n; width > 1; width = (width + 1) / 2) {
    float sum = 0.0f;
    const int32_t i = thread();
    if (2 * i + 1 < width)
      sum = prep::add(x[2 * i], x[2 * i + 1]);
    else if (2 * i < width)
      sum = x[2 * i];
    sync_threads(kThreads);
    if (2 * i < width) x[i] = sum;
    sync_threads(kThreads);
  }
  return x[0];
}

// Sigma of a unit in three kernels, so that the sample is read by all processors: the largest
// magnitude of 128 sampled rows, the sum of their squares, and what comes of them. A sum over 128
// rows is a node of B1's tree over all of them.
template <bool kSums>
struct SigmaParts {
  static constexpr int kThreads = 256;
  static constexpr int kMinBlocks = 5;
  static constexpr int kPartRows = 128;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kAtOnce = 4;  // rows of a warp on the way
  static int64_t smem_bytes(const Params&) { return (kPartRows + kWarps) * 4; }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    for (int64_t item = ptx::cta_index(); item < items; item += ptx::grid_size()) {
      const Piece at = piece_of(item, kSigmaParts);
      const int64_t sub = piece_of(at.whole, p.h_kv).whole;
      const int64_t n = p.n_valid[sub];
      const auto m = static_cast<int32_t>(min_i64(n, p.sigma_rows));
      if (at.part * kPartRows < m || at.part == 0) {
        if (p.d_pad == 128)
          find<4>(p, at.whole, at.part, n, m);
        else
          find<2>(p, at.whole, at.part, n, m);
      }
      sync_threads(kThreads);
    }
  }

 private:
  // kN channels a lane.
  template <int kN>
  VCA_DEVICE static void find(const Params& p, int32_t unit, int32_t part, int64_t n, int32_t m) {
    constexpr int kOwn = kPartRows / kWarps;
    const int64_t sub = piece_of(unit, p.h_kv).whole, head = piece_of(unit, p.h_kv).part;
    const int32_t* tokens = p.tokens + p.extra[sub].chunk_base * kRows;
    const int32_t first = part * kPartRows + warp() * kOwn;
    int32_t token = 0;  // of a lane's row
    if (lane() < kOwn && first + lane() < m) token = tokens[sample_row(first + lane(), n, m)];
    float* const of_part = p.sigma_parts + int64_t{unit} * 2 * kSigmaParts;
    float amax = 0.0f, power = 1.0f;
    if constexpr (kSums) {
      const float all = largest(of_part, m);
      if (!is_measurable(all)) return;
      power = power_of(all);
    }
    auto* sums = shared_at<float>(0);
    VCA_UNROLL_1
    for (int i0 = 0; i0 < kOwn; i0 += kAtOnce) {
      float x[kAtOnce][kN];
      VCA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const auto own = static_cast<int32_t>(
            ptx::shfl_sync_idx(static_cast<uint32_t>(token), static_cast<uint32_t>(i0 + i)));
        VCA_UNROLL
        for (int c = 0; c < kN; ++c) x[i][c] = 0.0f;
        if (first + i0 + i < m)
          load_channels<kN>(p.v, row_offset(p.v, p.subs[sub].batch, head, own), lane() * kN, p.d,
                            x[i]);
      }
      VCA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if constexpr (kSums) {
          const float sum = sum_of_squares<kN>(x[i], power);
          if (lane() == 0) sums[warp() * kOwn + i0 + i] = sum;
        } else {
          VCA_UNROLL
          for (int c = 0; c < kN; ++c) {  // not finite counts as infinity
            const float a = prep::abs_f32(x[i][c]);
            amax = a <= amax ? amax : a == a ? a : spec::float_from_bits(0x7F800000u);
          }
        }
      }
    }
    if constexpr (kSums) {
      sync_threads(kThreads);
      const int32_t rows = m - part * kPartRows < kPartRows ? m - part * kPartRows : kPartRows;
      const float sum = tree_sum<kThreads>(sums, rows);
      if (thread() == 0) of_part[kSigmaParts + part] = sum;
    } else {
      for (uint32_t mask = 16; mask > 0; mask /= 2)
        amax = prep::max_f32(amax, ptx::shfl_sync_bfly(amax, mask));
      auto* maxima = shared_at<float>(kPartRows * 4);
      if (lane() == 0) maxima[warp()] = amax;
      sync_threads(kThreads);
      if (thread() != 0) return;
      for (int w = 1; w < kWarps; ++w) amax = prep::max_f32(amax, maxima[w]);
      of_part[part] = amax;
    }
  }
  template <int kN>
  VCA_DEVICE static float sum_of_squares(float (&x)[kN], float power) {
    VCA_UNROLL
    for (int c = 0; c < kN; ++c) {
      x[c] = prep::mul(x[c], power);
      x[c] = prep::mul(x[c], x[c]);
    }
    float sum = prep::add(x[0], x[1]);
    if constexpr (kN == 4) sum = prep::add(sum, prep::add(x[2], x[3]));
    for (uint32_t mask = 1; mask < 32; mask *= 2)
      sum = prep::add(sum, ptx::shfl_sync_bfly(sum, mask));
    return sum;
  }

 public:
  VCA_DEVICE static float largest(const float* parts, int32_t m) {
    float amax = 0.0f;
    for (int32_t i = 0; i * kPartRows < m; ++i) amax = prep::max_f32(amax, parts[i]);
    return amax;
  }
  VCA_DEVICE static bool is_measurable(float amax) {
    return amax >= 0x1p-100f && amax != spec::float_from_bits(0x7F800000u);
  }
};
using SigmaMaxima = SigmaParts<false>;
using SigmaSums = SigmaParts<true>;

struct SigmaScale {
  static constexpr int kThreads = 32;
  static constexpr int kMinBlocks = 8;
  static int64_t smem_bytes(const Params&) { return kSigmaParts * 4; }
  VCA_DEVICE static void run(const Params& p, int64_t items) {
    auto* sums = shared_at<float>(0);
    for (int64_t unit = ptx::cta_index(); unit < items; unit += ptx::grid_size()) {
      const auto m =
          static_cast<int32_t>(min_i64(p.n_valid[piece_of(unit, p.h_kv).whole], p.sigma_rows));
      const float* of_part = p.sigma_parts + unit * 2 * kSigmaParts;
      const float amax = SigmaSums::largest(of_part, m);
      const bool measurable = m > 0 && SigmaSums::is_measurable(amax);
      const auto parts = static_cast<int32_t>(ceil_div(m, SigmaSums::kPartRows));
      if (lane() < parts && measurable) sums[lane()] = of_part[kSigmaParts + lane()];
      sync_threads(kThreads);
      const float sum = measurable ? tree_sum<kThreads>(sums, parts) : 0.0f;
      if (thread() == 0) {
        const float mean = prep::mul(sum, prep::inverse_of(int64_t{m > 0 ? m : 1} * p.d));
        p.scales[unit] = {0.0f, 0.0f};
        if (measurable)
          p.scales[unit] = {power_of(amax), prep::div(127.0f, prep::mul(3.0f, square_root(mean)))};
      }
      sync_threads(kThreads);
    }
  }
};

// 16 channels of a token.
VCA_DEVICE Word4 token_part(const Params& p, int64_t batch, int64_t head, int32_t token, int part,
                            const prep::TokenScale& scale) {
  float x[16];
  load_channels<16>(p.v, row_offset(p.v, batch, head, token), part * 16, p.d, x);
  return {prep::int8_tokens(x, scale), prep::int8_tokens(x + 4, scale),
          prep::int8_tokens(x + 8, scale), prep::int8_tokens(x + 12, scale)};
}

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
      if (n <= 0 || p.token_wanted[unit] == 0) continue;
      const int32_t* tokens = p.tokens + p.extra[sub].chunk_base * kRows + first;
      int8_t* out = p.values + (rows_of(p, sub, head) + first) * p.d_pad;
      const prep::TokenScale scale = p.scales[unit];
      const int parts = p.d_pad / 16, part = thread() % parts;
      VCA_UNROLL_4
      for (int row = thread() / parts; row < n; row += kThreads / parts)
        store_word4(out + int64_t{row} * p.d_pad + part * 16,
                    token_part(p, p.subs[sub].batch, head, tokens[row], part, scale));
    }
  }
};

}  // namespace vca::kernels::group
