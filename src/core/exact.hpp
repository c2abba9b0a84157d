// SPDX-License-Identifier: Apache-2.0
// Recipe `exact`: FP64 on the stored inputs. Its operands are the inputs themselves.
#pragma once

#include <cstdint>

#include "core/request.hpp"

namespace vca::core {

// The workspace body: contiguous copies of q, k and v.
int64_t exact_copy_bytes(const Request& request);
void exact_copy(const Request& request, uint8_t* body);
// The problem with its views on such copies.
spec::Problem exact_problem(const Request& request, const uint8_t* body);

// Every row of `problem` (the request's own, or one on copies), in parallel.
void exact_attend(const Request& request, const spec::Problem& problem);

}  // namespace vca::core
