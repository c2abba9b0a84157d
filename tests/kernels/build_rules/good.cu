// SPDX-License-Identifier: Apache-2.0
// The counterpart of its neighbours: the same instructions, nothing to refuse.
#include "ptx/ptx.hpp"

namespace {

__global__ void __launch_bounds__(128) overlapped(int32_t* out, vca::ptx::MatrixDesc desc) {
  using namespace vca::ptx;
  int32_t d[64] = {};
  wgmma_fence();
  wgmma_m64n128k32_s32_s8_s8(d, desc, desc, false);
  wgmma_m64n128k32_s32_s8_s8(d, desc, desc, true);
  wgmma_commit_group();
  wgmma_wait_group<0>();
#pragma unroll
  for (int i = 0; i < 64; ++i) {
    keep(d[i]);
    out[thread_index() * 64u + static_cast<uint32_t>(i)] = d[i];
  }
}

}  // namespace

void launch_overlapped(int32_t* out) { overlapped<<<1, 128>>>(out, vca::ptx::MatrixDesc{}); }
