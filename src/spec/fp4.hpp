// SPDX-License-Identifier: Apache-2.0
// NVFP4 (layer L1): 4-bit elements E2M1 in groups of 16 that share one unsigned E4M3 micro-scale,
// under one FP32 scale a head (docs/numerics.md B12). Every backend must give these bytes.
//
//   E2M1 code    0    1    2    3    4    5    6    7     (bit 3: sign)
//   value        0   0.5   1   1.5   2    3    4    6
#pragma once

#include <array>
#include <cmath>
#include <cstdint>

#include "spec/arith.hpp"
#include "spec/codes.hpp"

namespace vca::spec {

inline constexpr int kMicroGroup = 16;  // elements under one micro-scale
inline constexpr float kE2m1Max = 6.0f;
inline constexpr float kNvfp4Max = 2688.0f;  // 6 * 448: the largest |element * micro-scale|

// ---- E2M1 ----------------------------------------------------------------------------------

// Nearest, ties to the even code, saturation to +-6 (Inf too), NaN gives +6: what
// cvt.rn.satfinite.e2m1x2.f32 and cuda_fp4.h do. Low 4 bits of the byte.
constexpr uint8_t e2m1_encode(float x) {
  const uint32_t bits = float_bits(x);
  const float a = float_from_bits(bits & 0x7FFFFFFFu);
  if (is_nan(x)) return 7;
  // Codes are integers in steps of 0.5 below 2, of 1 below 4 and of 2 above, and even integers are
  // even codes in each part: 2a, a + 2, a/2 + 4 rounded to even.
  uint32_t code = 7;
  if (a < 2.0f) {
    code = static_cast<uint32_t>(round_half_even_i32(2.0f * a));
  } else if (a < 4.0f) {
    code = static_cast<uint32_t>(round_half_even_i32(a) + 2);
  } else if (a < 6.0f) {
    code = static_cast<uint32_t>(round_half_even_i32(0.5f * a) + 4);
  }
  return static_cast<uint8_t>(((bits >> 28) & 8u) | code);
}

inline constexpr std::array<float, 16> kE2m1Values = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,
                                                      4.0f,  6.0f,  -0.0f, -0.5f, -1.0f, -1.5f,
                                                      -2.0f, -3.0f, -4.0f, -6.0f};
constexpr float e2m1_decode(uint8_t code) { return kE2m1Values[code & 15u]; }

// ---- UE4M3 ---------------------------------------------------------------------------------

// E4M3 without a sign: the micro-scale. Nearest even, saturation to 448, negative values and -0
// give 0, NaN gives 0x7F. Codes 0 .. 0x7E; bit 7 is always 0.
constexpr uint8_t ue4m3_encode(float x) {
  if (is_nan(x)) return 0x7F;
  return (float_bits(x) >> 31) != 0 ? uint8_t{0} : e4m3_encode(x);
}
constexpr float ue4m3_decode(uint8_t code) { return e4m3_decode(code & 0x7Fu); }

// RN(8 log2(value)) of codes 1 .. 126, in code units; code 0 reads as code 1, so that a group whose
// scale would vanish keeps its share in the sums of P (docs/numerics.md E7).
const std::array<float, 128>& ue4m3_log_table();

// ---- groups --------------------------------------------------------------------------------

// Two elements a byte: byte c of a row holds channel c in its low nibble and channel c + d/2 in its
// high one, so that a vector of bytes is two vectors of neighbouring channels.
constexpr uint8_t fp4_get(const uint8_t* row, int d, int channel) {
  const int half = d / 2;
  return channel < half ? row[channel] & 15u : row[channel - half] >> 4;
}
constexpr void fp4_set(uint8_t* row, int d, int channel, uint8_t code) {
  const int half = d / 2;
  uint8_t& byte = row[channel < half ? channel : channel - half];
  byte = channel < half ? static_cast<uint8_t>((byte & 0xF0u) | code)
                        : static_cast<uint8_t>((byte & 0x0Fu) | (code << 4));
}

struct MicroGroup {
  uint8_t scale = 0;
  uint8_t codes[kMicroGroup] = {};
};

// Quantises 16 values (already divided by the head's scale). The micro-scale is UE4M3(amax/6), or,
// `adaptive`, that one of amax/6, amax/5, amax/4 whose squared error over the group is least (ties
// to the earlier). Elements are divided by the *rounded* scale (times its RN reciprocal); a scale
// of zero gives zero codes.
inline MicroGroup quantise_micro_group(const float* x, bool adaptive) {
  float amax = 0.0f;
  for (int i = 0; i < kMicroGroup; ++i) amax = std::fabs(x[i]) > amax ? std::fabs(x[i]) : amax;
  MicroGroup best;
  float best_error = 0.0f;
  for (const int divisor : {6, 5, 4}) {
    MicroGroup g;
    g.scale = ue4m3_encode(mul(amax, 1.0f / static_cast<float>(divisor)));
    const float scale = ue4m3_decode(g.scale);
    const float inverse = g.scale != 0 ? 1.0f / scale : 0.0f;
    float error = 0.0f;
    for (int i = 0; i < kMicroGroup; ++i) {
      if (g.scale != 0) g.codes[i] = e2m1_encode(mul(x[i], inverse));
      const float miss = fma_rn(-e2m1_decode(g.codes[i]), scale, x[i]);
      error = fma_rn(miss, miss, error);
    }
    if (divisor == 6 || error < best_error) {
      best = g;
      best_error = error;
    }
    if (!adaptive) break;
  }
  return best;
}

}  // namespace vca::spec
