// SPDX-License-Identifier: Apache-2.0
// The value half of preprocessing: channel scales, block means, residual codes, removed energy.
#pragma once

#include "spec/operands.hpp"

namespace vca::spec {

// Fills v_codes (or v_real), mu, v_scale, s_v and stats->energy_removed from out.order.
void prepare_values(const Problem& p, const SubProblem& sub, int64_t kv_head, KvOperands& out);

// What the kernel multiplies with P, as FP32: residual (or whole) value of a column in units of s_v
// (x v_scale).
float dequantised_value(const Recipe& r, const KvOperands& kv, int64_t column, int channel);

}  // namespace vca::spec
