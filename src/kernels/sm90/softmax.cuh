// SPDX-License-Identifier: Apache-2.0
// Integer scores to E4M3 codes in registers (docs/numerics.md, section E). A thread owns rows r and
// r + 8 of its warp's 16 and the key columns 8i + 2q + {0,1}, so one key scale group and two query
// scales at most: no lookups.
#pragma once

#include "kernels/sm90/config.hpp"
#include "ptx/ptx.hpp"
#include "spec/arith.hpp"

namespace vca::kernels::sm90 {

// A pair of values for rows r and r + 8.
struct RowPair {
  float r0, r1;
};

// Largest score of this thread's columns, both rows: four chains of 3-input maxima (two a row),
// because one chain of 15 dependent instructions would sit on the critical path between the two
// MMAs.
VCA_DEVICE void thread_maxima(const int32_t (&s)[64], int32_t& x0, int32_t& x1) {
  int32_t a0 = s[0], a1 = s[2], b0 = s[4], b1 = s[6];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    a0 = ptx::max3_s32(a0, s[8 * i], s[8 * i + 1]);
    a1 = ptx::max3_s32(a1, s[8 * i + 2], s[8 * i + 3]);
    b0 = ptx::max3_s32(b0, s[8 * i + 4], s[8 * i + 5]);
    b1 = ptx::max3_s32(b1, s[8 * i + 6], s[8 * i + 7]);
  }
  x0 = a0 > b0 ? a0 : b0;
  x1 = a1 > b1 ? a1 : b1;
}

VCA_DEVICE void thread_maxima(const float (&s)[64], float& x0, float& x1) {
  float a0 = s[0], a1 = s[2], b0 = s[4], b1 = s[6];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    a0 = ptx::max_f32(a0, ptx::max_f32(s[8 * i], s[8 * i + 1]));
    a1 = ptx::max_f32(a1, ptx::max_f32(s[8 * i + 2], s[8 * i + 3]));
    b0 = ptx::max_f32(b0, ptx::max_f32(s[8 * i + 4], s[8 * i + 5]));
    b1 = ptx::max_f32(b1, ptx::max_f32(s[8 * i + 6], s[8 * i + 7]));
  }
  x0 = ptx::max_f32(a0, b0);
  x1 = ptx::max_f32(a1, b1);
}

VCA_DEVICE float score_value(int32_t s) { return ptx::cvt_rn_f32_s32(s); }
VCA_DEVICE float score_value(float s) { return s; }

// E2, second half: largest of the quad, which shares the rows; then up to a multiple of 1/16 code.
VCA_DEVICE RowPair quad_largest(RowPair t) {
  t.r0 = ptx::max_f32(t.r0, ptx::shfl_sync_bfly(t.r0, 1));
  t.r1 = ptx::max_f32(t.r1, ptx::shfl_sync_bfly(t.r1, 1));
  t.r0 = ptx::max_f32(t.r0, ptx::shfl_sync_bfly(t.r0, 2));
  t.r1 = ptx::max_f32(t.r1, ptx::shfl_sync_bfly(t.r1, 2));
  return t;
}
VCA_DEVICE RowPair quad_maximum(RowPair t) {
  t = quad_largest(t);
  return {ptx::add_rn(ptx::add_rp(t.r0, spec::kCeilMagic), -spec::kCeilMagic),
          ptx::add_rn(ptx::add_rp(t.r1, spec::kCeilMagic), -spec::kCeilMagic)};
}

// E2, first half: largest score of this thread's columns in code units, rounded up. kOffset: what
// the dots in `s` started from.
template <int kOffset = 0, class Score>
VCA_DEVICE RowPair thread_scores(const Score (&s)[64], float factor) {
  Score x0, x1;
  thread_maxima(s, x0, x1);
  return {ptx::mul_rp(score_value(x0 - kOffset), factor),
          ptx::mul_rp(score_value(x1 - kOffset), factor)};
}

// 2^(d/8), d <= 0 a multiple of 1/16 (E2): the mantissa from the table in shared memory, the
// exponent by an integer subtract. -16 d is exact; 1.5 * 2^23 turns it into an integer in the low
// bits, whose lowest 7 are the fraction. Below 2^-126: 0, and whatever bits a larger -d leaves
// there are not used.
VCA_DEVICE float rescale_factor(float d, ptx::SmemAddr table) {
  const uint32_t k = ptx::float_bits(ptx::fma_rn(d, -16.0f, 12582912.0f));
  const float mantissa = ptx::ld_shared_f32(table + ((k << 2) & 508u));
  const float value = ptx::bits_float(ptx::float_bits(mantissa) - ((k << 16) & 0xFF800000u));
  return d >= -1008.0f ? value : 0.0f;
}

// Weight of a block (E2), cut where any ex2 gives the same bits.
VCA_DEVICE float block_weight(float d) {
  return ptx::bits_float(ptx::float_bits(ptx::ex2_approx_ftz(ptx::mul_rn(d, 0.125f))) &
                         spec::kWeightMask);
}

// What the dots of the code line start from in the accumulators: the bits of 1.5 * 2^23. A dot
// added to them is the float 1.5 * 2^23 + dot, so no conversion stands between QK and the FFMAs.
// The 64 moves cost what 64 conversions do, but issue between F2IPs, where slots are free.
inline constexpr int32_t kScoreOffset = 0x4B400000;
VCA_DEVICE void offset_scores(int32_t (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 64; ++i) s[i] = kScoreOffset;
}

// Code arguments (E2) in place of the scores, kept as bits. FFMAs next to each other take factor
// and addend from the operand reuse cache: one register read instead of three, while wgmma needs
// the register ports too.
VCA_DEVICE void code_arguments(int32_t (&s)[64], float factor, RowPair bias) {
  const RowPair addend = {ptx::fma_rm(-spec::kScoreMagic, factor, bias.r0),
                          ptx::fma_rm(-spec::kScoreMagic, factor, bias.r1)};
#pragma unroll
  for (int i = 0; i < 64; ++i)
    s[i] = static_cast<int32_t>(ptx::float_bits(ptx::fma_rn(
        ptx::bits_float(static_cast<uint32_t>(s[i])), factor, i % 4 < 2 ? addend.r0 : addend.r1)));
}

// Codes as the A operand of PV: register 4k + 2h + row of k-step k holds columns {16(2k+h)/2...}:
// accumulator registers {8b, 8b+1, 8b+4, 8b+5} of row r and {8b+2, 8b+3, 8b+6, 8b+7} of row r + 8
// (b = 2k + h) are the bytes of one A register, because V's key order was permuted to match
// (tiles.hpp). Leaves the offset of the next dots behind.
template <int kStep>
VCA_DEVICE void pack_codes(int32_t (&s)[64], uint32_t (&p)[16]) {
  const auto as_float = [](int32_t bits) { return ptx::bits_float(static_cast<uint32_t>(bits)); };
#pragma unroll
  for (int b = 2 * kStep; b < 2 * kStep + 2; ++b) {
    p[2 * b] = ptx::cvt_pack_sat_u8x4_f32(as_float(s[8 * b]), as_float(s[8 * b + 1]),
                                          as_float(s[8 * b + 4]), as_float(s[8 * b + 5]));
    p[2 * b + 1] = ptx::cvt_pack_sat_u8x4_f32(as_float(s[8 * b + 2]), as_float(s[8 * b + 3]),
                                              as_float(s[8 * b + 6]), as_float(s[8 * b + 7]));
#pragma unroll
    for (int i = 8 * b; i < 8 * b + 8; ++i) s[i] = kScoreOffset;
  }
}

}  // namespace vca::kernels::sm90
