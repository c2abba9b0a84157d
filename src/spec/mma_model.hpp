// SPDX-License-Identifier: Apache-2.0
// Layer L3: how a chip's matrix instruction rounds. Tensor cores are not IEEE, and the same codes
// give different bits on different chips by design; a kernel is right when it equals the model of
// its chip.
//
// Facts for the fused models: Xie et al., MMA-Sim (arXiv 2511.10909, microsoft/MMA-Sim), which
// states agreement with silicon for sm_70 … sm_120; for Hopper FP8 also Hawkeye (arXiv 2603.20421),
// the same rule from an independent study. They agree on:
//  - the terms of one group are all its products and the incoming accumulator;
//  - a term's exponent is the sum of the operand exponents, so a product's significand lies in
//    [1, 4) and is not normalised; a subnormal operand has the smallest normal exponent of its
//    format and a significand below 1;
//  - every term is aligned to the largest exponent of the group and truncated towards zero to F
//    fractional bits (no guard bit); zero products do not take part, but a zero accumulator has
//    exponent −126;
//  - the truncated terms are summed exactly; the sum is normalised, truncated towards zero to
//    `out_mantissa_bits` (subnormal results to the same absolute grid as the smallest normal).
// So the accumulator is truncated at every group, even when all products are zero.
// Assumed, not stated by either source for every chip: a sum beyond FLT_MAX gives Inf; a NaN
// operand, Inf·0 or Inf − Inf gives the NaN 0x7FFFFFFF; other Inf give Inf.
#pragma once

#include <cstdint>

#include "spec/target.hpp"

namespace vca::spec {

enum class MmaKind : uint8_t {
  exact_int32,  // 8-bit integers, exact int32 sums (wrapping, which no caller reaches)
  serial_f32,   // acc ← RN(acc + RN(a·b)), k ascending: the CPU backend
  fused_trunc,  // aligned, truncated, summed: see above
};

// The roles an MMA has in the kernels, each with one operand format.
enum class Instr : uint8_t { qk_int8, qk_e4m3, pv_e4m3, pv_int8, mean_tf32, bf16 };

inline constexpr Instr kAllInstrs[] = {Instr::qk_int8, Instr::qk_e4m3,   Instr::pv_e4m3,
                                       Instr::pv_int8, Instr::mean_tf32, Instr::bf16};

struct MmaModel {
  MmaKind kind;
  int frac_bits;          // F; fused_trunc only
  int out_mantissa_bits;  // fused_trunc only: 13 (e8m13) or 23 (FP32, round to zero)
  int k_step;             // k of one instruction: 32 for 8-bit formats, 16 for BF16, 8 for tf32
  int k_split;            // equal groups that one instruction is summed in, in k order
  int min_exponent;       // smallest normal exponent of the operand format
  bool measured;          // by this project, on this chip
  const char* evidence;   // "measured", "published" or "assumed"
};

// Defined for every pair, also where a chip lacks the instruction and a kernel would use another
// (INT8 on sm103): integer results do not depend on that.
MmaModel mma_model(Target target, Instr instr);

// One output row of D = C + A·B: c[0, n) += Σ_k a[k]·b[k·ldb + 0 … n). serial_f32 and fused_trunc.
// a and b hold values exactly representable in the operand format; k need not be a multiple of
// k_step (as if padded with zeros). `ldb` in elements. c must not overlap a or b.
void mma_accumulate_f32(const MmaModel& model, const float* a, const float* b, int64_t ldb,
                        int64_t k, int64_t n, float* c);

// The whole product, row by row: C is m × n (row stride ldc), A is m × k, B is k × n.
void mma_dot_f32(const MmaModel& model, const float* a, int64_t lda, const float* b, int64_t ldb,
                 int64_t m, int64_t n, int64_t k, float* c, int64_t ldc);

// exact_int32: the same row in integers, signed (INT8 codes) or unsigned (u8 P codes) left
// operand. Exact while |sum| < 2³¹: k up to 66,000 at 255·127.
void mma_accumulate_i32(const int8_t* a, const int8_t* b, int64_t ldb, int64_t k, int64_t n,
                        int32_t* c);
void mma_accumulate_i32(const uint8_t* a, const int8_t* b, int64_t ldb, int64_t k, int64_t n,
                        int32_t* c);

}  // namespace vca::spec
