// SPDX-License-Identifier: Apache-2.0
// L1 preprocessing: RoPE, means, Hadamard, gather, quantise. Rules: docs/numerics.md, sections B
// and D.
#include <algorithm>
#include <cmath>
#include <limits>

#include "spec/arith.hpp"
#include "spec/codes.hpp"
#include "spec/fp4.hpp"
#include "spec/hadamard.hpp"
#include "spec/operands.hpp"
#include "spec/value_stats.hpp"

namespace vca::spec {
namespace {

constexpr float kAmaxFloor = 0x1p-100f;  // below it an amax counts as 0

float floor_amax(float amax) { return amax < kAmaxFloor ? 0.0f : amax; }

// The largest code value of a QK format: 127 for INT8, 448 for E4M3, 6 * 448 for NVFP4.
float qk_code_max(const Recipe& r) {
  if (r.qk == QkFormat::nvfp4) return kNvfp4Max;
  return r.qk == QkFormat::int8 ? 127.0f : 448.0f;
}

// One quantiser: codes = encode(x * RN(code_max / amax)), scale = RN(amax / code_max).
struct Quantiser {
  float factor = 0.0f;
  float scale = 0.0f;
};

Quantiser make_quantiser(float amax, float code_max) {
  amax = floor_amax(amax);
  if (amax == 0.0f) return {};
  return {code_max / amax, amax / code_max};
}

uint8_t encode_qk(const Recipe& r, float x) {
  return r.qk == QkFormat::int8 ? static_cast<uint8_t>(int8_encode(x)) : e4m3_encode(x);
}

// Key row after RoPE, minus the offset, after Hadamard: what gets quantised. d_pad values.
void load_key(const Problem& p, const SubProblem& sub, int64_t kv_head, int64_t token,
              const float* k_offset, float* out) {
  std::fill(out, out + p.d_pad, 0.0f);
  p.k.load_row(sub.batch, kv_head, token, out);
  p.rope.apply(token, out);
  if (p.recipe->k_mean)
    for (int i = 0; i < p.d; ++i) out[i] = spec::sub(out[i], k_offset[i]);
  if (p.hadamard) hadamard_row(out, p.d_pad);
}

float row_amax(const float* x, int n) {
  float amax = 0.0f;
  for (int i = 0; i < n; ++i) amax = std::max(amax, std::fabs(x[i]));
  return amax;
}

// ---- keys ----

// Lowest valid column of each scale group of a block, -1 where the group is empty.
void first_of_group(int64_t n_valid_in_block, int first[4]) {
  for (int g = 0; g < 4; ++g) first[g] = 2 * g < n_valid_in_block ? 2 * g : -1;
}

void quantise_key_block(const Problem& p, const float* rows /*[kBlock][d_pad]*/, int64_t n_valid,
                        uint8_t* codes, float* k_scale /*[4]*/) {
  const Recipe& r = *p.recipe;
  float amax[4] = {};
  for (int64_t n = 0; n < n_valid; ++n)
    amax[k_group(n)] = std::max(amax[k_group(n)], row_amax(rows + n * p.d_pad, p.d_pad));
  Quantiser quantiser[4];
  for (int g = 0; g < 4; ++g) quantiser[g] = make_quantiser(amax[g], qk_code_max(r));
  for (int64_t n = 0; n < n_valid; ++n)
    for (int i = 0; i < p.d_pad; ++i)
      codes[n * p.d_pad + i] =
          encode_qk(r, mul(rows[n * p.d_pad + i], quantiser[k_group(n)].factor));
  int first[4];
  first_of_group(n_valid, first);
  for (int g = 0; g < 4; ++g) k_scale[g] = quantiser[first[g] < 0 ? 0 : g].scale;
  for (int64_t n = n_valid; n < kBlock; ++n) {
    const int source = std::max(first[k_group(n)], 0);
    std::copy_n(codes + source * p.d_pad, p.d_pad, codes + n * p.d_pad);
  }
}

// A row of NVFP4: d values already divided by the head's scale.
void store_nvfp4_row(const Recipe& r, const float* x, int d, uint8_t* codes, uint8_t* micro) {
  for (int c0 = 0; c0 < d; c0 += kMicroGroup) {
    const MicroGroup g = quantise_micro_group(x + c0, r.micro_of_three);
    micro[c0 / kMicroGroup] = g.scale;
    for (int i = 0; i < kMicroGroup; ++i) fp4_set(codes, d, c0 + i, g.codes[i]);
  }
}

// NVFP4 keys of a block under the head's scale. Pads copy column 0, as with one scale a head.
void store_nvfp4_keys(const Problem& p, const float* rows, int64_t n_valid, int64_t c0,
                      const Quantiser& head, KvOperands& out) {
  const int d = p.d_pad;
  float x[kMaxHeadDim];
  for (int64_t n = 0; n < kBlock; ++n) {
    const float* from = rows + (n < n_valid ? n : 0) * d;
    for (int i = 0; i < d; ++i) x[i] = mul(from[i], head.factor);
    store_nvfp4_row(*p.recipe, x, d, out.k_codes + (c0 + n) * d / 2,
                    out.k_micro + (c0 + n) * d / kMicroGroup);
    if (out.k_real != nullptr) std::copy_n(x, d, out.k_real + (c0 + n) * d);
  }
}

// One scale for all keys of the head (naive fp8, NVFP4), found in a pass of its own.
Quantiser whole_head_quantiser(const Problem& p, const SubProblem& sub, int64_t kv_head,
                               const float* k_offset) {
  float row[kMaxHeadDim], amax = 0.0f;
  for (const auto& segment : sub.segments)
    for (const int64_t token : segment) {
      load_key(p, sub, kv_head, token, k_offset, row);
      amax = std::max(amax, row_amax(row, p.d_pad));
    }
  return make_quantiser(amax, qk_code_max(*p.recipe));
}

void prepare_keys(const Problem& p, const SubProblem& sub, int64_t kv_head, KvOperands& out) {
  const Recipe& r = *p.recipe;
  const int d = p.d_pad;
  const bool per_head = r.qk == QkFormat::e4m3_head, fp4 = r.qk == QkFormat::nvfp4;
  const Quantiser head =
      per_head || fp4 ? whole_head_quantiser(p, sub, kv_head, out.k_offset) : Quantiser{};
  float max_scale = 0.0f;
  std::vector<float> rows(static_cast<size_t>(kBlock * d));
  for (int64_t j = 0; j < out.n_blocks; ++j) {
    const int64_t c0 = j * kBlock;
    int64_t n_valid = 0;
    while (n_valid < kBlock && out.order[c0 + n_valid] >= 0) ++n_valid;
    for (int64_t n = 0; n < n_valid; ++n)
      load_key(p, sub, kv_head, out.order[c0 + n], out.k_offset, rows.data() + n * d);
    float* scale = out.k_scale + j * 4;
    if (r.qk == QkFormat::bf16) {
      std::fill(scale, scale + 4, 1.0f);
      for (int64_t n = 0; n < kBlock; ++n) {
        // Pads copy column 0: their probability is masked, but the maximum must stay the valid one.
        const float* from = rows.data() + (n < n_valid ? n : 0) * d;
        float* to = out.k_real + (c0 + n) * d;
        for (int i = 0; i < d; ++i) to[i] = bf16_round(from[i]);
        max_scale = std::max(max_scale, row_amax(to, d));
      }
      continue;
    }
    uint8_t* codes = out.k_codes + c0 * d;
    if (fp4) {
      std::fill(scale, scale + 4, head.scale);
      store_nvfp4_keys(p, rows.data(), n_valid, c0, head, out);
    } else if (per_head) {
      std::fill(scale, scale + 4, head.scale);
      for (int64_t n = 0; n < kBlock; ++n)
        for (int i = 0; i < d; ++i)
          codes[n * d + i] = encode_qk(
              r, mul(rows[static_cast<size_t>((n < n_valid ? n : 0) * d + i)], head.factor));
    } else {
      quantise_key_block(p, rows.data(), n_valid, codes, scale);
    }
    max_scale = std::max(max_scale, *std::max_element(scale, scale + 4));
  }
  out.stats->max_k_scale = max_scale;
}

}  // namespace

void compute_k_offset(const Problem& p, const SubProblem& sub, int64_t kv_head, float* k_offset) {
  std::fill(k_offset, k_offset + p.d_pad, 0.0f);
  if (!p.recipe->k_mean) return;
  // Valid tokens in ascending order over the segments, every 16th of them.
  std::vector<int64_t> sample;
  const int64_t step = p.recipe->k_mean_all_rows ? 1 : 16;
  int64_t index = 0;
  for (const auto& segment : sub.segments)
    for (const int64_t token : segment)
      if (index++ % step == 0) sample.push_back(token);
  if (sample.empty()) return;
  const auto n = static_cast<int64_t>(sample.size());
  tree_sum_rows(
      [&](int64_t i, float* out) {
        p.k.load_row(sub.batch, kv_head, sample[static_cast<size_t>(i)], out);
        p.rope.apply(sample[static_cast<size_t>(i)], out);
      },
      n, p.d, k_offset);
  const float inverse = rn_inverse(n);
  for (int i = 0; i < p.d; ++i) {
    const float mean = mul(k_offset[i], inverse);
    // Any vector is exact for the output, so a mean whose sum overflowed may simply be left out.
    k_offset[i] = is_finite(mean) ? mean : 0.0f;
  }
}

void prepare_kv(const Problem& p, const SubProblem& sub, int64_t kv_head,
                const std::vector<std::vector<int64_t>>& order_by_segment, KvOperands& out) {
  int64_t column = 0;
  for (const auto& segment : order_by_segment) {
    for (const int64_t token : segment) out.order[column++] = static_cast<int32_t>(token);
    while (column % kBlock != 0) out.order[column++] = -1;  // the tail block of the segment
  }
  compute_k_offset(p, sub, kv_head, out.k_offset);
  prepare_keys(p, sub, kv_head, out);
  prepare_values(p, sub, kv_head, out);
}

namespace {

// NVFP4 queries: one scale over the head; with q means, that of every 128 rows is taken out first
// and kept. `row_of(row, x)` gives the row that is quantised. Two passes: means and amax, then
// codes.
template <class RowOf>
void prepare_nvfp4_q(const Problem& p, RowOf row_of, QOperands& out) {
  const Recipe& r = *p.recipe;
  const int d = p.d_pad;
  float x[kMaxHeadDim], amax = 0.0f, mean_amax = 0.0f;
  std::vector<float> rows(static_cast<size_t>(kBlock * d));
  const auto load_block = [&](int64_t row0) {
    const int64_t n = std::min<int64_t>(kBlock, out.rows - row0);
    for (int64_t i = 0; i < n; ++i) row_of(row0 + i, rows.data() + i * d);
    return n;
  };
  for (int64_t row0 = 0; row0 < out.rows; row0 += kBlock) {
    const int64_t n = load_block(row0);
    float* mean = r.q_mean ? out.q_mean + row0 / kBlock * d : nullptr;
    for (int i = 0; mean != nullptr && i < d; ++i)
      mean[i] = mul(tree_sum(rows.data() + i, n, d), rn_inverse(n));
    for (int64_t k = 0; k < n * d; ++k) {
      const float value = rows[static_cast<size_t>(k)];
      amax = std::max(amax, std::fabs(mean != nullptr ? sub(value, mean[k % d]) : value));
    }
    if (mean != nullptr) mean_amax = std::max(mean_amax, row_amax(mean, d));
  }
  // A head whose rows equal their means still needs a unit for the scores of the means.
  if (r.q_mean) amax = std::max(amax, mul(mean_amax, 0x1p-10f));
  const Quantiser head = make_quantiser(amax, kNvfp4Max);
  std::fill(out.q_scale, out.q_scale + (out.rows + 15) / 16 * 8, head.scale);
  *out.max_q_scale = r.q_mean ? add(head.scale, mean_amax / kNvfp4Max) : head.scale;
  for (int64_t row0 = 0; row0 < out.rows; row0 += kBlock) {
    const int64_t n = load_block(row0);
    float* mean = r.q_mean ? out.q_mean + row0 / kBlock * d : nullptr;
    for (int64_t i = 0; i < n; ++i) {
      const float* from = rows.data() + i * d;
      for (int c = 0; c < d; ++c)
        x[c] = mul(mean != nullptr ? sub(from[c], mean[c]) : from[c], head.factor);
      store_nvfp4_row(r, x, d, out.q_codes + (row0 + i) * d / 2,
                      out.q_micro + (row0 + i) * d / kMicroGroup);
    }
    for (int c = 0; mean != nullptr && c < d; ++c) mean[c] = mul(mean[c], head.factor);
  }
}

}  // namespace

void prepare_q(const Problem& p, const SubProblem& sub, int64_t q_head, const float* k_offset,
               QOperands& out) {
  const Recipe& r = *p.recipe;
  const int d = p.d_pad;
  const auto load = [&](int64_t row, float* x) {
    std::fill(x, x + d, 0.0f);
    p.q.load_row(sub.batch, q_head, sub.q_begin + row, x);
    p.rope.apply(sub.q_begin + row, x);
  };
  const auto finish = [&](float* x) {
    if (p.negate_q())
      for (int i = 0; i < d; ++i) x[i] = -x[i];
    if (p.hadamard) hadamard_row(x, d);
  };
  // For LSE, of the rotated row before sign and Hadamard.
  const auto store_offset = [&](int64_t row, const float* x) {
    if (out.qk_offset == nullptr) return;
    const float dot = tree_sum(d, [&](int64_t i) { return mul(x[i], k_offset[i]); });
    const float offset = mul(static_cast<float>(p.scale), dot);
    out.qk_offset[row] = is_nan(offset) ? float_from_bits(0x7FC00000u) : offset;
  };
  if (r.qk == QkFormat::nvfp4) {
    prepare_nvfp4_q(
        p,
        [&](int64_t row, float* x) {
          load(row, x);
          store_offset(row, x);
          finish(x);
        },
        out);
    return;
  }
  float whole_amax = 0.0f;
  if (r.qk == QkFormat::e4m3_head) {
    float x[kMaxHeadDim];
    for (int64_t row = 0; row < out.rows; ++row) {
      load(row, x);
      finish(x);
      whole_amax = std::max(whole_amax, row_amax(x, d));
    }
  }
  float max_scale = 0.0f;
  float pair[2][kMaxHeadDim];
  for (int64_t w = 0; w < (out.rows + 15) / 16; ++w) {
    for (int64_t lane = 0; lane < 8; ++lane) {
      const int64_t row[2] = {16 * w + lane, 16 * w + lane + 8};
      float amax = 0.0f;
      for (int i = 0; i < 2; ++i) {
        if (row[i] >= out.rows) continue;
        load(row[i], pair[i]);
        store_offset(row[i], pair[i]);
        finish(pair[i]);
        amax = std::max(amax, row_amax(pair[i], d));
      }
      if (r.qk == QkFormat::bf16) {
        out.q_scale[w * 8 + lane] = 1.0f;
        for (int i = 0; i < 2; ++i) {
          if (row[i] >= out.rows) continue;
          float* to = out.q_real + row[i] * d;
          for (int c = 0; c < d; ++c) to[c] = bf16_round(pair[i][c]);
          max_scale = std::max(max_scale, row_amax(to, d));
        }
        continue;
      }
      if (r.qk == QkFormat::e4m3_head) amax = whole_amax;
      const Quantiser quantiser = make_quantiser(amax, qk_code_max(r));
      out.q_scale[w * 8 + lane] = quantiser.scale;
      max_scale = std::max(max_scale, quantiser.scale);
      for (int i = 0; i < 2; ++i) {
        if (row[i] >= out.rows) continue;
        for (int c = 0; c < d; ++c)
          out.q_codes[row[i] * d + c] = encode_qk(r, mul(pair[i][c], quantiser.factor));
      }
    }
  }
  *out.max_q_scale = max_scale;
}

int overflow_exponent(const Problem& p, float max_q_scale, float max_k_scale) {
  const double code_max =
      p.recipe->qk == QkFormat::bf16 ? 1.0 : static_cast<double>(qk_code_max(*p.recipe));
  const double bound = static_cast<double>(p.code_scale()) * max_q_scale * max_k_scale * code_max *
                       code_max * p.d_pad;
  if (!std::isfinite(bound)) return 0;  // non-finite input: any answer will do, but an answer
  int e = 0;
  while (std::ldexp(bound, -e) >= 0x1p23) ++e;
  return e;
}

void bind_mask(const Problem& p, const SubProblem& sub, int64_t q_head, QOperands& q) {
  q.mask = p.mask_row(sub.batch, q_head, 0);
  q.mask_pitch = p.mask_blocks_kv();
  q.mask_begin = sub.q_begin;
}

void mean_scores(const KvOperands& kv, const float* mean, int64_t block, float* out) {
  constexpr int kAtOnce = 8;  // independent sums, each serial in i: as fast as one would be slow
  const float* k = kv.k_real + block * kBlock * kv.d_pad;
  for (int n0 = 0; n0 < kBlock; n0 += kAtOnce) {
    float sum[kAtOnce] = {};
    for (int i = 0; i < kv.d_pad; ++i)
      for (int n = 0; n < kAtOnce; ++n)
        sum[n] = add(sum[n], mul(mean[i], k[(n0 + n) * kv.d_pad + i]));
    std::copy_n(sum, kAtOnce, out + n0);
  }
}

float query_unit(const Problem& p, const QOperands& q, int64_t row, int e) {
  const float scale = q.q_scale[row / 16 * 8 + row % 8];
  // The product is exact in FP64 and the power of two too, so one rounding remains: RN(c * q_scale)
  // * 2^-e wherever that does not overflow before the shift.
  return static_cast<float>(
      std::ldexp(static_cast<double>(p.code_scale()) * static_cast<double>(scale), -e));
}

}  // namespace vca::spec
