// SPDX-License-Identifier: Apache-2.0
// Layer L3 for NVFP4: how a block-scaled matrix instruction (mma.sync kind::mxf4nvf4 4X m16n8k64 on
// sm_120, tcgen05 kind::mxf4nvf4 on sm_100 and sm_103) rounds.
//
// Published (MMA-Sim, as in mma_model.hpp), not measured by this project: per k64, the four exact
// dot products of 16 elements, each times both micro-scales, and the accumulator are the terms. A
// group's term has the exponent of its two scales alone (a zero term has -126); every term is
// aligned to the largest exponent and truncated towards zero to 35 fractional bits; the sum is
// truncated towards zero to FP32.
#pragma once

#include <cstdint>

#include "spec/target.hpp"

namespace vca::spec {

inline constexpr int kFp4FracBits = 35;
inline constexpr int kFp4Step = 64;  // k of one instruction

// Which targets multiply NVFP4 at all: the CPU (decoded to FP32) and Blackwell.
constexpr bool has_nvfp4(Target t) {
  return t == Target::cpu || t == Target::sm100 || t == Target::sm103 || t == Target::sm120;
}

// c[0, n) += sum over k of a[k] a_scale[k / 16] b[k * ldb + j] b_scale[k / 16 * ldb + j], as a
// Blackwell chip rounds. k is a multiple of 16 (a last step shorter than 64 is as if padded with
// zeros); elements are E2M1 values, scales UE4M3 values.
void mma_accumulate_nvfp4(const float* a, const float* a_scale, const float* b,
                          const float* b_scale, int64_t ldb, int64_t k, int64_t n, float* c);

}  // namespace vca::spec
