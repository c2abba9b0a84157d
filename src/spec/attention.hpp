// SPDX-License-Identifier: Apache-2.0
// L2 and L3: attention on prepared operands with the block order of a kernel family and the
// arithmetic of a chip.
//
// For one query row, blocks j = 0, 1, ... of 128 gathered keys (docs/numerics.md, section E):
//
//   scores   s_n = q . k_n              exact integers (INT8), or the chip's E4M3 or NVFP4 dot
//   factor   a_g = RN(query_unit * k_scale[j][g]),  g = (n mod 8) / 2
//   maximum  t = max_g RU(max_{n in g} s_n * a_g),  m_blk = ceil(16 t) / 16
//   m_run    max(m_run, m_blk) (running_max); m_blk where it exceeds m_run by more than 128, else
//            m_run (block_max)
//   codes    x_n = fma(s_n, a_g, RD(top - m)),  m = m_blk (block_max) or m_run (running_max)
//            ExpCast of INT8 dots, M = 1.5 * 2^23:
//            x_n = fma(M + s_n, a_g, RD(fma(-M, a_g, RD(top - m))))
//            c_n = F2IP(x_n)  or  cast(2^(x_n / 8)): exp2_cpu, on GPUs exp2_code
//   rescale  alpha = 2^((m_run_old - m_run_new)/8)  on O, R, l
//            w     = 2^((m_blk - m_run_new)/8)      on the block (block_max), cut: block_weight
//
//   block_max (vc8, vc8-hq)          T = PV(j) fresh;  O = O*alpha;  O = fma(T, w, O)
//                                    every 8 blocks:  O += R x mu
//   running_max + V-Smooth (turbo)   O = O*alpha;  O += PV(j) in the MMA accumulator
//                                    every 8 blocks:  A = fma(A, beta, O);  A += R x mu;  O = 0
//   running_max, no means (sage2)    T = PV(j) fresh;  O = O*alpha;  O = O + T;  l = l*alpha + r
//   running_max, NVFP4 V with means  O = O*alpha;  O = fma(r, mu, O);  O += PV(j);  l = l*alpha + r
//
// NVFP4 scores start from the scores of the query mean where the recipe takes it out (B13), and P
// is quantised along the keys in groups of 16 (E7).
//
// R[0..7] holds the block sums of a group of 8 blocks, rounded to tf32 (ties away) where it is
// consumed; l adds the same rounded values, quad by quad: l_q += R[2q] + R[2q+1], and l = (l_0 +
// l_1) + (l_2 + l_3) at the end.
#pragma once

#include <cstdint>

#include "spec/mma_model.hpp"
#include "spec/operands.hpp"
#include "spec/target.hpp"

namespace vca::spec {

// Outputs of `attention_rows`, row-major over the rows asked for; any may be null.
struct RowOutputs {
  int32_t* s = nullptr;      // [nrows][n_cols] integer scores, or FP32 bits
  float* m = nullptr;        // [nrows][n_blocks] reference of the block's codes
  float* m_run = nullptr;    // [nrows][n_blocks] reference of O after the block
  uint8_t* codes = nullptr;  // [nrows][n_cols]
  float* p = nullptr;    // [nrows][n_cols] value of P as multiplied with V (decoded code, or FP32)
  float* r = nullptr;    // [nrows][n_blocks] block sums before weighting
  float* o = nullptr;    // [nrows][d]
  float* l = nullptr;    // [nrows] final denominator
  float* lse = nullptr;  // [nrows] needs q.qk_offset when the recipe takes out the K mean
};

// Codes (and their block sums) to use in place of the recipe's own: [nrows][n_cols],
// [nrows][n_blocks].
struct Injected {
  const uint8_t* codes = nullptr;
  const float* sums = nullptr;  // null: decoded from the codes
};

// Rows [row0, row0 + nrows) relative to the sub-problem's q_begin.
void attention_rows(const Problem& p, const KvOperands& kv, const QOperands& q, Target target,
                    int64_t row0, int64_t nrows, const Injected* injected, const RowOutputs& out);

// The score factors of one row, [n_blocks][4]: a of every block and group.
void score_factors(const Problem& p, const KvOperands& kv, const QOperands& q, int64_t row,
                   float* a);

// Short texts for vca_attn_info: L2 and L3 of a target under a recipe.
const char* schedule_name(const Recipe& r, Target target);

// ---- FP64 on the stored inputs (exact.cpp) ----

// Query row (q_head, absolute row) against the valid keys of `sub`. Any output may be null. p:
// [n_valid] probabilities in the order of sub.segments' concatenation. Empty key set: o = 0, lse =
// -inf.
void exact_row(const Problem& p, const SubProblem& sub, int64_t q_head, int64_t row, double* o,
               double* lse, double* prob);

}  // namespace vca::spec
