// SPDX-License-Identifier: Apache-2.0
// Emulator bodies of cvt.hpp: the functions of the specification. That they are what the chip does
// is what tests/ptx shows when it is compiled for a device.
#pragma once

#include <algorithm>
#include <cmath>

#include "spec/arith.hpp"
#include "spec/codes.hpp"

namespace vca::ptx {

VCA_DEVICE float cvt_rn_f32_s32(int32_t x) { return static_cast<float>(x); }
VCA_DEVICE float mul_rp(float a, float b) { return spec::mul_ru(a, b); }
VCA_DEVICE float sub_rm(float a, float b) { return spec::sub_rd(a, b); }
VCA_DEVICE float mul_rn(float a, float b) { return spec::mul(a, b); }
VCA_DEVICE float add_rn(float a, float b) { return spec::add(a, b); }
VCA_DEVICE float fma_rn(float a, float b, float c) { return spec::fma_rn(a, b, c); }
VCA_DEVICE float fma_rm(float a, float b, float c) { return spec::fma_rd(a, b, c); }
VCA_DEVICE float fma_rn_sat(float a, float b, float c) { return spec::fma_sat(a, b, c); }
VCA_DEVICE float abs_f32(float x) { return std::fabs(x); }
// max.f32: the other operand where one is a NaN, and +0 is above -0.
VCA_DEVICE float max_f32(float a, float b) {
  if (spec::is_nan(a)) return spec::is_nan(b) ? spec::float_from_bits(0x7FFFFFFFu) : b;
  if (spec::is_nan(b)) return a;
  if (a == 0.0f && b == 0.0f) return a + b;  // -0 only where both are
  return a > b ? a : b;
}
VCA_DEVICE float min_f32(float a, float b) { return -max_f32(-a, -b); }
VCA_DEVICE uint32_t float_bits(float x) { return spec::float_bits(x); }
VCA_DEVICE float bits_float(uint32_t bits) { return spec::float_from_bits(bits); }
VCA_DEVICE float add_rp(float a, float b) { return spec::add_ru(a, b); }
VCA_DEVICE float rcp_rn(float x) { return 1.0f / x; }

// Correctly rounded, which the chip is not: on an H200 (driver 580.159.04) 11,718 of the 16,129
// rescale arguments differ by an ulp. A kernel that must be bit-equal looks its factors up instead,
// or cuts the bits that may differ (spec::block_weight).
VCA_DEVICE float ex2_approx_ftz(float x) {
  const auto y = static_cast<float>(std::exp2(static_cast<double>(x)));
  return y < 0x1p-126f ? 0.0f : y;
}
VCA_DEVICE uint32_t cvt_rna_tf32_f32(float x) { return spec::float_bits(spec::rna_tf32(x)); }
VCA_DEVICE int32_t max3_s32(int32_t a, int32_t b, int32_t c) { return std::max(a, std::max(b, c)); }

VCA_DEVICE uint32_t cvt_pack_sat_u8x4_f32(float x0, float x1, float x2, float x3) {
  return uint32_t{spec::f2ip_code(x0)} | uint32_t{spec::f2ip_code(x1)} << 8 |
         uint32_t{spec::f2ip_code(x2)} << 16 | uint32_t{spec::f2ip_code(x3)} << 24;
}
VCA_DEVICE uint32_t cvt_pack_sat_s8x4_f32(float x0, float x1, float x2, float x3) {
  const float x[4] = {x0, x1, x2, x3};
  uint32_t packed = 0;
  for (int i = 0; i < 4; ++i)
    packed |= uint32_t{static_cast<uint8_t>(spec::int8_encode(x[i]))} << (8 * i);
  return packed;
}
VCA_DEVICE uint32_t cvt_rn_satfinite_e4m3x4_f32(float x0, float x1, float x2, float x3) {
  return uint32_t{spec::e4m3_encode(x0)} | uint32_t{spec::e4m3_encode(x1)} << 8 |
         uint32_t{spec::e4m3_encode(x2)} << 16 | uint32_t{spec::e4m3_encode(x3)} << 24;
}
VCA_DEVICE float cvt_f32_f16(uint32_t half) {
  return spec::fp16_decode(static_cast<uint16_t>(half));
}
VCA_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t both = uint64_t{b} << 32 | a;
  uint32_t picked = 0;
  for (uint32_t i = 0; i < 4; ++i)
    picked |= static_cast<uint32_t>(both >> (8 * (selector >> (4 * i) & 7u)) & 0xFFu) << (8 * i);
  return picked;
}
VCA_DEVICE uint32_t cvt_rn_bf16x2_f32(float low, float high) {
  return uint32_t{spec::bf16_encode(low)} | uint32_t{spec::bf16_encode(high)} << 16;
}
VCA_DEVICE uint32_t cvt_rn_f16x2_f32(float low, float high) {
  return uint32_t{spec::fp16_encode(low)} | uint32_t{spec::fp16_encode(high)} << 16;
}

}  // namespace vca::ptx
