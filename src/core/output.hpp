// SPDX-License-Identifier: Apache-2.0
// Writing a row of O: FP32 to any output type, round to nearest even, through any strides.
#pragma once

#include <cstdint>

#include "vca/vca.h"

namespace vca::core {

void store_row(const vca_tensor& o, int64_t b, int64_t h, int64_t s, const float* row);

}  // namespace vca::core
