// SPDX-License-Identifier: Apache-2.0
// Scores to probabilities of one (row, block): maximum, ExpCast or exponential and cast, block sum.
// The order of operations is told at the top of attention.hpp.
#pragma once

#include <algorithm>
#include <cstdint>

#include "spec/arith.hpp"
#include "spec/codes.hpp"
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
};

struct BlockP {
  float p[kBlock];          // what multiplies V
  float sum_terms[kBlock];  // FP32 exponentials (FP32-sum recipes)
  uint8_t codes[kBlock];
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

inline float decode_p(const Recipe& r, uint8_t code) {
  return r.p == PMap::cast_u8 ? static_cast<float>(code) : e4m3_decode(code);
}

// P of a block relative to `reference`, or from injected codes.
inline void compute_p(const Recipe& r, Target target, const BlockScores& s, float reference,
                      const bool* valid, const uint8_t* codes_in, BlockP& out) {
  const bool polynomial = target != Target::cpu && r.p != PMap::fp32;  // E3
  const float bias = sub_rd(r.top, reference);  // down: no code exceeds `top` (docs/numerics.md, E)
  const float offset = exp2_code_offset(bias);
  for (int n = 0; n < kBlock; ++n) {
    // FP32-sum recipes mask the pads of a tail block; decoded sums ignore them through the
    // indicator.
    const bool masked = !valid[n] && !r.decoded_sums();
    const float x = fma_rn(s.value[n], s.a[k_group(n)], bias);
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
