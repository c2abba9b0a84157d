// SPDX-License-Identifier: Apache-2.0
#include "kernels/prep/launch.hpp"
#include "kernels/prep/pipeline.hpp"
#include "kernels/prep/stream_launcher.cuh"

namespace vca::kernels::prep {
namespace {

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
