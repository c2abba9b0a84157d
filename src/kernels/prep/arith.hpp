// SPDX-License-Identifier: Apache-2.0
// Explicit arithmetic of preprocessing, with two bodies: the device's instructions and the
// specification's functions. Codecs are the specification's own constexpr functions on both sides.
#pragma once

#include <cstdint>
#include <cstring>

#include "ptx/types.hpp"
#include "spec/arith.hpp"
#include "spec/codes.hpp"
#if defined(__CUDACC__)
#include "ptx/ptx.hpp"
#endif

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
VCA_DEVICE double add_f64(double a, double b) { return __dadd_rn(a, b); }
VCA_DEVICE float to_float(int64_t n) { return __ll2float_rn(n); }
VCA_DEVICE float to_float(double x) { return __double2float_rn(x); }
VCA_DEVICE uint32_t encode_e4m3x4(const float (&x)[4]) {
  return ptx::cvt_rn_satfinite_e4m3x4_f32(x[0], x[1], x[2], x[3]);
}
#else
VCA_DEVICE float mul(float a, float b) { return spec::mul(a, b); }
VCA_DEVICE float add(float a, float b) { return spec::add(a, b); }
VCA_DEVICE float sub(float a, float b) { return spec::sub(a, b); }
VCA_DEVICE float div(float a, float b) { return a / b; }
VCA_DEVICE float fma(float a, float b, float c) { return spec::fma_rn(a, b, c); }
VCA_DEVICE double mul_f64(double a, double b) { return a * b; }
VCA_DEVICE double add_f64(double a, double b) { return a + b; }
VCA_DEVICE float to_float(int64_t n) { return static_cast<float>(n); }
VCA_DEVICE float to_float(double x) { return static_cast<float>(x); }
VCA_DEVICE uint32_t encode_e4m3x4(const float (&x)[4]) {
  uint32_t packed = 0;
  for (int i = 0; i < 4; ++i) packed |= uint32_t{spec::e4m3_encode(x[i])} << (8 * i);
  return packed;
}
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
// memory. Leaves of 2^kLeaf values are unrolled; the binary counter above them stays in registers.
template <int kLog, class Get>
VCA_DEVICE float unrolled_tree(const Get& get, int first) {
  if constexpr (kLog == 0) {
    return get(first);
  } else {
    const float left = unrolled_tree<kLog - 1>(get, first);
    return add(left, unrolled_tree<kLog - 1>(get, first + (1 << (kLog - 1))));
  }
}
template <int kLog, int kLeaf, class Get>
VCA_DEVICE float full_tree(const Get& get) {
  constexpr int kLevels = kLog - kLeaf;
  float level[kLevels] = {};
  float sum = 0.0f;
  VCA_NO_UNROLL
  for (int g = 0; g < 1 << kLevels; ++g) {
    sum = unrolled_tree<kLeaf>(get, g << kLeaf);
    bool open = true;  // sum still looks for its left neighbour
    VCA_UNROLL
    for (int i = 0; i < kLevels; ++i) {
      if (open && (g >> i & 1) != 0) {
        sum = add(level[i], sum);
      } else if (open) {
        level[i] = sum;
        open = false;
      }
    }
  }
  return sum;  // the last leaf's counter is all ones: it closed every level
}

// B3: codes = encode(x * RN(code_max/amax)), scale = RN(amax/code_max); a tiny amax counts as 0.
struct Quantiser {
  float factor, scale;
};
VCA_DEVICE Quantiser make_quantiser(float amax, float code_max) {
  if (amax < 0x1p-100f) return {0.0f, 0.0f};
  return {div(code_max, amax), div(amax, code_max)};
}
// Four INT8 codes, x[0] in the lowest byte.
VCA_DEVICE uint32_t encode_int8x4(const float* x, float factor) {
  uint32_t packed = 0;
  for (int i = 0; i < 4; ++i)
    packed |= uint32_t{static_cast<uint8_t>(spec::int8_encode(mul(x[i], factor)))} << (8 * i);
  return packed;
}

struct alignas(16) Bytes16 {
  uint32_t word[4];
};
VCA_DEVICE void store16(uint8_t* at, const Bytes16& x) {  // `at` is 16-byte aligned
#if defined(__CUDACC__)
  *reinterpret_cast<Bytes16*>(at) = x;
#else
  std::memcpy(at, &x, sizeof x);
#endif
}
VCA_DEVICE void store_f32(uint8_t* at, float x) {  // 4-byte aligned
#if defined(__CUDACC__)
  *reinterpret_cast<float*>(at) = x;
#else
  std::memcpy(at, &x, sizeof x);
#endif
}
VCA_DEVICE float load_f32(const uint8_t* at) {
#if defined(__CUDACC__)
  return *reinterpret_cast<const float*>(at);
#else
  float x;
  std::memcpy(&x, at, sizeof x);
  return x;
#endif
}

}  // namespace vca::kernels::prep
