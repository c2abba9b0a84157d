// SPDX-License-Identifier: Apache-2.0
// A kernel that the build must refuse: the accumulator is read and written between two products of
// one group, so ptxas waits after each of them.
#include "ptx/ptx.hpp"

namespace {

__global__ void __launch_bounds__(128) serialised(int32_t* out, vca::ptx::MatrixDesc desc) {
  using namespace vca::ptx;
  int32_t d[64] = {};
  wgmma_fence();
  wgmma_m64n128k32_s32_s8_s8(d, desc, desc, false);
#pragma unroll
  for (int i = 0; i < 64; ++i) d[i] = d[i] * 3 + i;
  wgmma_m64n128k32_s32_s8_s8(d, desc, desc, true);
  wgmma_commit_group();
  wgmma_wait_group<0>();
#pragma unroll
  for (int i = 0; i < 64; ++i) out[thread_index() * 64u + static_cast<uint32_t>(i)] = d[i];
}

}  // namespace

void launch_serialised(int32_t* out) { serialised<<<1, 128>>>(out, vca::ptx::MatrixDesc{}); }
