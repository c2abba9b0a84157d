// SPDX-License-Identifier: Apache-2.0
// Scores to probabilities of one (row, block): maximum, ExpCast or exponential and cast, block sum.
// The order of operations is told at the top of attention.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "spec/arith.hpp"
#include "spec/codes.hpp"
#include "spec/fp4.hpp"
#include "spec/operands.hpp"
#include "spec/target.hpp"

namespace vca::spec {

struct BlockScores {
  float a[4];               // score factor by scale group, code units per integer score
  float value[kBlock];      // integer scores as FP32, or the FP32 dot
  int32_t integer[kBlock];  // the integer, or the FP32's bits

  // max over the block of a*s, each product rounded up, then up to a multiple of 1/16 code. Pads
  // are copies of valid columns, so they cannot change it. a >= 0: the maximum of the products is
  // the product of the maximum.
  float block_maximum() const {
    float t = 0.0f;
    for (int g = 0; g < 4; ++g) {
      float s = value[2 * g];
      for (int n = 0; n < kBlock; ++n)
        if (k_group(n) == g) s = std::max(s, value[n]);
      const float product = mul_ru(s, a[g]);
      t = g == 0 ? product : std::max(t, product);
    }
    return ceil_sixteenth(t);
  }

  // The same over some of the columns, at least one.
  float block_maximum_of(const bool* allowed) const {
    float t = -std::numeric_limits<float>::infinity();
    for (int g = 0; g < 4; ++g) {
      float s = -std::numeric_limits<float>::infinity();
      for (int n = 0; n < kBlock; ++n)
        if (k_group(n) == g && allowed[n]) s = std::max(s, value[n]);
      if (s > -std::numeric_limits<float>::infinity()) t = std::max(t, mul_ru(s, a[g]));
    }
    return ceil_sixteenth(t);
  }
};

struct BlockP {
  float p[kBlock];                        // what multiplies V
  float sum_terms[kBlock];                // FP32 exponentials (FP32-sum recipes)
  uint8_t codes[kBlock];                  // NVFP4: element codes 0 .. 7
  uint8_t scales[kBlock / kMicroGroup];   // NVFP4: micro-scale codes of 16 keys
  float sum_scale[kBlock / kMicroGroup];  // NVFP4: what a group's sum of terms is multiplied by
};

// FP32 sum of 128 terms. CPU: 16 lanes n mod 16, each serial, then a pairwise tree over the lanes.
// GPUs: quad lane q owns columns 8i + 2q + {0,1}, serial in i, then (r0 + r1) + (r2 + r3): the
// accumulator fragment of a matrix instruction.
inline float block_sum(Target target, const float* x) {
  if (target == Target::cpu) {
    float lane[16] = {};
    for (int n = 0; n < kBlock; ++n) lane[n % 16] = add(lane[n % 16], x[n]);
    return tree_sum(lane, 16);
  }
  float quad[4] = {};
  for (int n = 0; n < kBlock; ++n) quad[k_group(n)] = add(quad[k_group(n)], x[n]);
  return add(add(quad[0], quad[1]), add(quad[2], quad[3]));
}

// r of an NVFP4 recipe: sum over groups of 16 keys of scale * (sum of the group's terms). CPU:
// terms and groups ascending. GPU: quad lane t owns the keys 32c + 8t + 0..7 (the fragment of a K
// tile whose rows are permuted, tiles_sm120.hpp), half a group each; lanes join as in block_sum.
inline float nvfp4_sum(Target target, const float* terms, const float* scale) {
  const auto part = [&](int n0, int count) {
    float sum = 0.0f;
    for (int n = n0; n < n0 + count; ++n) sum = add(sum, terms[n]);
    return mul(scale[n0 / kMicroGroup], sum);
  };
  if (target == Target::cpu) {
    float r = 0.0f;
    for (int n0 = 0; n0 < kBlock; n0 += kMicroGroup) r = add(r, part(n0, kMicroGroup));
    return r;
  }
  float lane[4] = {};
  for (int n0 = 0; n0 < kBlock; n0 += 8) lane[n0 / 8 % 4] = add(lane[n0 / 8 % 4], part(n0, 8));
  return add(add(lane[0], lane[1]), add(lane[2], lane[3]));
}

// The exponential of NVFP4 recipes, on every target.
inline float nvfp4_exp2(float code_units) { return exp2_cpu(mul(code_units, 0.125f)); }

inline constexpr float kInv6 = 1.0f / 6.0f;

// ExpCast4: micro-scale and element codes straight from the scores, by two lines that stand in for
// E2M1's logarithm. w: code units of the element relative to 6 at the group's maximum. Sums are of
// decoded values, since there is no exponential.
inline uint8_t expcast4_code(float w) {
  const float octaves = mul(w, 0.125f);
  const float line = fma_rn(octaves, 2.0f, 2.0f), tail = fma_rn(octaves, 0.63f, 1.76f);
  const float c = std::min(std::max(std::max(line, tail), 0.0f), 7.0f);
  return static_cast<uint8_t>(round_half_even_i32(c));
}

// One group of 16 keys: x[n] = code units with `top` at the maximum; masked keys are left out.
inline void nvfp4_group(const Recipe& r, const float* x, const bool* masked, uint8_t* scale_code,
                        float* sum_scale, float* p, float* terms, uint8_t* codes) {
  float top = -std::numeric_limits<float>::infinity();
  for (int n = 0; n < kMicroGroup; ++n) {
    codes[n] = 0;
    p[n] = terms[n] = 0.0f;
    if (!masked[n]) top = std::max(top, x[n]);
  }
  *scale_code = 0;
  *sum_scale = 1.0f;
  if (top == -std::numeric_limits<float>::infinity()) return;
  if (r.p == PMap::expcast4) {
    // 8 log2(448) = 70.459 code units make code 126, so code = u - 8 log2(6) - 70.459 + 126.
    constexpr float kShift = 126.0f - kTopNvfp4;
    *scale_code = std::min<uint8_t>(f2ip_code(add(top, kShift)), 126);
    const float scale = ue4m3_decode(*scale_code);
    // The scale's place on the log line is taken from its code, as the line gave it.
    const float bias = mul(-1.0f, sub(static_cast<float>(*scale_code), kShift));
    constexpr float kSix = 20.6797f;  // 8 log2 6
    for (int n = 0; n < kMicroGroup; ++n) {
      if (masked[n] || *scale_code == 0) continue;
      codes[n] = expcast4_code(add(add(x[n], bias), kSix));
      terms[n] = p[n] = mul(e2m1_decode(codes[n]), scale);
    }
    return;
  }
  const float largest = nvfp4_exp2(top);
  if (r.p == PMap::nvfp4_folded) {
    *scale_code = std::max<uint8_t>(ue4m3_encode(mul(largest, kInv6)), 1);
    const float scale = ue4m3_decode(*scale_code);
    *sum_scale = scale;
    const float log_scale = ue4m3_log_table()[*scale_code];
    for (int n = 0; n < kMicroGroup; ++n) {
      if (masked[n]) continue;
      terms[n] = nvfp4_exp2(sub(x[n], log_scale));
      codes[n] = e2m1_encode(terms[n]);
      p[n] = mul(e2m1_decode(codes[n]), scale);
    }
    return;
  }
  *scale_code = ue4m3_encode(mul(largest, kInv6));
  const float scale = ue4m3_decode(*scale_code);
  const float inverse = *scale_code != 0 ? 1.0f / scale : 0.0f;
  for (int n = 0; n < kMicroGroup; ++n) {
    if (masked[n]) continue;
    terms[n] = nvfp4_exp2(x[n]);
    codes[n] = e2m1_encode(mul(terms[n], inverse));
    p[n] = mul(e2m1_decode(codes[n]), scale);
  }
}

// Reference of O, R and l after a block with maximum m_blk (E2); m_run: before it, -Inf at first.
inline float next_reference(const Recipe& r, float m_run, float m_blk) {
  if (r.reference == Reference::running_max) return std::max(m_run, m_blk);
  return m_blk > m_run + kLazySlack ? m_blk : m_run;
}

inline void compute_p_nvfp4(const Recipe& r, const BlockScores& s, float bias, const bool* valid,
                            BlockP& out) {
  float x[kBlock];
  bool masked[kBlock];
  for (int n = 0; n < kBlock; ++n) {
    masked[n] = !valid[n];
    x[n] = fma_rn(s.value[n], s.a[k_group(n)], bias);
  }
  for (int g = 0; g < kBlock / kMicroGroup; ++g) {
    const int n = g * kMicroGroup;
    nvfp4_group(r, x + n, masked + n, &out.scales[g], &out.sum_scale[g], out.p + n,
                out.sum_terms + n, out.codes + n);
  }
}

inline float decode_p(const Recipe& r, uint8_t code) {
  return r.p == PMap::cast_u8 ? static_cast<float>(code) : e4m3_decode(code);
}

// P of a block relative to `reference`, or from injected codes. `strict`: columns that are not
// valid have P = 0 whatever the recipe (a block mask); else decoded sums leave pads as they are.
inline void compute_p(const Recipe& r, Target target, const BlockScores& s, float reference,
                      const bool* valid, bool strict, const uint8_t* codes_in, BlockP& out) {
  const bool polynomial = target != Target::cpu && r.p != PMap::fp32;  // E3
  const float bias = sub_rd(r.top, reference);  // down: no code exceeds `top` (docs/numerics.md, E)
  if (r.fp4_p()) {
    compute_p_nvfp4(r, s, bias, valid, out);
    return;
  }
  const float offset = exp2_code_offset(bias);
  float addend[4];  // of the code line, by scale group
  for (int g = 0; g < 4; ++g)
    addend[g] = r.offset_scores() ? fma_rd(-kScoreMagic, s.a[g], bias) : bias;
  for (int n = 0; n < kBlock; ++n) {
    // FP32-sum recipes mask the pads of a tail block; decoded sums ignore them through the
    // indicator.
    const bool masked = !valid[n] && (strict || !r.decoded_sums());
    const float score = r.offset_scores() ? s.value[n] + kScoreMagic : s.value[n];
    const float x = fma_rn(score, s.a[k_group(n)], addend[k_group(n)]);
    out.sum_terms[n] = 0.0f;
    out.codes[n] = 0;
    out.p[n] = 0.0f;
    if (codes_in != nullptr) {
      out.codes[n] = masked ? uint8_t{0} : codes_in[n];
      out.p[n] = decode_p(r, out.codes[n]);
      out.sum_terms[n] = out.p[n];
      continue;
    }
    if (masked) continue;
    if (r.p == PMap::expcast) {
      out.codes[n] = f2ip_code(x);
      out.p[n] = e4m3_decode(out.codes[n]);
      continue;
    }
    const float e = polynomial ? exp2_code(s.value[n], exp2_code_factor(s.a[k_group(n)]), offset)
                               : exp2_cpu(mul(x, 0.125f));
    out.sum_terms[n] = e;
    if (r.p == PMap::fp32) {
      out.p[n] = e;
      continue;
    }
    out.codes[n] = r.p == PMap::cast_u8 ? u8_encode(e) : e4m3_encode(e);
    out.p[n] = decode_p(r, out.codes[n]);
  }
}

// Where one (row, block) leaves its intermediate values; null members are skipped.
struct BlockTrace {
  int32_t* s = nullptr;
  uint8_t* codes = nullptr;
  float* p = nullptr;
  float* m = nullptr;
  float* m_run = nullptr;
  float* r = nullptr;

  void store(const BlockScores& scores, const BlockP& probability, float reference, float running,
             float r_block) const {
    if (s != nullptr) std::copy_n(scores.integer, kBlock, s);
    if (codes != nullptr) std::copy_n(probability.codes, kBlock, codes);
    if (p != nullptr) std::copy_n(probability.p, kBlock, p);
    if (m != nullptr) *m = reference;
    if (m_run != nullptr) *m_run = running;
    if (r != nullptr) *r = r_block;
  }
};

}  // namespace vca::spec
