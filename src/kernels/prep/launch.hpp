// SPDX-License-Identifier: Apache-2.0
// Preprocessing on a stream. No allocation on the device, no synchronisation, every launch checked;
// may be captured into a graph: host descriptors travel by value.
#pragma once

#include <cuda_runtime.h>

#include "kernels/prep/workspace.hpp"

namespace vca::kernels::prep {

// Fills a workspace of workspace_bytes(request), 256-byte aligned. attention_params() then says
// what lies where. cudaErrorNotSupported: a recipe without a kernel here; cudaErrorInvalidValue: a
// misaligned workspace, or shapes outside the API's contract.
cudaError_t prepare(const PrepParams& request, void* workspace, cudaStream_t stream);

// O = 0 and LSE = -inf in the rows of sub-problems without a valid key. Needs only `subs` and the
// output fields, so it may run before or after attention. Skip it where never_empty().
cudaError_t zero_rows(const AttentionParams& params, cudaStream_t stream);

}  // namespace vca::kernels::prep
