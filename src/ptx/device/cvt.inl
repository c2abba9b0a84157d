// SPDX-License-Identifier: Apache-2.0
// Device bodies of cvt.hpp.
#pragma once

namespace vca::ptx {

VCA_DEVICE float cvt_rn_f32_s32(int32_t x) { return __int2float_rn(x); }
VCA_DEVICE float mul_rp(float a, float b) { return __fmul_ru(a, b); }
VCA_DEVICE float sub_rm(float a, float b) { return __fsub_rd(a, b); }
VCA_DEVICE float add_rp(float a, float b) { return __fadd_ru(a, b); }
VCA_DEVICE float mul_rn(float a, float b) { return __fmul_rn(a, b); }
VCA_DEVICE float add_rn(float a, float b) { return __fadd_rn(a, b); }
VCA_DEVICE float fma_rn(float a, float b, float c) { return __fmaf_rn(a, b, c); }
VCA_DEVICE float fma_rm(float a, float b, float c) { return __fmaf_rd(a, b, c); }
VCA_DEVICE float fma_rn_sat(float a, float b, float c) {
  float y;
  asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
  return y;
}
VCA_DEVICE float abs_f32(float x) { return fabsf(x); }
VCA_DEVICE float max_f32(float a, float b) { return fmaxf(a, b); }
VCA_DEVICE float min_f32(float a, float b) { return fminf(a, b); }
VCA_DEVICE uint32_t float_bits(float x) { return __float_as_uint(x); }
VCA_DEVICE float bits_float(uint32_t bits) { return __uint_as_float(bits); }
VCA_DEVICE float rcp_rn(float x) { return __frcp_rn(x); }
VCA_DEVICE float ex2_approx_ftz(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
VCA_DEVICE uint32_t cvt_rna_tf32_f32(float x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
  return y;
}
VCA_DEVICE int32_t max3_s32(int32_t a, int32_t b, int32_t c) { return __vimax3_s32(a, b, c); }

VCA_DEVICE uint32_t cvt_pack_sat_u8x4_f32(float x0, float x1, float x2, float x3) {
  uint32_t packed;
  asm("{\n"
      ".reg .s32 i0, i1, i2, i3;\n"
      ".reg .b32 high;\n"
      "cvt.rni.s32.f32 i0, %1;\n"
      "cvt.rni.s32.f32 i1, %2;\n"
      "cvt.rni.s32.f32 i2, %3;\n"
      "cvt.rni.s32.f32 i3, %4;\n"
      "cvt.pack.sat.u8.s32.b32 high, i3, i2, 0;\n"
      "cvt.pack.sat.u8.s32.b32 %0, i1, i0, high;\n"
      "}"
      : "=r"(packed)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return packed;
}
VCA_DEVICE uint32_t cvt_pack_sat_s8x4_f32(float x0, float x1, float x2, float x3) {
  uint32_t packed;
  asm("{\n"
      ".reg .s32 i0, i1, i2, i3;\n"
      ".reg .b32 high;\n"
      "cvt.rni.s32.f32 i0, %1;\n"
      "cvt.rni.s32.f32 i1, %2;\n"
      "cvt.rni.s32.f32 i2, %3;\n"
      "cvt.rni.s32.f32 i3, %4;\n"
      "cvt.pack.sat.s8.s32.b32 high, i3, i2, 0;\n"
      "cvt.pack.sat.s8.s32.b32 %0, i1, i0, high;\n"
      "}"
      : "=r"(packed)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return packed;
}
VCA_DEVICE uint32_t cvt_rn_satfinite_e4m3x4_f32(float x0, float x1, float x2, float x3) {
  uint32_t packed;
  asm("{\n"
      ".reg .b16 low, high;\n"
      "cvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\n"
      "cvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n"
      "}"
      : "=r"(packed)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return packed;
}
VCA_DEVICE float cvt_f32_f16(uint32_t half) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(static_cast<uint16_t>(half)));
  return x;
}
VCA_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}
VCA_DEVICE uint32_t cvt_rn_bf16x2_f32(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
VCA_DEVICE uint32_t cvt_rn_f16x2_f32(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

}  // namespace vca::ptx
