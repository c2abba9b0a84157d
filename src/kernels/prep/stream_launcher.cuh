// SPDX-License-Identifier: Apache-2.0
// Runs passes on a stream: what launch.cu and the benchmark of the passes share.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/group/launch.hpp"
#include "kernels/prep/params.hpp"

namespace vca::kernels::prep {

// Phases of one block after another: block indices have 64 bits, a grid has 31.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads)
    run(const __grid_constant__ typename Kernel::Params params, int64_t blocks) {
  extern __shared__ __align__(16) unsigned char prep_shared[];
  auto& shared = *reinterpret_cast<typename Kernel::Shared*>(prep_shared);
  const auto thread = static_cast<int>(ptx::thread_index());
  for (int64_t block = ptx::cta_index(); block < blocks; block += ptx::grid_size()) {
#pragma unroll
    for (int phase = 0; phase < Kernel::kPhases; ++phase) {
      Kernel::phase(phase, params, shared, block, thread);
      ptx::bar_sync(0, Kernel::kThreads);
    }
  }
}

// Of kernels that hold rows in registers; defined in row_kernels.cuh, instantiated by queries.cu,
// keys.cu and values.cu, so that they compile side by side.
template <class Kernel>
cudaError_t launch_rows(const typename Kernel::Params& params, int64_t blocks, cudaStream_t stream);

// A piece of host memory as a kernel argument; sm_70 and newer allow 32,764 bytes of arguments.
struct Piece {
  static constexpr int kWords = 8000;
  uint32_t word[kWords];
};
static __global__ void __launch_bounds__(256)
    store_piece(const __grid_constant__ Piece piece, uint32_t* to, uint32_t words) {
  const uint32_t i = ptx::cta_index() * 256 + ptx::thread_index();
  if (i < words) to[i] = piece.word[i];
}

class StreamLauncher {
 public:
  explicit StreamLauncher(cudaStream_t stream) : stream_(stream) {}
  cudaError_t status() const { return status_; }

  void upload(void* to, const std::vector<uint8_t>& bytes) {
    auto* at = static_cast<uint32_t*>(to);
    const size_t words = bytes.size() / 4;  // the image is a multiple of 16 bytes
    for (size_t first = 0; first < words && status_ == cudaSuccess; first += Piece::kWords) {
      Piece piece;
      const size_t n = std::min<size_t>(words - first, Piece::kWords);
      std::memcpy(piece.word, bytes.data() + first * 4, n * 4);
      const auto blocks = static_cast<unsigned>(ceil_div(static_cast<int64_t>(n), 256));
      store_piece<<<blocks, 256, 0, stream_>>>(piece, at + first, static_cast<uint32_t>(n));
      status_ = cudaGetLastError();
    }
  }

  template <class Kernel>
  void launch(const typename Kernel::Params& params, int64_t blocks) {
    if (status_ != cudaSuccess || blocks == 0) return;
    if constexpr (requires { Kernel::kSharedBytes; })
      status_ = launch_rows<Kernel>(params, blocks, stream_);
    else
      launch_phases<Kernel>(params, blocks);
  }

  void form_order(const group::Request& request, const group::Layout& layout, const Params& from,
                  void* scratch, group::Part part) {
    if (status_ == cudaSuccess)
      status_ = group::form_order(request, layout, from, scratch, part, stream_);
  }

 private:
  template <class Kernel>
  void launch_phases(const typename Kernel::Params& params, int64_t blocks) {
    constexpr auto kSharedBytes = static_cast<int>(sizeof(typename Kernel::Shared));
    static_assert(kSharedBytes <= 48 * 1024);
    const auto grid = static_cast<unsigned>(std::min<int64_t>(blocks, 0x7FFFFFFF));
    run<Kernel><<<grid, Kernel::kThreads, kSharedBytes, stream_>>>(params, blocks);
    status_ = cudaGetLastError();
  }

  cudaStream_t stream_;
  cudaError_t status_ = cudaSuccess;
};

}  // namespace vca::kernels::prep
