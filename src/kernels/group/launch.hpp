// SPDX-License-Identifier: Apache-2.0
// Grouping on a stream. No allocation on the device, no synchronisation, every launch checked; may
// be captured into a graph.
#pragma once

#include <cuda_runtime.h>

#include "kernels/group/workspace.hpp"

namespace vca::kernels::group {

// Writes the order to scratch + layout.out_order: token of every place, places as in
// prep::PrepParams::order. `from`: after prep has ranked the tokens, in stream order. In parts: as
// prep's pipeline.hpp does.
cudaError_t form_order(const Request& request, const Layout& layout, const prep::Params& from,
                       void* scratch, Part part, cudaStream_t stream);

// Makes `state` (StateLayout::bytes) that of a new generation.
cudaError_t init_state(void* state, uint64_t state_hash, const StateLayout& layout,
                       cudaStream_t stream);

// The same for one that has been initialised; nothing happens to another buffer, or to one that
// does not fit `bytes`.
cudaError_t reset_state(void* state, int64_t bytes, cudaStream_t stream);

}  // namespace vca::kernels::group
