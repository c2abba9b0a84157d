// SPDX-License-Identifier: Apache-2.0
// Conversions and explicit FP32 arithmetic. The same names and results as spec/arith.hpp and
// spec/codes.hpp; tests/ptx compares them on the emulator and on a device.
#pragma once

#include "ptx/types.hpp"

namespace vca::ptx {

VCA_DEVICE float cvt_rn_f32_s32(int32_t x);          // cvt.rn.f32.s32 (PTX ISA 9.7.9.21)
VCA_DEVICE float mul_rp(float a, float b);           // mul.rp.f32: rounded up (9.7.3.5)
VCA_DEVICE float sub_rm(float a, float b);           // sub.rm.f32: rounded down (9.7.3.4)
VCA_DEVICE float add_rp(float a, float b);           // add.rp.f32: rounded up (9.7.3.3)
VCA_DEVICE float mul_rn(float a, float b);           // mul.rn.f32 (9.7.3.5)
VCA_DEVICE float add_rn(float a, float b);           // add.rn.f32 (9.7.3.3)
VCA_DEVICE float fma_rn(float a, float b, float c);  // fma.rn.f32 (9.7.3.6)
VCA_DEVICE float fma_rm(float a, float b, float c);  // fma.rm.f32: rounded down (9.7.3.6)
// fma.rn.sat.f32 (9.7.3.6): clamped to [0, 1], NaN becomes +0.
VCA_DEVICE float fma_rn_sat(float a, float b, float c);
VCA_DEVICE float abs_f32(float x);           // abs.f32 (9.7.3.9)
VCA_DEVICE float max_f32(float a, float b);  // max.f32 (9.7.3.12): the other one where one is a NaN
VCA_DEVICE float min_f32(float a, float b);  // min.f32 (9.7.3.11): the same
VCA_DEVICE uint32_t float_bits(float x);     // mov.b32 (9.7.9.3)
VCA_DEVICE float bits_float(uint32_t bits);
VCA_DEVICE float rcp_rn(float x);  // rcp.rn.f32 (9.7.3.13)
// ex2.approx.ftz.f32 (9.7.3.21): relative error 2^-22 at most, the bits are the chip's. Results
// below 2^-126 are +0.
VCA_DEVICE float ex2_approx_ftz(float x);
VCA_DEVICE uint32_t cvt_rna_tf32_f32(float x);  // cvt.rna.tf32.f32 (9.7.9.21)
// max.s32 twice (9.7.1.13); ptxas fuses them into one VIMNMX3.
VCA_DEVICE int32_t max3_s32(int32_t a, int32_t b, int32_t c);

// Four codes: cvt.rni.s32.f32 each, then cvt.pack.sat.u8.s32.b32 twice (9.7.9.22); x0 in the lowest
// byte. ptxas fuses them into two F2IP.
VCA_DEVICE uint32_t cvt_pack_sat_u8x4_f32(float x0, float x1, float x2, float x3);
// Four INT8 codes of values within [-127.5, 127.5] or NaN (code 0): cvt.rni.s32.f32 each, then
// cvt.pack.sat.s8.s32.b32 twice (9.7.9.22); x0 in the lowest byte.
VCA_DEVICE uint32_t cvt_pack_sat_s8x4_f32(float x0, float x1, float x2, float x3);
// Four E4M3 codes: cvt.rn.satfinite.e4m3x2.f32 twice (9.7.9.21); x0 in the lowest byte.
VCA_DEVICE uint32_t cvt_rn_satfinite_e4m3x4_f32(float x0, float x1, float x2, float x3);
VCA_DEVICE float cvt_f32_f16(uint32_t half);  // cvt.f32.f16 (9.7.9.21) of the low 16 bits: exact
// Bytes of {b, a} (byte 0 is a's lowest), picked by the four low nibbles of `selector`
// (prmt.b32, 9.7.9.7).
VCA_DEVICE uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector);
// cvt.rn.bf16x2.f32, cvt.rn.f16x2.f32 (9.7.9.21), `low` in the low half.
VCA_DEVICE uint32_t cvt_rn_bf16x2_f32(float low, float high);
VCA_DEVICE uint32_t cvt_rn_f16x2_f32(float low, float high);

}  // namespace vca::ptx
