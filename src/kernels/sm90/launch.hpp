// SPDX-License-Identifier: Apache-2.0
// Host side of the sm_90a kernels. No torch, no allocation, no synchronisation; every launch is
// checked.
#pragma once

#include <cuda_runtime.h>

#include "kernels/common/params.hpp"
#include "kernels/sm90/config.hpp"
#include "spec/recipe.hpp"

namespace vca::kernels::sm90 {

// True for the recipes that have a kernel here.
inline bool has_kernel(const spec::Recipe& recipe) {
  Form form;
  return find_form(recipe, form);
}

// Launches one persistent CTA (some forms: half as many clusters of two) per multiprocessor of the
// current device on `stream`. d_pad is 64 or 128.
cudaError_t launch_attention(const spec::Recipe& recipe, int d_pad, const AttentionParams& params,
                             cudaStream_t stream);

}  // namespace vca::kernels::sm90
