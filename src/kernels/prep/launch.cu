// SPDX-License-Identifier: Apache-2.0
#include "kernels/prep/launch.hpp"
#include "kernels/prep/pipeline.hpp"
#include "kernels/prep/stream_launcher.cuh"

namespace vca::kernels::prep {
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
