// SPDX-License-Identifier: Apache-2.0
// Elements of the caller's tensors, and RoPE of one channel: the arithmetic of spec/rope.cpp.
#pragma once

#include "kernels/prep/params.hpp"

namespace vca::kernels::prep {

// A word of the tensor; byte by byte where the view is not even aligned to its elements.
template <class Bits>
VCA_DEVICE Bits load_bits(const void* data, int64_t offset) {
  const auto* at =
      static_cast<const unsigned char*>(data) + offset * static_cast<int64_t>(sizeof(Bits));
#if defined(__CUDACC__)
  if (reinterpret_cast<uintptr_t>(at) % sizeof(Bits) == 0)
    return __ldg(reinterpret_cast<const Bits*>(at));
#endif
  Bits bits = 0;
  for (size_t i = 0; i < sizeof(Bits); ++i)
    bits = static_cast<Bits>(bits | static_cast<Bits>(static_cast<Bits>(at[i]) << (8 * i)));
  return bits;
}

VCA_DEVICE float load_element(const Tensor& t, int64_t offset) {
  switch (t.dtype) {
    case spec::DType::bf16:
      return spec::bf16_decode(load_bits<uint16_t>(t.data, offset));
    case spec::DType::fp16:
      return spec::fp16_decode(load_bits<uint16_t>(t.data, offset));
    default:
      return spec::float_from_bits(load_bits<uint32_t>(t.data, offset));
  }
}

VCA_DEVICE int64_t row_offset(const Tensor& t, int64_t b, int64_t h, int64_t s) {
  return b * t.stride_b + h * t.stride_h + s * t.stride_s;
}

VCA_DEVICE float load_plain(const Params& p, const Tensor& t, int64_t row, int i) {
  return i < p.d ? load_element(t, row + i) : 0.0f;
}

struct Angle {
  float cos, sin;
};
VCA_DEVICE Angle angle_of(const Rope& r, int64_t local, int f) {
  if (r.cos != nullptr) {
    const int64_t at = local * (r.rotated / 2) + f;
    return {r.cos[at], r.sin[at]};
  }
  const auto n = static_cast<uint32_t>(local);
  const uint32_t row = r.by_w.divide(n), t = r.by_h.divide(row);
  const uint32_t coordinate[3] = {t, row - t * r.by_h.divisor, n - row * r.by_w.divisor};
  int axis = 0;
  while (axis < 2 && f >= r.axis_end[axis]) ++axis;
  const float* group = r.table + r.axis_table[axis] + coordinate[axis] * r.pitch + f / 4 * 8;
  return {group[f % 4], group[4 + f % 4]};
}

// Channel i of a query or key row after RoPE; 0 for the padding of head_dim.
VCA_DEVICE float load_rotated(const Params& p, const Tensor& t, int64_t row, int64_t token, int i) {
  if (i >= p.d) return 0.0f;
  const float x = load_element(t, row + i);
  const Rope& r = p.rope;
  const int64_t local = token - int64_t{r.begin};
  if (r.convention == spec::RopeConvention::none || i >= r.rotated || local < 0 || local >= r.len)
    return x;
  const bool half = r.convention == spec::RopeConvention::half;
  const int pairs = r.rotated / 2;
  const bool second = half ? i >= pairs : i % 2 != 0;
  const int f = half ? (second ? i - pairs : i) : i / 2;
  const int distance = half ? pairs : 1;
  const Angle a = angle_of(r, local, f);
  const float y = load_element(t, row + (second ? i - distance : i + distance));
  return second ? add(mul(y, a.sin), mul(x, a.cos)) : sub(mul(x, a.cos), mul(y, a.sin));
}

}  // namespace vca::kernels::prep
