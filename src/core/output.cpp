// SPDX-License-Identifier: Apache-2.0
#include "core/output.hpp"

#include "spec/codes.hpp"

namespace vca::core {

void store_row(const vca_tensor& o, int64_t b, int64_t h, int64_t s, const float* row) {
  const int64_t at = b * o.stride[0] + h * o.stride[1] + s * o.stride[2];
  const int64_t d = o.shape[3];
  switch (o.dtype) {
    case VCA_BF16: {
      uint16_t* to = static_cast<uint16_t*>(o.data) + at;
      for (int64_t i = 0; i < d; ++i) to[i] = spec::bf16_encode(row[i]);
      return;
    }
    case VCA_FP16: {
      uint16_t* to = static_cast<uint16_t*>(o.data) + at;
      for (int64_t i = 0; i < d; ++i) to[i] = spec::fp16_encode(row[i]);
      return;
    }
    default: {
      float* to = static_cast<float*>(o.data) + at;
      for (int64_t i = 0; i < d; ++i) to[i] = row[i];
      return;
    }
  }
}

}  // namespace vca::core
