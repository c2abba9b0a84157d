// SPDX-License-Identifier: Apache-2.0
// The grouping kernels on a stream. Included by CUDA sources only.
#pragma once

#include <cuda_runtime.h>

#include "kernels/group/pipeline.hpp"

namespace vca::kernels::group {

template <class Kernel>
constexpr Overlap overlap_of() {
  if constexpr (requires { Kernel::kOverlap; }) return Kernel::kOverlap;
  return Overlap::none;
}

template <class Kernel, class... Args>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kMinBlocks)
    run_kernel(const __grid_constant__ Params params, int64_t items, Args... args) {
  // The next kernel may take its place on the processors, and waits there for the end of this one
  // (PTX ISA 9.7.13.13); every kernel here waits, so that each has all those before it behind it.
  // One that overlaps the last waits only at its end: the last has let it begin after its own wait,
  // so all kernels before both are over, and the next one has both behind it.
  constexpr Overlap overlap = overlap_of<Kernel>();
  if constexpr (overlap == Overlap::none) ptx::griddepcontrol_launch_dependents();
  if constexpr (overlap != Overlap::last) ptx::griddepcontrol_wait();
  if constexpr (overlap == Overlap::next) ptx::griddepcontrol_launch_dependents();
  Kernel::run(params, args..., items);
  if constexpr (overlap == Overlap::last) ptx::griddepcontrol_wait();
}

// A piece of host memory as a kernel argument.
struct Words {
  static constexpr int kWords = 4000;
  uint32_t word[kWords];
};
static __global__ void __launch_bounds__(256)
    store_words(const __grid_constant__ Words piece, uint32_t* to, int words) {
  for (int i = thread(); i < words; i += 256) to[i] = piece.word[i];
}

class StreamLauncher {
 public:
  explicit StreamLauncher(cudaStream_t stream) : stream_(stream) {
    int device = 0;
    status_ = cudaGetDevice(&device);
    if (status_ == cudaSuccess)
      status_ = cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount, device);
  }
  cudaError_t status() const { return status_; }

  void upload(void* to, const std::vector<uint8_t>& bytes) {
    auto* at = static_cast<uint32_t*>(to);
    const size_t words = bytes.size() / 4;
    for (size_t first = 0; first < words && status_ == cudaSuccess; first += Words::kWords) {
      Words piece;
      const size_t n = std::min<size_t>(words - first, Words::kWords);
      std::memcpy(piece.word, bytes.data() + first * 4, n * 4);
      store_words<<<1, 256, 0, stream_>>>(piece, at + first, static_cast<int>(n));
      status_ = cudaGetLastError();
    }
  }

  template <class Kernel, class... Args>
  void launch(Grid grid, const Params& params, int64_t items, Args... args) {
    if (status_ != cudaSuccess || items == 0) return;
    const auto shared = static_cast<int>(Kernel::smem_bytes(params));
    auto* const kernel = run_kernel<Kernel, Args...>;
    if (shared > 48 * 1024) {
      status_ = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
      if (status_ != cudaSuccess) return;
    }
    int64_t most = 0x7FFFFFFF;
    if (grid == Grid::resident) most = int64_t{processors_} * Kernel::kMinBlocks;
    if (overlap_of<Kernel>() == Overlap::last)  // beside one CTA a problem
      most = std::max<int64_t>(most - params.n_problems, processors_);
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = static_cast<unsigned>(std::min(items, most));
    config.blockDim = Kernel::kThreads;
    config.dynamicSmemBytes = static_cast<size_t>(shared);
    config.stream = stream_;
    config.attrs = &early;
    config.numAttrs = 1;
    status_ = cudaLaunchKernelEx(&config, kernel, params, items, args...);
  }

 private:
  cudaStream_t stream_;
  cudaError_t status_ = cudaSuccess;
  int processors_ = 1;
};

}  // namespace vca::kernels::group
