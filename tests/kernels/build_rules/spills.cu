// SPDX-License-Identifier: Apache-2.0
// A kernel that the build must refuse: 96 live values with room for 32 registers.
#include "ptx/ptx.hpp"

namespace {

__global__ void __launch_bounds__(1024, 2) spilling(float* at) {
  float x[96];
#pragma unroll
  for (int i = 0; i < 96; ++i) x[i] = at[i * 1024 + vca::ptx::thread_index()];
  vca::ptx::bar_sync(0, 1024);
#pragma unroll
  for (int i = 0; i < 96; ++i) at[i * 1024 + vca::ptx::thread_index()] = x[95 - i] * x[i];
}

}  // namespace

void launch_spilling(float* at) { spilling<<<1, 1024>>>(at); }
