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

struct Angle {
  float cos, sin;
};
VCA_DEVICE Angle angle_of(const Rope& r, int64_t local, int f) {
  if (r.cos != nullptr) {
    const int64_t at = local * (r.rotated / 2) + f;
    return {r.cos[at], r.sin[at]};
  }
  int axis = 0;
  for (; f >= r.axis_dim[axis] / 2; ++axis) f -= r.axis_dim[axis] / 2;
  // 32-bit divisions: a token index is an int32 wherever keys are ordered, and queries of a rotated
  // grid number as many as its keys.
  const auto n = static_cast<uint32_t>(local);
  const auto w = static_cast<uint32_t>(r.grid_w), h = static_cast<uint32_t>(r.grid_h);
  const uint32_t row = n / w;
  const int64_t coordinate = axis == 2 ? n - row * w : axis == 1 ? row % h : row / h;
  const int64_t at = coordinate * (r.axis_dim[axis] / 2) + f;
  return {r.axis_cos[axis][at], r.axis_sin[axis][at]};
}

// Channel i of a query or key row after RoPE; 0 for the padding of head_dim.
VCA_DEVICE float load_rotated(const Params& p, const Tensor& t, int64_t row, int64_t token, int i) {
  if (i >= p.d) return 0.0f;
  const float x = load_element(t, row + i);
  const Rope& r = p.rope;
  const int64_t local = token - r.begin;
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

// Row of floats in shared memory: one float of padding, so that the same channel of 32 rows lies in
// 32 banks.
constexpr int kRowFloats = spec::kMaxHeadDim + 1;

VCA_DEVICE void hadamard_in_place(float* x, int d_pad) {
  for (int stride = 1; stride < d_pad; stride *= 2)
    for (int base = 0; base < d_pad; base += 2 * stride)
      for (int i = base; i < base + stride; ++i) {
        const float a = x[i], b = x[i + stride];
        x[i] = add(a, b);
        x[i + stride] = sub(a, b);
      }
}

// 16 score codes of a row, as one chunk of a tile.
VCA_DEVICE Bytes16 encode_chunk(const Params& p, const float* x, float factor) {
  Bytes16 out;
  for (int w = 0; w < 4; ++w) {
    const float* from = x + 4 * w;
    if (p.e4m3_head) {
      const float scaled[4] = {mul(from[0], factor), mul(from[1], factor), mul(from[2], factor),
                               mul(from[3], factor)};
      out.word[w] = encode_e4m3x4(scaled);
    } else {
      out.word[w] = encode_int8x4(from, factor);
    }
  }
  return out;
}

}  // namespace vca::kernels::prep
