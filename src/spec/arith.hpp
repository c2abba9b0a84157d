// SPDX-License-Identifier: Apache-2.0
// Explicit FP32 arithmetic of the specification: every rounding is written down. Compile with
// -ffp-contract=off and without fast-math, or the bits change.
//
// Assumed of the host: IEEE binary32 and binary64, round to nearest even (the default; nothing
// here changes or reads the floating-point environment), subnormals not flushed. Directed rounding
// is done by exact arithmetic and one step of the bit pattern, never by switching the mode.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "spec/codes.hpp"

namespace vca::spec {

// ---- round to nearest even -----------------------------------------------------------------

constexpr float mul(float a, float b) { return a * b; }
constexpr float add(float a, float b) { return a + b; }
constexpr float sub(float a, float b) { return a - b; }
inline float fma_rn(float a, float b, float c) { return std::fma(a, b, c); }
// fma clamped to [0, 1]; NaN gives +0 (PTX fma.rn.sat.f32).
inline float fma_sat(float a, float b, float c) {
  const float x = std::fma(a, b, c);
  return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;
}

// RN(1/n), the factor of every mean. n >= 1; exact up to the one rounding for n <= 2²⁴.
constexpr float rn_inverse(int64_t n) { return 1.0f / static_cast<float>(n); }

// ---- directed rounding ---------------------------------------------------------------------

namespace detail {

// Neighbours in the order of the reals. Not for NaN, not for the zero of the other side: the
// callers below never step a zero towards its own sign's opposite.
constexpr float step_up(float x) {
  const uint32_t bits = float_bits(x);
  return float_from_bits((bits >> 31) != 0 ? bits - 1u : bits + 1u);
}
constexpr float step_down(float x) {
  const uint32_t bits = float_bits(x);
  return float_from_bits((bits >> 31) != 0 ? bits + 1u : bits - 1u);
}

}  // namespace detail

// a·b rounded towards +Inf (PTX mul.rp.f32). A positive overflow gives +Inf, a negative one
// −FLT_MAX; a tiny positive product gives the smallest subnormal, a tiny negative one −0; the sign
// of an exact zero is the product of the signs; Inf and NaN as in IEEE.
constexpr float mul_ru(float a, float b) {
  // 24 + 24 significant bits and |exponent| < 300: the double product is exact.
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const float nearest = static_cast<float>(product);
  // nearest = −0 < product cannot happen: only a negative product rounds to −0.
  return static_cast<double>(nearest) < product ? detail::step_up(nearest) : nearest;
}

namespace detail {
// x + y, not exactly 0 and without overflow in FP64, rounded to FP32 towards −Inf.
constexpr float sum_rd(double x, double y) {
  // TwoSum: x + y = sum + error exactly.
  const double sum = x + y;
  const double y_part = sum - x;
  const double error = (x - (sum - y_part)) + (y - y_part);
  const float nearest = static_cast<float>(sum);
  // nearest > sum: the float below is the answer, since no double lies between it and the value.
  // nearest == sum: the sign of the rest decides. A NaN rest (Inf operands) compares false.
  const bool above =
      static_cast<double>(nearest) > sum || (static_cast<double>(nearest) == sum && error < 0.0);
  return above ? step_down(nearest) : nearest;
}
}  // namespace detail

// a − b rounded towards −Inf (PTX sub.rm.f32). A negative overflow gives −Inf, a positive one
// FLT_MAX; an exact zero is −0 except (+0) − (−0) = +0, as IEEE says for this direction; Inf and
// NaN as in IEEE.
constexpr float sub_rd(float a, float b) {
  if (static_cast<double>(a) - static_cast<double>(b) == 0.0) {  // two floats: exactly 0
    const bool both_plus_zero = (float_bits(a) | (float_bits(b) ^ 0x80000000u)) == 0;
    return both_plus_zero ? 0.0f : -0.0f;
  }
  return detail::sum_rd(static_cast<double>(a), -static_cast<double>(b));
}

// a·b + c rounded once, towards −Inf (PTX fma.rm.f32). a·b is exact in FP64. An exact zero is −0,
// but +0 where both terms are +0; Inf and NaN as in IEEE.
constexpr float fma_rd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double addend = static_cast<double>(c);
  if (product + addend == 0.0)
    return std::bit_cast<uint64_t>(product) == 0 && std::bit_cast<uint64_t>(addend) == 0 ? 0.0f
                                                                                         : -0.0f;
  return detail::sum_rd(product, addend);
}

// Nearest tf32 (10 mantissa bits, exponent range of FP32), ties away from zero, as
// cvt.rna.tf32.f32; kept as FP32. Overflow gives Inf; Inf and NaN are returned unchanged.
constexpr float rna_tf32(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t rounded = (bits + 0x1000u) & 0xFFFFE000u;
  return float_from_bits(select_bits((bits & 0x7F800000u) == 0x7F800000u, bits, rounded));
}

// a + b rounded towards +Inf (PTX add.rp.f32): the mirror image of sub_rd.
constexpr float add_ru(float a, float b) { return -sub_rd(-a, b); }

// x rounded up to a multiple of 1/16: RU(x + 1.5·2¹⁹) − 1.5·2¹⁹, two additions on any chip. Below
// 2¹⁸ in magnitude the sum lies in [2¹⁹, 2²⁰), whose floats are the multiples of 1/16, so the
// result is ⌈16x⌉/16; up to 2²³ (B6 keeps scores below) it is the next multiple of a coarser power
// of two. Never below x; the subtraction is exact. An exact zero is +0.
inline constexpr float kCeilMagic = 786432.0f;
constexpr float ceil_sixteenth(float x) { return add_ru(x, kCeilMagic) - kCeilMagic; }

// What INT8 dots start from in the accumulator (E2): below 2²² in magnitude an integer added to the
// *bits* of 1.5·2²³ gives the bits of 1.5·2²³ plus it, so no conversion to FP32 is needed.
inline constexpr float kScoreMagic = 12582912.0f;

// ---- powers of two -------------------------------------------------------------------------

// RN(2^(−k/128)), k = 0 … 127: all the mantissas that a rescale factor can have, since maxima are
// multiples of 1/16 code and a code is 1/8 of an octave.
inline constexpr std::array<uint32_t, 128> kExp2FractionBits = {
    0x3F800000u, 0x3F7E9E11u, 0x3F7D3E0Cu, 0x3F7BDFEDu, 0x3F7A83B3u, 0x3F79295Au, 0x3F77D0DFu,
    0x3F767A41u, 0x3F75257Du, 0x3F73D290u, 0x3F728177u, 0x3F713231u, 0x3F6FE4BAu, 0x3F6E9910u,
    0x3F6D4F30u, 0x3F6C0719u, 0x3F6AC0C7u, 0x3F697C38u, 0x3F68396Au, 0x3F66F85Bu, 0x3F65B907u,
    0x3F647B6Du, 0x3F633F89u, 0x3F62055Bu, 0x3F60CCDFu, 0x3F5F9613u, 0x3F5E60F5u, 0x3F5D2D82u,
    0x3F5BFBB8u, 0x3F5ACB94u, 0x3F599D16u, 0x3F587039u, 0x3F5744FDu, 0x3F561B5Eu, 0x3F54F35Bu,
    0x3F53CCF1u, 0x3F52A81Eu, 0x3F5184DFu, 0x3F506334u, 0x3F4F4319u, 0x3F4E248Cu, 0x3F4D078Cu,
    0x3F4BEC15u, 0x3F4AD226u, 0x3F49B9BEu, 0x3F48A2D8u, 0x3F478D75u, 0x3F467991u, 0x3F45672Au,
    0x3F44563Fu, 0x3F4346CDu, 0x3F4238D2u, 0x3F412C4Du, 0x3F40213Bu, 0x3F3F179Au, 0x3F3E0F68u,
    0x3F3D08A4u, 0x3F3C034Au, 0x3F3AFF5Bu, 0x3F39FCD2u, 0x3F38FBAFu, 0x3F37FBF0u, 0x3F36FD92u,
    0x3F360094u, 0x3F3504F3u, 0x3F340AAFu, 0x3F3311C4u, 0x3F321A32u, 0x3F3123F6u, 0x3F302F0Eu,
    0x3F2F3B79u, 0x3F2E4934u, 0x3F2D583Fu, 0x3F2C6897u, 0x3F2B7A3Au, 0x3F2A8D26u, 0x3F29A15Bu,
    0x3F28B6D5u, 0x3F27CD94u, 0x3F26E595u, 0x3F25FED7u, 0x3F251958u, 0x3F243516u, 0x3F23520Fu,
    0x3F227043u, 0x3F218FAFu, 0x3F20B051u, 0x3F1FD228u, 0x3F1EF532u, 0x3F1E196Eu, 0x3F1D3EDAu,
    0x3F1C6573u, 0x3F1B8D3Au, 0x3F1AB62Bu, 0x3F19E046u, 0x3F190B88u, 0x3F1837F0u, 0x3F17657Du,
    0x3F16942Du, 0x3F15C3FFu, 0x3F14F4F0u, 0x3F1426FFu, 0x3F135A2Bu, 0x3F128E72u, 0x3F11C3D3u,
    0x3F10FA4Du, 0x3F1031DCu, 0x3F0F6A81u, 0x3F0EA43Au, 0x3F0DDF04u, 0x3F0D1ADFu, 0x3F0C57CAu,
    0x3F0B95C2u, 0x3F0AD4C6u, 0x3F0A14D5u, 0x3F0955EEu, 0x3F08980Fu, 0x3F07DB35u, 0x3F071F62u,
    0x3F066491u, 0x3F05AAC3u, 0x3F04F1F6u, 0x3F043A29u, 0x3F038359u, 0x3F02CD87u, 0x3F0218AFu,
    0x3F0164D2u, 0x3F00B1EDu,
};

constexpr float exp2_code_fraction(uint32_t k) { return float_from_bits(kExp2FractionBits[k]); }

// 2^(d/8) for d <= 0 a multiple of 1/16: the rescale factor of a maximum that moved by −d code
// units. Results below 2⁻¹²⁶ are 0 exactly (d < −1008, −Inf), d = 0 gives 1. NaN gives 0: it only
// arises as −Inf − (−Inf), before the first key.
constexpr float pow2_code(float d) {
  if (!(d >= -1008.0f)) return 0.0f;
  // To the nearest 1/16: exact for maxima below 2¹⁸ in magnitude; far below, maxima may be odd
  // multiples of 1/32.
  const uint32_t k = float_bits(-16.0f * d + kRoundMagic) - kRoundMagicBits;
  return float_from_bits(kExp2FractionBits[k & 127u] - ((k >> 7) << 23));
}

// Weight 2^(d/8) of a block whose reference lies d code units above O's (E2), with the low 11 bits
// cut: d is a multiple of 1/32, and none of the 256 mantissas that this leaves lies within 6 units
// of 2⁻²⁴ of a cut, so every exponential with a relative error up to 2⁻²² gives the same bits. A
// power of two is exact. Below 2⁻¹²⁶, and for NaN: 0.
inline constexpr uint32_t kWeightMask = 0xFFFFF800u;
inline float block_weight(float d) {
  if (!(d >= -1008.0f)) return 0.0f;
  const double exact = std::exp2(static_cast<double>(d) * 0.125);
  return float_from_bits(float_bits(static_cast<float>(exact)) & kWeightMask);
}

// O's reference follows a block's only where that lies more than this above it (E2), in code units:
// 16 octaves, which FP32 has to spare.
inline constexpr float kLazySlack = 128.0f;

// 2^x for x <= 16, the real exponential of the CPU chip model. Only mul, add, compares and integer
// operations, no branch: the same bits scalar and at any vector width. Relative error
// <= 2.0e-7 (tests/spec/arith_test.cpp), 2^0 = 1 exactly; 0 below 2⁻¹²⁶ and for −Inf; larger x
// saturates at 2¹⁶; NaN gives NaN.
constexpr float exp2_cpu(float x) {
  float clamped = select_float(x < 16.0f, x, 16.0f);
  clamped = select_float(x > -126.0f, clamped, -126.0f);
  const float shifted = clamped + kRoundMagic;
  const float f = clamped - (shifted - kRoundMagic);  // exact, in [−1/2, 1/2]
  // Minimax fit of (2^f − 1)/f with the weight of the relative error of 2^f.
  float q = 0x1.5bba14p-10f;
  q = q * f + 0x1.3cea88p-7f;
  q = q * f + 0x1.c6b752p-5f;
  q = q * f + 0x1.ebf9bcp-3f;
  q = q * f + 0x1.62e42ap-1f;
  const float p = q * f + 1.0f;  // f >= 0 gives p >= 1, so the exponent field stays >= 1 at −126
  const uint32_t scaled = float_bits(p) + ((float_bits(shifted) - kRoundMagicBits) << 23);
  const uint32_t result = select_bits(x >= -126.0f, scaled, 0u);
  return float_from_bits(select_bits(x == x, result, float_bits(x)));
}

// 2^(x/8), x = s·a + bias in code units, the real exponential of every GPU (E3; decision 0006):
// eight instructions that any chip has, the same bits on each, where ex2.approx has bits of its
// own.
//
//   v = sat(s·a/1024 + (bias/1024 + 118/128))   = (y + 118)/128, y = x/8 clamped to [−118, 10]
//   n = 128 v + (1.5·2²³ − 118)                 the nearest integer to y, in the low bits
//   f = 128 v − (n − (1.5·2²³ − 118))           y − n exactly, in [−1/2, 1/2]
//   2^y = P(f)·2ⁿ                               the exponent by an integer addition
//
// P is the minimax cubic of the relative error, 7.5·10⁻⁵, a thousandth of an E4M3 step; its errors
// at −1/2 and 1/2 are equal, so octaves join without a jump. v adds 2⁻²⁴·max(1,
// |bias|/1024)·128·ln 2. Far below the maximum the result is 2⁻¹¹⁸ and not 0: code 0, and absorbed
// by any row sum.
inline constexpr float kExp2CodeMagic = kRoundMagic - 118.0f;
inline constexpr float kExp2Cubic0 = 0x1.fff692p-1f, kExp2Cubic1 = 0x1.62f31ap-1f,
                       kExp2Cubic2 = 0x1.f0de1ap-3f, kExp2Cubic3 = 0x1.c3f760p-5f;

// From a score factor and a bias (exact unless subnormal), so that neither costs the score
// anything.
constexpr float exp2_code_factor(float a) { return mul(a, 0x1p-10f); }
inline float exp2_code_offset(float bias) { return fma_rn(bias, 0x1p-10f, 0.921875f); }

inline float exp2_code(float s, float factor, float offset) {
  const float v = fma_sat(s, factor, offset);
  const float n = fma_rn(v, 128.0f, kExp2CodeMagic);
  const float f = fma_rn(v, 128.0f, -sub(n, kExp2CodeMagic));
  float p = fma_rn(kExp2Cubic3, f, kExp2Cubic2);
  p = fma_rn(p, f, kExp2Cubic1);
  p = fma_rn(p, f, kExp2Cubic0);
  return float_from_bits(float_bits(p) + (float_bits(n) << 23));
}

// ---- sums ----------------------------------------------------------------------------------

// The reduction tree of the specification: s[i] ← s[2i] + s[2i+1] level by level, an odd last
// element passed up unchanged. (The same tree: split at the largest power of two below n.) n = 0
// gives 0. The forms below stream with a stack of log2(n) partial sums and give the same bits:
// after element i, as many pairs close as i has trailing one bits; what is left on the stack at
// the end is joined from the right.

template <class Get>  // float get(int64_t index)
constexpr float tree_sum(int64_t n, Get get) {
  if (n <= 0) return 0.0f;
  float stack[64] = {};
  int depth = 0;
  for (int64_t i = 0; i < n; ++i) {
    float sum = get(i);
    for (int64_t ones = i; (ones & 1) != 0; ones >>= 1) sum = stack[--depth] + sum;
    stack[depth++] = sum;
  }
  float sum = stack[--depth];
  while (depth > 0) sum = stack[--depth] + sum;
  return sum;
}

// `stride` in elements.
constexpr float tree_sum(const float* x, int64_t n, int64_t stride = 1) {
  return tree_sum(n, [x, stride](int64_t i) { return x[i * stride]; });
}

// Sums n rows of d floats, each column by the tree above. get_row(index, float* dst) writes d
// floats; out gets d floats. Memory: d·(⌊log2 n⌋ + 1) floats.
template <class GetRow>
void tree_sum_rows(GetRow get_row, int64_t n, int64_t d, float* out) {
  if (n <= 0 || d <= 0) {
    for (int64_t c = 0; c < d; ++c) out[c] = 0.0f;
    return;
  }
  const int64_t levels = std::bit_width(static_cast<uint64_t>(n)) + 1;
  std::vector<float> stack(static_cast<size_t>(levels * d));
  int64_t depth = 0;
  // Adds the top row into the one below it.
  const auto join = [&stack, &depth, d] {
    --depth;
    const float* right = stack.data() + depth * d;
    float* left = stack.data() + (depth - 1) * d;
    for (int64_t c = 0; c < d; ++c) left[c] = left[c] + right[c];
  };
  for (int64_t i = 0; i < n; ++i) {
    get_row(i, stack.data() + depth * d);
    ++depth;
    for (int64_t ones = i; (ones & 1) != 0; ones >>= 1) join();
  }
  while (depth > 1) join();
  std::memcpy(out, stack.data(), static_cast<size_t>(d) * sizeof(float));
}

}  // namespace vca::spec
