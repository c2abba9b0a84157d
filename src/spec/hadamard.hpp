// SPDX-License-Identifier: Apache-2.0
// Unnormalised Walsh-Hadamard transform of a row, in FP32 butterflies from stride 1 up
// (docs/numerics.md B5, B10). Rotating q and k by the same H leaves q.k unchanged up to the
// factor d_pad, which Problem::code_scale folds in.
#pragma once

namespace vca::spec {

inline void hadamard_row(float* x, int d_pad) {
  for (int stride = 1; stride < d_pad; stride *= 2) {
    for (int base = 0; base < d_pad; base += 2 * stride) {
      for (int i = base; i < base + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = a + b;
        x[i + stride] = a - b;
      }
    }
  }
}

}  // namespace vca::spec
