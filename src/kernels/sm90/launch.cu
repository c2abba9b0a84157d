// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/kernel.cuh"
#include "kernels/sm90/launch.hpp"

namespace vca::kernels::sm90 {
namespace {

// Plain integers instead of one Config: the host stubs of nvcc 13.0 cannot name a class-type
// template argument.
template <int kD, int kForm>
__global__ void __launch_bounds__(Config::kThreads, 1)
    attention(const __grid_constant__ AttentionParams params) {
  attention_body<config_of(kD, static_cast<Form>(kForm))>(params);
}

template <Config C>
cudaError_t launch(const AttentionParams& params, cudaStream_t stream) {
  int device = 0, multiprocessors = 0;
  cudaError_t status = cudaGetDevice(&device);
  if (status != cudaSuccess) return status;
  status = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
  if (status != cudaSuccess) return status;
  const auto kernel = attention<C.d, static_cast<int>(C.form)>;
  status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                static_cast<int>(C.smem_bytes()));
  if (status != cudaSuccess) return status;
  const uint32_t grid = TileScheduler<C.cluster>::grid(params, multiprocessors);
  if (grid == 0) return cudaSuccess;
  if constexpr (C.cluster == 1) {
    kernel<<<grid, Config::kThreads, C.smem_bytes(), stream>>>(params);
    return cudaGetLastError();
  } else {
    cudaLaunchAttribute cluster{};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim = {C.cluster, 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = Config::kThreads;
    config.dynamicSmemBytes = C.smem_bytes();
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = 1;
    status = cudaLaunchKernelEx(&config, kernel, params);
    const cudaError_t last = cudaGetLastError();
    return status != cudaSuccess ? status : last;
  }
}

}  // namespace

cudaError_t launch_attention(const spec::Recipe& recipe, int d_pad, const AttentionParams& params,
                             cudaStream_t stream) {
  Form form;
  if (!find_form(recipe, form)) return cudaErrorNotSupported;
  return with_config(form, d_pad, [&]<Config C>() { return launch<C>(params, stream); });
}

}  // namespace vca::kernels::sm90
