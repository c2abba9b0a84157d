// SPDX-License-Identifier: Apache-2.0
// FP32 arithmetic on accumulator fragments (E4, E5): registers 4i, 4i + 1 belong to row r of the
// thread, 4i + 2, 4i + 3 to row r + 8; the last four of O hold R, the block sums of a group.
#pragma once

#include "kernels/sm90/softmax.cuh"

namespace vca::kernels::sm90 {

// O = O * alpha.
template <int kRegs>
VCA_DEVICE void scale_rows(float (&o)[kRegs], RowPair alpha) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    o[i] = ptx::mul_rn(o[i], alpha.r0);
    o[i + 1] = ptx::mul_rn(o[i + 1], alpha.r0);
    o[i + 2] = ptx::mul_rn(o[i + 2], alpha.r1);
    o[i + 3] = ptx::mul_rn(o[i + 3], alpha.r1);
  }
}

// Block-local form: O = fma(T, w, O), indicator columns included.
template <int kRegs, int kFrom>
VCA_DEVICE void add_weighted(float (&o)[kRegs], const float (&t)[kFrom], RowPair w) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    o[i] = ptx::fma_rn(t[i], w.r0, o[i]);
    o[i + 1] = ptx::fma_rn(t[i + 1], w.r0, o[i + 1]);
    o[i + 2] = ptx::fma_rn(t[i + 2], w.r1, o[i + 2]);
    o[i + 3] = ptx::fma_rn(t[i + 3], w.r1, o[i + 3]);
  }
}

// Plain forms: O = O + T.
template <int kRegs>
VCA_DEVICE void add_product(float (&o)[kRegs], const float (&t)[kRegs]) {
#pragma unroll
  for (int i = 0; i < kRegs; ++i) o[i] = ptx::add_rn(o[i], t[i]);
}

// Running forms, at the end of a group: A = fma(A, beta, O).
template <int kRegs, int kFrom>
VCA_DEVICE void flush(float (&a)[kRegs], RowPair beta, const float (&o)[kFrom]) {
#pragma unroll
  for (int i = 0; i < kRegs; i += 4) {
    a[i] = ptx::fma_rn(a[i], beta.r0, o[i]);
    a[i + 1] = ptx::fma_rn(a[i + 1], beta.r0, o[i + 1]);
    a[i + 2] = ptx::fma_rn(a[i + 2], beta.r1, o[i + 2]);
    a[i + 3] = ptx::fma_rn(a[i + 3], beta.r1, o[i + 3]);
  }
}

// The sum of FP32 exponentials of the group's block `slot` into R as if an indicator column had
// delivered it; every lane of the quad has it.
VCA_DEVICE void put_sum(float* r, uint32_t slot, RowPair sum, uint32_t quad_lane) {
  const bool mine = slot / 2u == quad_lane, odd = slot % 2u != 0u;
  r[0] = mine && !odd ? sum.r0 : r[0];
  r[1] = mine && odd ? sum.r0 : r[1];
  r[2] = mine && !odd ? sum.r1 : r[2];
  r[3] = mine && odd ? sum.r1 : r[3];
}

}  // namespace vca::kernels::sm90
