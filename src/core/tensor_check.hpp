// SPDX-License-Identifier: Apache-2.0
// Checks of one strided view, and of views against each other.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/problem.hpp"
#include "vca/vca.h"

namespace vca::core {

// Bytes that a view touches: rows of contiguous bytes.
struct Region {
  const char* name = "";
  const void* data = nullptr;
  int64_t row_bytes = 0;
  int64_t size[3] = {1, 1, 1};          // rows along B, H, S; any 0 means no byte
  int64_t stride_bytes[3] = {0, 0, 0};  // of those rows

  bool empty() const {
    return data == nullptr || row_bytes == 0 || size[0] == 0 || size[1] == 0 || size[2] == 0;
  }
  int64_t extent_bytes() const;  // from the first byte to one past the last one
};

// Shape, strides, dtype and extent; every product checked. `need_data`: whether the pointer will be
// followed. `output`: rows must be distinct.
void check_tensor(const char* name, const vca_tensor& t, bool need_data, bool output);

Region region_of(const char* name, const vca_tensor& t);
Region region_of_array(const char* name, const void* data, int64_t elems, int64_t elem_bytes);

// Refuses when an output shares a byte with the other region. Hulls that overlap are looked at row
// by row, so that slices of one fused buffer pass.
void check_disjoint(const Region& output, const Region& other);

// Refuses the first NaN or Inf in [b, h, s, d] order.
void check_finite(const char* name, const spec::TensorView& view, int threads);

}  // namespace vca::core
