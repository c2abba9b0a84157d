// SPDX-License-Identifier: Apache-2.0
// Warpgroup matrix multiply-accumulate, only the shapes the kernels use (PTX ISA 9.7.15).
// Asynchronous: accumulators and A registers belong to the instruction from issue until
// wgmma_wait_group says so; the kernel marks that point with keep() so that the compiler does not
// move a use across it.
//
// Accumulator fragment of m64nN (9.7.15.5.1.1, figure "D fragment"): thread t of the warpgroup,
// warp w = t/32, lane l = t mod 32, holds d[4i + 0,1] = row 16w + l/4,     columns 8i + 2(l mod 4)
// + 0,1
//                        d[4i + 2,3] = row 16w + l/4 + 8, the same columns.
// A fragment of 8-bit types, m64k32: a[0] row 16w+l/4, k 4(l mod 4)+0..3; a[1] row +8; a[2], a[3]
// the same with k + 16. A fragment of tf32, m64k8: a[0] row 16w+l/4, k l mod 4; a[1] row +8; a[2],
// a[3] the same with k + 4.
#pragma once

#include "ptx/types.hpp"

namespace vca::ptx {

VCA_DEVICE void wgmma_fence();         // wgmma.fence.sync.aligned (9.7.15.7.1)
VCA_DEVICE void wgmma_commit_group();  // wgmma.commit_group.sync.aligned (9.7.15.7.2)
template <int kPending>
VCA_DEVICE void wgmma_wait_group();  // wgmma.wait_group.sync.aligned (9.7.15.7.3)

// The compiler must hold `x` in a register, unchanged, at this point.
VCA_DEVICE void keep(float& x);
VCA_DEVICE void keep(int32_t& x);
VCA_DEVICE void keep(uint32_t& x);

// D = A.B (+ D when accumulate). A from shared memory (SS) or registers (RS), B from shared memory,
// both K-major.
VCA_DEVICE void wgmma_m64n128k32_s32_s8_s8(int32_t (&d)[64], MatrixDesc a, MatrixDesc b,
                                           bool accumulate);
VCA_DEVICE void wgmma_m64n128k32_s32_s8_s8(int32_t (&d)[64], const uint32_t (&a)[4], MatrixDesc b,
                                           bool accumulate);
VCA_DEVICE void wgmma_m64n128k32_f32_e4m3_e4m3(float (&d)[64], MatrixDesc a, MatrixDesc b,
                                               bool accumulate);
VCA_DEVICE void wgmma_m64n136k32_f32_e4m3_e4m3(float (&d)[68], const uint32_t* a, MatrixDesc b,
                                               bool accumulate);
VCA_DEVICE void wgmma_m64n72k32_f32_e4m3_e4m3(float (&d)[36], const uint32_t* a, MatrixDesc b,
                                              bool accumulate);
// The accumulator may be the head of a longer array (block sums follow it).
VCA_DEVICE void wgmma_m64n128k32_f32_e4m3_e4m3(float* d, const uint32_t* a, MatrixDesc b,
                                               bool accumulate);
VCA_DEVICE void wgmma_m64n64k32_f32_e4m3_e4m3(float* d, const uint32_t* a, MatrixDesc b,
                                              bool accumulate);
// tf32: the same (the indicator columns follow it).
VCA_DEVICE void wgmma_m64n128k8_f32_tf32_tf32(float* d, const uint32_t* a, MatrixDesc b,
                                              bool accumulate);
VCA_DEVICE void wgmma_m64n64k8_f32_tf32_tf32(float* d, const uint32_t* a, MatrixDesc b,
                                             bool accumulate);

}  // namespace vca::ptx
