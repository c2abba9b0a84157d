// SPDX-License-Identifier: Apache-2.0
// The library's own call on the tensors of a dump, through the C ABI.
#pragma once

#include <array>

#include "tools/vcattn/compare_run.hpp"
#include "vca/vca.h"

namespace vca::tools {

// A descriptor of q, k and v; the output is left to the caller.
vca_attn_desc library_desc(const CompareInput& in, const RecipeChoice& choice,
                           const std::array<int64_t, 3>& grid, int threads);

// Wall clock of vca_attn_run, workspace allocated before. UserError when the library refuses.
double time_library_call(const CompareInput& in, const RecipeChoice& choice,
                         const std::array<int64_t, 3>& grid, int threads);

}  // namespace vca::tools
