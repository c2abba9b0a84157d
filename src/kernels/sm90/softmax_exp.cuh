// SPDX-License-Identifier: Apache-2.0
// Real exponentials (docs/numerics.md E3, decision 0006): scores to 2^(x/8) in registers, their
// FP32 row sums, and the cast to E4M3 codes. The same functions as spec::exp2_code and
// spec::block_sum.
#pragma once

#include "kernels/sm90/softmax.cuh"
#include "spec/arith.hpp"

namespace vca::kernels::sm90 {

// spec::exp2_code, instruction by instruction: 7 on the FP32 pipe, one integer addition.
VCA_DEVICE float exp2_code(float s, float factor, float offset) {
  const float v = ptx::fma_rn_sat(s, factor, offset);
  const float n = ptx::fma_rn(v, 128.0f, spec::kExp2CodeMagic);
  const float f = ptx::fma_rn(v, 128.0f, -ptx::add_rn(n, -spec::kExp2CodeMagic));
  float p = ptx::fma_rn(spec::kExp2Cubic3, f, spec::kExp2Cubic2);
  p = ptx::fma_rn(p, f, spec::kExp2Cubic1);
  p = ptx::fma_rn(p, f, spec::kExp2Cubic0);
  return ptx::bits_float(ptx::float_bits(p) + (ptx::float_bits(n) << 23));
}

// An exponential takes the place of its score.
VCA_DEVICE void put(int32_t& at, float x) { at = static_cast<int32_t>(ptx::float_bits(x)); }
VCA_DEVICE void put(float& at, float x) { at = x; }
VCA_DEVICE float get(int32_t at) { return ptx::bits_float(static_cast<uint32_t>(at)); }
VCA_DEVICE float get(float at) { return at; }

// `a`: factor of a score, the same for rows r and r + 8 (B4); bias: top - m. Returns this thread's
// part of both row sums over all 128 columns, ascending: in one block of code, so that ptxas may
// place the chains of additions between the exponentials.
template <class Score>
VCA_DEVICE RowPair exponentials(Score (&s)[64], float a, RowPair bias) {
  const float factor = ptx::mul_rn(a, 0x1p-10f);
  const RowPair offset = {ptx::fma_rn(bias.r0, 0x1p-10f, 0.921875f),
                          ptx::fma_rn(bias.r1, 0x1p-10f, 0.921875f)};
  RowPair sum = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    const bool upper = i % 4 < 2;  // row r
    const float e = exp2_code(score_value(s[i]), factor, upper ? offset.r0 : offset.r1);
    put(s[i], e);
    (upper ? sum.r0 : sum.r1) = ptx::add_rn(upper ? sum.r0 : sum.r1, e);
  }
  return sum;
}

// The same sums over the first `valid` columns: pads are copies of valid keys (D1) and must not
// count. Their codes may stay, because their values are zero.
template <class Score>
VCA_DEVICE RowPair masked_sums(const Score (&s)[64], uint32_t valid, uint32_t quad_lane) {
  RowPair r = {0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    const uint32_t column = 2u * static_cast<uint32_t>(i) + 2u * quad_lane;
    const bool first = column < valid, second = column + 1u < valid;
    r = {ptx::add_rn(ptx::add_rn(r.r0, first ? get(s[i]) : 0.0f), second ? get(s[i + 1]) : 0.0f),
         ptx::add_rn(ptx::add_rn(r.r1, first ? get(s[i + 2]) : 0.0f),
                     second ? get(s[i + 3]) : 0.0f)};
  }
  return r;
}

// (r_0 + r_1) + (r_2 + r_3) over the quad.
VCA_DEVICE RowPair quad_sum(RowPair r) {
  r = {ptx::add_rn(r.r0, ptx::shfl_sync_bfly(r.r0, 1)),
       ptx::add_rn(r.r1, ptx::shfl_sync_bfly(r.r1, 1))};
  return {ptx::add_rn(r.r0, ptx::shfl_sync_bfly(r.r0, 2)),
          ptx::add_rn(r.r1, ptx::shfl_sync_bfly(r.r1, 2))};
}

// Codes as the A operand of PV, in the order of pack_codes.
template <class Score>
VCA_DEVICE void pack_exponentials(const Score (&s)[64], uint32_t (&p)[16]) {
#pragma unroll
  for (int b = 0; b < 8; ++b) {
    p[2 * b] = ptx::cvt_rn_satfinite_e4m3x4_f32(get(s[8 * b]), get(s[8 * b + 1]), get(s[8 * b + 4]),
                                                get(s[8 * b + 5]));
    p[2 * b + 1] = ptx::cvt_rn_satfinite_e4m3x4_f32(get(s[8 * b + 2]), get(s[8 * b + 3]),
                                                    get(s[8 * b + 6]), get(s[8 * b + 7]));
  }
}

}  // namespace vca::kernels::sm90
