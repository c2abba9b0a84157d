// SPDX-License-Identifier: Apache-2.0
// How the kernels that hold rows in registers are launched.
#pragma once

#include "kernels/prep/rows.hpp"
#include "kernels/prep/stream_launcher.cuh"

namespace vca::kernels::prep {

template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks)
    run_rows(const __grid_constant__ typename Kernel::Params params) {
  Kernel::run(params, ptx::cta_index());
}

template <class Kernel>
cudaError_t launch_rows(const typename Kernel::Params& params, int64_t blocks,
                        cudaStream_t stream) {
  static_assert(Kernel::kSharedBytes <= 48 * 1024);
  if (blocks > 0x7FFFFFFF) return cudaErrorInvalidValue;  // 2^31 tiles: 35 TB of operands
  run_rows<Kernel>
      <<<static_cast<unsigned>(blocks), Kernel::kThreads, Kernel::kSharedBytes, stream>>>(params);
  return cudaGetLastError();
}

// For both padded head_dims; `...` is the source and, where the kernel has one, the turn.
#define VCA_ROW_KERNEL(Kernel, source, ...)                                     \
  template cudaError_t launch_rows<Kernel<Source::source, 64, ##__VA_ARGS__>>(  \
      const Params&, int64_t, cudaStream_t);                                    \
  template cudaError_t launch_rows<Kernel<Source::source, 128, ##__VA_ARGS__>>( \
      const Params&, int64_t, cudaStream_t);
#define VCA_ROW_KERNELS(Kernel) \
  VCA_ROW_KERNEL(Kernel, bf16)  \
  VCA_ROW_KERNEL(Kernel, fp16)  \
  VCA_ROW_KERNEL(Kernel, fp32)  \
  VCA_ROW_KERNEL(Kernel, any)
#define VCA_TURNING_ROW_KERNELS(Kernel)    \
  VCA_ROW_KERNEL(Kernel, bf16, Turn::none) \
  VCA_ROW_KERNEL(Kernel, bf16, Turn::grid) \
  VCA_ROW_KERNEL(Kernel, bf16, Turn::any)  \
  VCA_ROW_KERNEL(Kernel, fp16, Turn::none) \
  VCA_ROW_KERNEL(Kernel, fp16, Turn::any)  \
  VCA_ROW_KERNEL(Kernel, fp32, Turn::none) \
  VCA_ROW_KERNEL(Kernel, fp32, Turn::any)  \
  VCA_ROW_KERNEL(Kernel, any, Turn::none)

}  // namespace vca::kernels::prep
