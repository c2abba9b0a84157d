// SPDX-License-Identifier: Apache-2.0
// vca_ref_attn: the specification, callable.
#pragma once

#include <cstdint>

#include "core/request.hpp"

namespace vca::core {

struct BlockCounts {
  int64_t n_valid = 0, n_blocks = 0;  // of the batch's largest sub-problem
};
BlockCounts ref_blocks(const Request& request, int64_t b);

void ref_attn(const Request& request, int32_t target, int64_t b, int64_t h, int64_t row0,
              int64_t nrows, const vca_ref_io* io);

}  // namespace vca::core
