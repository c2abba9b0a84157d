// SPDX-License-Identifier: Apache-2.0
// Segments, key lengths and key masks to the list of independent sub-problems.
#pragma once

#include <vector>

#include "core/request.hpp"

namespace vca::core {

// Checks kv_lens, key_mask, segments and grid, and fills problem.subs (with their tokens if
// `list_tokens`), rooms and key_counts; for tensors on a device segments and grid only, and
// device_subs and key_ranges. Needs the problem's shapes.
void expand_subproblems(Request& request, bool list_tokens);

}  // namespace vca::core
