// SPDX-License-Identifier: Apache-2.0
#include "kernels/prep/launch.hpp"
#include "kernels/prep/pipeline.hpp"

namespace vca::kernels::prep {
namespace {

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

// A piece of host memory as a kernel argument. Far below the 32,764 bytes of arguments that sm_70
// and newer allow.
struct Piece {
  static constexpr int kWords = 4000;
  uint32_t word[kWords];
};
__global__ void __launch_bounds__(256)
    store_piece(const __grid_constant__ Piece piece, uint32_t* to, int words) {
  for (uint32_t i = ptx::thread_index(); i < static_cast<uint32_t>(words); i += 256)
    to[i] = piece.word[i];
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
      store_piece<<<1, 256, 0, stream_>>>(piece, at + first, static_cast<int>(n));
      status_ = cudaGetLastError();
    }
  }

  template <class Kernel>
  void launch(const typename Kernel::Params& params, int64_t blocks) {
    if (status_ != cudaSuccess || blocks == 0) return;
    constexpr auto kSharedBytes = static_cast<int>(sizeof(typename Kernel::Shared));
    if constexpr (kSharedBytes > 48 * 1024) {
      status_ = cudaFuncSetAttribute(run<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     kSharedBytes);
      if (status_ != cudaSuccess) return;
    }
    const auto grid = static_cast<unsigned>(std::min<int64_t>(blocks, 0x7FFFFFFF));
    run<Kernel><<<grid, Kernel::kThreads, kSharedBytes, stream_>>>(params, blocks);
    status_ = cudaGetLastError();
  }

 private:
  cudaStream_t stream_;
  cudaError_t status_ = cudaSuccess;
};

bool in_contract(const PrepParams& r, const void* workspace) {
  const auto& q = r.q.shape;
  const auto& k = r.k.shape;
  // 256: what cudaMalloc promises. Bulk copies read from 16-byte aligned addresses; only shared
  // memory needs 1 KiB.
  return reinterpret_cast<uintptr_t>(workspace) % 256 == 0 && q[3] >= 1 &&
         q[3] <= spec::kMaxHeadDim && k[3] == q[3] && r.v.shape == k && q[0] == k[0] &&
         q[1] <= 0x7FFFFFFF && (k[1] == 0 ? q[1] == 0 : q[1] % k[1] == 0) && q[2] <= 0x7FFFFFFF &&
         k[2] <= 0x7FFFFFFF && r.subs.size() <= 0x7FFFFFFF;
}

}  // namespace

cudaError_t prepare(const PrepParams& request, void* workspace, cudaStream_t stream) {
  if (request.recipe == nullptr || !supports(*request.recipe)) return cudaErrorNotSupported;
  if (!in_contract(request, workspace)) return cudaErrorInvalidValue;
  StreamLauncher launcher(stream);
  run_passes(request, workspace, launcher);
  return launcher.status();
}

cudaError_t zero_rows(const AttentionParams& params, cudaStream_t stream) {
  StreamLauncher launcher(stream);
  launcher.launch<ZeroRows>(params, int64_t{params.n_subs} * params.h_q * params.max_q_tiles);
  return launcher.status();
}

}  // namespace vca::kernels::prep
