// SPDX-License-Identifier: Apache-2.0
// Number formats of the specification (layer L1): one encode and one decode per format. Every
// backend must give these bytes. Branch-free where a loop over many values is likely.
//
// Assumed of the host: IEEE binary32, round to nearest even (the default; nothing here changes
// or reads the floating-point environment), subnormals not flushed.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <limits>

namespace vca::spec {

static_assert(std::numeric_limits<float>::is_iec559 && sizeof(float) == 4);

constexpr uint32_t float_bits(float x) { return std::bit_cast<uint32_t>(x); }
constexpr float float_from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

constexpr bool is_nan(float x) { return (float_bits(x) & 0x7FFFFFFFu) > 0x7F800000u; }
constexpr bool is_finite(float x) { return (float_bits(x) & 0x7F800000u) != 0x7F800000u; }

// condition ? a : b on bits. An ordinary conditional lets GCC move the arithmetic of the unused
// side into a branch, and a loop with a branch around FP operations is not vectorised (they could
// trap).
constexpr uint32_t select_bits(bool condition, uint32_t a, uint32_t b) {
  const uint32_t mask = 0u - static_cast<uint32_t>(condition);
  return (a & mask) | (b & ~mask);
}
constexpr float select_float(bool condition, float a, float b) {
  return float_from_bits(select_bits(condition, float_bits(a), float_bits(b)));
}

// ---- integers ------------------------------------------------------------------------------

// 1.5·2²³: in [2²³, 2²⁴) the unit in the last place is 1, so the addition itself rounds to the
// nearest integer, ties to even, and the low mantissa bits are the result. No library call, one
// vector instruction.
inline constexpr float kRoundMagic = 12582912.0f;
inline constexpr uint32_t kRoundMagicBits = 0x4B400000u;
static_assert(float_bits(kRoundMagic) == kRoundMagicBits);

// Nearest integer, ties to even. Allowed: |x| <= 2²² (callers clamp first).
constexpr int32_t round_half_even_i32(float x) {
  return static_cast<int32_t>(float_bits(x + kRoundMagic) - kRoundMagicBits);
}

// INT8 code: nearest even, clamped to ±127 (−128 is never produced: the format is symmetric);
// NaN gives 0.
constexpr int8_t int8_encode(float x) {
  float y = select_float(x > 127.0f, 127.0f, x);
  y = select_float(x < -127.0f, -127.0f, y);
  y = select_float(x == x, y, 0.0f);
  return static_cast<int8_t>(round_half_even_i32(y));
}

constexpr float int8_decode(int8_t code) { return static_cast<float>(code); }

// Unsigned byte: nearest even, saturated to [0, 255]; NaN gives 0, as PTX cvt.rni.s32.f32 followed
// by cvt.pack.sat.u8.s32 does.
constexpr uint8_t u8_encode(float x) {
  float y = select_float(x > 255.0f, 255.0f, x);
  y = select_float(x > 0.0f, y, 0.0f);  // also catches NaN
  return static_cast<uint8_t>(round_half_even_i32(y));
}

// The ExpCast conversion: what F2IP.U8 does with one value. The instruction saturates at 255, but
// the E4M3 reading of the byte ends at 126 (0x7E = 448): scores are rounded up into the maximum
// and the bias is rounded down, so no caller ever gets more (docs/numerics.md E2).
constexpr uint8_t f2ip_code(float x) { return u8_encode(x); }

// ---- E4M3 ----------------------------------------------------------------------------------

inline constexpr float kE4m3Max = 448.0f;

// Nearest even, finite saturation to ±448 (±Inf too), NaN gives 0x7F or 0xFF (its sign is kept).
constexpr uint8_t e4m3_encode(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t sign = (bits >> 24) & 0x80u;
  const uint32_t abs_bits = bits & 0x7FFFFFFFu;
  // Normal codes (>= 2⁻⁶): keep 3 of 23 mantissa bits, rebias the exponent from 127 to 7.
  const uint32_t normal = ((abs_bits + 0x7FFFFu + ((abs_bits >> 20) & 1u)) >> 20) - (120u << 3);
  // Subnormal codes are multiples of 2⁻⁹, the unit in the last place of [2¹⁴, 2¹⁵).
  const uint32_t small_bits = select_bits(abs_bits < 0x3C800000u, abs_bits, 0x3C800000u);
  const uint32_t subnormal = float_bits(float_from_bits(small_bits) + 16384.0f) - 0x46800000u;
  uint32_t code = select_bits(abs_bits < 0x3C800000u, subnormal, normal);
  code = select_bits(abs_bits >= 0x43E00000u, 0x7Eu, code);  // >= 448: `normal` leaves the byte
  code = select_bits(abs_bits > 0x7F800000u, 0x7Fu, code);
  return static_cast<uint8_t>(sign | code);
}

namespace detail {

constexpr float power_of_two(int exponent) {  // [-149, 127]
  return exponent >= -126 ? float_from_bits(static_cast<uint32_t>(exponent + 127) << 23)
                          : float_from_bits(1u << (exponent + 149));
}

constexpr float e4m3_value(uint32_t code) {
  const uint32_t exponent = (code >> 3) & 15u;
  const uint32_t mantissa = code & 7u;
  const uint32_t sign = (code & 0x80u) << 24;
  if (exponent == 15u && mantissa == 7u) return float_from_bits(sign | 0x7FC00000u);
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) * power_of_two(-9)
                                        : static_cast<float>(8u + mantissa) *
                                              power_of_two(static_cast<int>(exponent) - 10);
  return float_from_bits(sign | float_bits(magnitude));
}

constexpr std::array<float, 256> make_e4m3_table() {
  std::array<float, 256> table{};
  for (uint32_t code = 0; code < 256; ++code) table[code] = e4m3_value(code);
  return table;
}

}  // namespace detail

inline constexpr std::array<float, 256> kE4m3Values = detail::make_e4m3_table();

// 0x7F and 0xFF decode to quiet NaN.
constexpr float e4m3_decode(uint8_t code) { return kE4m3Values[code]; }

// ---- UE8M0 ---------------------------------------------------------------------------------

// A power of two 2^(code − 127); no zero, no sign; 0xFF is NaN. Both encoders take |x|, as the
// conversion of cuda_fp8.h does; Inf saturates to 2¹²⁷.

// Smallest power of two >= |x|, at least 2⁻¹²⁷ (so 0 gives code 0).
constexpr uint8_t ue8m0_encode_up(float x) {
  const uint32_t abs_bits = float_bits(x) & 0x7FFFFFFFu;
  uint32_t code = (abs_bits >> 23) + ((abs_bits & 0x7FFFFFu) != 0 ? 1u : 0u);
  // Subnormals: 2⁻¹²⁷ has the bits 0x00400000; at most that is code 0, above it 2⁻¹²⁶ is code 1.
  code = abs_bits <= 0x00400000u ? 0u : code;
  code = code > 254u ? 254u : code;
  return static_cast<uint8_t>(abs_bits > 0x7F800000u ? 0xFFu : code);
}

// Nearest power of two in value; the tie 1.5·2ᵉ goes to the even code.
constexpr uint8_t ue8m0_encode_rn(float x) {
  const uint32_t abs_bits = float_bits(x) & 0x7FFFFFFFu;
  const uint32_t exponent = abs_bits >> 23;
  const uint32_t mantissa = abs_bits & 0x7FFFFFu;
  uint32_t code = exponent + (mantissa + (exponent & 1u) > 0x400000u ? 1u : 0u);
  // Between 2⁻¹²⁷ (code 0) and 2⁻¹²⁶ (code 1) the tie 1.5·2⁻¹²⁷ has the bits 0x00600000.
  code = abs_bits < 0x00800000u ? (abs_bits > 0x00600000u ? 1u : 0u) : code;
  code = code > 254u ? 254u : code;
  return static_cast<uint8_t>(abs_bits > 0x7F800000u ? 0xFFu : code);
}

constexpr float ue8m0_decode(uint8_t code) {
  if (code == 0xFFu) return float_from_bits(0x7FC00000u);
  return detail::power_of_two(static_cast<int>(code) - 127);
}

// ---- BF16 ----------------------------------------------------------------------------------

// Nearest even; overflow to Inf as IEEE; NaN keeps sign and upper payload and becomes quiet.
constexpr uint16_t bf16_encode(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x0040u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

constexpr float bf16_decode(uint16_t code) {
  return float_from_bits(static_cast<uint32_t>(code) << 16);
}

// RN to BF16, kept as FP32.
constexpr float bf16_round(float x) { return bf16_decode(bf16_encode(x)); }

// ---- FP16 ----------------------------------------------------------------------------------

// Nearest even with subnormals; overflow (>= 65520) to Inf as IEEE; NaN keeps sign and upper
// payload and becomes quiet.
constexpr uint16_t fp16_encode(float x) {
  const uint32_t bits = float_bits(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t abs_bits = bits & 0x7FFFFFFFu;
  const uint32_t normal = ((abs_bits + 0xFFFu + ((abs_bits >> 13) & 1u)) >> 13) - (112u << 10);
  // Subnormal codes are multiples of 2⁻²⁴, the unit in the last place of [2⁻¹, 1).
  const uint32_t small_bits = select_bits(abs_bits < 0x38800000u, abs_bits, 0x38800000u);
  const uint32_t subnormal = float_bits(float_from_bits(small_bits) + 0.5f) - 0x3F000000u;
  uint32_t code = select_bits(abs_bits < 0x38800000u, subnormal, normal);
  code = select_bits(abs_bits >= 0x477FF000u, 0x7C00u, code);
  code = select_bits(abs_bits > 0x7F800000u, 0x7E00u | ((abs_bits >> 13) & 0x3FFu), code);
  return static_cast<uint16_t>(sign | code);
}

// As fp16_encode, but finite overflow and Inf give ±65504: for outputs where Inf would spread.
constexpr uint16_t fp16_encode_sat(float x) {
  const uint16_t code = fp16_encode(x);
  return (code & 0x7FFFu) == 0x7C00u ? static_cast<uint16_t>(code - 1u) : code;
}

constexpr float fp16_decode(uint16_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x8000u) << 16;
  const uint32_t exponent = (code >> 10) & 31u;
  const uint32_t mantissa = code & 0x3FFu;
  // Subnormals: mantissa · 2⁻²⁴, exact in FP32.
  const uint32_t subnormal = float_bits(static_cast<float>(mantissa) * detail::power_of_two(-24));
  const uint32_t normal = ((exponent + 112u) << 23) | (mantissa << 13);
  const uint32_t special = 0x7F800000u | (mantissa << 13);
  const uint32_t magnitude =
      select_bits(exponent == 0, subnormal, select_bits(exponent == 31u, special, normal));
  return float_from_bits(sign | magnitude);
}

}  // namespace vca::spec
