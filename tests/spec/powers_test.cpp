// SPDX-License-Identifier: Apache-2.0
// Powers of two of src/spec/arith.hpp that rescale and weigh blocks: the table and what is read
// from it, and weights that any exponential gives.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>

#include "spec/arith.hpp"

namespace vca::spec {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Exp2Table, CorrectlyRounded) {
  if (std::numeric_limits<long double>::digits < 64) {
    GTEST_SKIP() << "long double has " << std::numeric_limits<long double>::digits
                 << " bits, the check needs 64";
  }
  EXPECT_EQ(exp2_code_fraction(0), 1.0f);
  for (uint32_t k = 1; k < 128; ++k) {
    const long double exact = std::exp2(-static_cast<long double>(k) / 128.0L);
    const float value = exp2_code_fraction(k);
    // Values lie in [1/2, 1): half a unit in the last place is 2⁻²⁵. exp2l is good to about 2⁻⁶⁴,
    // so the margin to the tie must exceed that for the check to mean something.
    const long double distance = std::fabs(static_cast<long double>(value) - exact);
    EXPECT_LT(distance, 0x1p-25L - 0x1p-60L) << k;
  }
}

TEST(Pow2Code, EveryMultipleOfASixteenth) {
  for (int k = 0; k <= 20000; ++k) {
    const float d = static_cast<float>(-k) / 16.0f;
    const double expected = std::ldexp(
        static_cast<double>(exp2_code_fraction(static_cast<uint32_t>(k % 128))), -(k / 128));
    if (expected < 0x1p-126) {
      ASSERT_EQ(float_bits(pow2_code(d)), 0u) << k;
    } else {
      ASSERT_EQ(static_cast<double>(pow2_code(d)), expected) << k;
    }
  }
  EXPECT_EQ(pow2_code(0.0f), 1.0f);
  EXPECT_EQ(pow2_code(-0.0f), 1.0f);
  EXPECT_EQ(pow2_code(-8.0f), 0.5f);
  EXPECT_EQ(pow2_code(-1008.0f), 0x1p-126f);
  EXPECT_EQ(pow2_code(-1008.0625f), 0.0f);
  EXPECT_EQ(pow2_code(-kInf), 0.0f);
  EXPECT_EQ(pow2_code(kNan), 0.0f);
}

// E2: the cut leaves no doubt. Any exponential with a relative error up to 2^-22 has the same upper
// bits, for every difference of two maxima, which is a multiple of 1/32.
TEST(BlockWeight, EveryExponentialGivesTheSameBits) {
  for (int k = -32 * 1008; k <= 32 * 128; ++k) {
    const float d = static_cast<float>(k) / 32.0f;
    const double exact = std::exp2(static_cast<double>(d) / 8);
    const float weight = block_weight(d);
    ASSERT_LE(static_cast<double>(weight), exact) << k;
    ASSERT_GT(static_cast<double>(weight), exact * (1 - 0x1p-12)) << k;
    if (k % 256 == 0) {
      ASSERT_EQ(static_cast<double>(weight), exact) << k;
      continue;
    }
    for (const double error : {-0x1p-22, 0x1p-22}) {
      const auto other = static_cast<float>(exact * (1 + error));
      ASSERT_EQ(float_bits(other) & kWeightMask, float_bits(weight)) << k;
    }
  }
  EXPECT_EQ(block_weight(0.0f), 1.0f);
  EXPECT_EQ(block_weight(128.0f), 65536.0f);
  EXPECT_EQ(block_weight(-1008.0f), 0x1p-126f);
  EXPECT_EQ(block_weight(-1008.03125f), 0.0f);
  EXPECT_EQ(block_weight(-kInf), 0.0f);
  EXPECT_EQ(block_weight(kNan), 0.0f);
}

}  // namespace
}  // namespace vca::spec
