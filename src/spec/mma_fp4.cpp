// SPDX-License-Identifier: Apache-2.0
#include "spec/mma_fp4.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "spec/codes.hpp"
#include "spec/fp4.hpp"

namespace vca::spec {
namespace {

constexpr int kLowestExponent = -126;  // of a zero term, and of FP32's subnormals

// Exponent of a scale or of the accumulator with a significand in [1, 2), or below 1 for subnormals
// of the format.
int exponent_of(float x, int min_exponent) { return std::max(std::ilogb(x), min_exponent); }

// sum * 2^exponent truncated towards zero to FP32. |sum| < 2^53.
float truncate_to_float(double sum, int exponent) {
  if (sum == 0.0) return 0.0f;
  const double value = std::ldexp(sum, exponent);
  const int grid = std::max(std::ilogb(value), kLowestExponent) - 23;
  const double truncated = std::ldexp(std::trunc(std::ldexp(value, -grid)), grid);
  if (std::fabs(truncated) > static_cast<double>(std::numeric_limits<float>::max()))
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(sum));
  return static_cast<float>(truncated + 0.0);
}

}  // namespace

void mma_accumulate_nvfp4(const float* a, const float* a_scale, const float* b,
                          const float* b_scale, int64_t ldb, int64_t k, int64_t n, float* c) {
  constexpr int kE4m3MinExponent = -6;
  constexpr int kGroups = kFp4Step / kMicroGroup;
  for (int64_t k0 = 0; k0 < k; k0 += kFp4Step) {
    const auto groups = static_cast<int>(std::min<int64_t>(kGroups, (k - k0) / kMicroGroup));
    for (int64_t j = 0; j < n; ++j) {
      if (!is_finite(c[j])) continue;
      double term[kGroups];
      int max_exponent = c[j] != 0.0f ? exponent_of(c[j], kLowestExponent) : kLowestExponent;
      for (int g = 0; g < groups; ++g) {
        const int64_t at = k0 / kMicroGroup + g;
        float dot = 0.0f;  // multiples of 1/4 up to 576: exact
        for (int i = 0; i < kMicroGroup; ++i)
          dot += a[k0 + g * kMicroGroup + i] * b[(k0 + g * kMicroGroup + i) * ldb + j];
        const float sa = a_scale[at], sb = b_scale[at * ldb + j];
        term[g] = static_cast<double>(dot) * static_cast<double>(sa) * static_cast<double>(sb);
        if (term[g] == 0.0) continue;
        max_exponent = std::max(
            max_exponent, exponent_of(sa, kE4m3MinExponent) + exponent_of(sb, kE4m3MinExponent));
      }
      const int shift = kFp4FracBits - max_exponent;
      // Below 2^(35 + 12) a term: the sum of five is exact in a double.
      double sum = std::trunc(std::ldexp(static_cast<double>(c[j]), shift));
      for (int g = 0; g < groups; ++g) sum += std::trunc(std::ldexp(term[g], shift));
      c[j] = truncate_to_float(sum, -shift);
    }
  }
}

}  // namespace vca::spec
