// SPDX-License-Identifier: Apache-2.0
// Error bounds of 8-bit recipes against FP64, with their derivations.
#pragma once

#include <cmath>

namespace vca::test {

// rel_l2 of the 8-bit recipes on unit-normal q, k, v with the default scale.
//   P   ExpCast: the largest element error is 7.97 % of a code interval, one-sided; normalising by
//   the sum of the same
//       codes centres it, so at most 4.0 % of each weight (docs/numerics.md F1). The cast:
//       2^-4 / 2 on average.
//   V   E4M3 rounds a residual by at most 2^-4 = 6.25 % of itself.
//   QK  INT8 with amax about 4 sigma: a step of 4/127, so each factor carries an error of
//   4/127/sqrt(12) = 0.0091, and
//       a logit one of 0.0091 * sqrt(2) = 0.0129 (the sqrt(d) of the sum and the 1/sqrt(d) of the
//       scale cancel). Three of those deviations change a weight by 3.9 %.
// The errors of different keys are independent, as their values are, so the ratio of |sum p v
// error| to |sum p v| is that of the terms: at most 4.0 + 6.25 + 3.9 %.
inline constexpr double kUnitNormalError = 0.142;

// The same with deviations instead of largest errors, for logits of the deviation logit_std: E4M3
// is off by a uniform 2^-4 of V at most, 2^-4 / sqrt(3) = 0.0361 in the root mean square; P as
// above; a logit's error of 0.0129 * logit_std multiplies a weight by its exponential, whose
// relative deviation is sqrt(expm1(.^2)). Independent, so the squares add; the number of keys plays
// no part.
inline double normal_rms_error(double logit_std) {
  return std::sqrt(0.0361 * 0.0361 + 0.04 * 0.04 + std::expm1(std::pow(0.0129 * logit_std, 2)));
}

// LSE of decoded sums: ln of a sum whose terms are up to 7.97 % off (one-sided, so this is the bias
// of a diffuse row as well), plus the largest shift of a single logit: five deviations of 0.0129
// cover every row of a test.
inline constexpr double kUnitNormalLseError = 0.0767 + 5 * 0.0129;

}  // namespace vca::test
