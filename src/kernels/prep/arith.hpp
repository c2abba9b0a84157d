// SPDX-License-Identifier: Apache-2.0
// Explicit arithmetic of preprocessing, with two bodies: the device's instructions and the
// specification's functions. Codecs are the specification's own constexpr functions on both sides.
#pragma once

#include <cstdint>
#include <cstring>

#include "ptx/ptx.hpp"
#include "ptx/types.hpp"
#include "spec/arith.hpp"
#include "spec/codes.hpp"

#if defined(__CUDACC__)
#define VCA_UNROLL _Pragma("unroll")
#define VCA_NO_UNROLL _Pragma("unroll 1")
#else
#define VCA_UNROLL
#define VCA_NO_UNROLL
#endif

namespace vca::kernels::prep {

#if defined(__CUDACC__)
VCA_DEVICE float mul(float a, float b) { return ptx::mul_rn(a, b); }
VCA_DEVICE float add(float a, float b) { return ptx::add_rn(a, b); }
VCA_DEVICE float sub(float a, float b) { return __fsub_rn(a, b); }
VCA_DEVICE float div(float a, float b) { return __fdiv_rn(a, b); }
VCA_DEVICE float fma(float a, float b, float c) { return ptx::fma_rn(a, b, c); }
VCA_DEVICE double mul_f64(double a, double b) { return __dmul_rn(a, b); }
VCA_DEVICE float to_float(int64_t n) { return __ll2float_rn(n); }
VCA_DEVICE float to_float(double x) { return __double2float_rn(x); }
#else
VCA_DEVICE float mul(float a, float b) { return spec::mul(a, b); }
VCA_DEVICE float add(float a, float b) { return spec::add(a, b); }
VCA_DEVICE float sub(float a, float b) { return spec::sub(a, b); }
VCA_DEVICE float div(float a, float b) { return a / b; }
VCA_DEVICE float fma(float a, float b, float c) { return spec::fma_rn(a, b, c); }
VCA_DEVICE double mul_f64(double a, double b) { return a * b; }
VCA_DEVICE float to_float(int64_t n) { return static_cast<float>(n); }
VCA_DEVICE float to_float(double x) { return static_cast<float>(x); }
#endif

VCA_DEVICE float abs_f32(float x) {
  return spec::float_from_bits(spec::float_bits(x) & 0x7FFFFFFFu);
}
// The larger one; a NaN in b is ignored. So a maximum does not depend on the order of its inputs.
VCA_DEVICE float max_f32(float a, float b) { return a < b ? b : a; }
VCA_DEVICE float min_f32(float a, float b) { return b < a ? b : a; }
VCA_DEVICE int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
VCA_DEVICE float inverse_of(int64_t n) { return div(1.0f, to_float(n)); }  // RN(1/n)

// B1's tree over exactly 2^kLog values: the same bits as spec::tree_sum, without its stack in local
// memory.
template <int kLog, class Get>
VCA_DEVICE float unrolled_tree(const Get& get, int first) {
  if constexpr (kLog == 0) {
    return get(first);
  } else {
    const float left = unrolled_tree<kLog - 1>(get, first);
    return add(left, unrolled_tree<kLog - 1>(get, first + (1 << (kLog - 1))));
  }
}
// B3: codes = encode(x * RN(code_max/amax)), scale = RN(amax/code_max); a tiny amax counts as 0.
struct Quantiser {
  float factor, scale;
};
VCA_DEVICE Quantiser make_quantiser(float amax, float code_max) {
  if (amax < 0x1p-100f) return {0.0f, 0.0f};
  return {div(code_max, amax), div(amax, code_max)};
}
VCA_DEVICE void store_f32(uint8_t* at, float x) {  // 4-byte aligned
#if defined(__CUDACC__)
  *reinterpret_cast<float*>(at) = x;
#else
  std::memcpy(at, &x, sizeof x);
#endif
}
}  // namespace vca::kernels::prep
