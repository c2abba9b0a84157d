// SPDX-License-Identifier: Apache-2.0
// Values as grouping sees them: INT8, clipped at three sigma (docs/grouping.md, "tokens").
#pragma once

#include "kernels/prep/arith.hpp"

namespace vca::kernels::prep {

// RN(127 / RN(3 sigma)) and the power of two that sigma was found under; both 0: tokens are zero.
struct TokenScale {
  float power, inverse;
};

// Four tokens, the first in the lowest byte: RN(x * power * inverse) within +-127, NaN becomes 0.
// The conversion itself ends at 127 and makes NaN 0.
VCA_DEVICE uint32_t int8_tokens(const float* x, TokenScale s) {
  float v[4];
  VCA_UNROLL
  for (int i = 0; i < 4; ++i) {
    v[i] = mul(mul(x[i], s.power), s.inverse);
    v[i] = v[i] < -127.0f ? -127.0f : v[i];
  }
  return ptx::cvt_pack_sat_s8x4_f32(v[0], v[1], v[2], v[3]);
}

}  // namespace vca::kernels::prep
