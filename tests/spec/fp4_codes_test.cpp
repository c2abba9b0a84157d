// SPDX-License-Identifier: Apache-2.0
// E2M1, UE4M3 and the micro-group quantiser: every code, every FP32 (a slice of them in an ordinary
// run), every tie.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "spec/fp4.hpp"

namespace vca::spec {
namespace {

// The definition: nearest value, ties to the even code, saturation.
uint8_t nearest_e2m1(float x) {
  if (std::isnan(x)) return 7;
  const double a = std::min(std::fabs(static_cast<double>(x)), 6.0);
  uint8_t best = 0;
  for (uint8_t code = 1; code < 8; ++code) {
    const double here = std::fabs(a - static_cast<double>(e2m1_decode(code)));
    const double there = std::fabs(a - static_cast<double>(e2m1_decode(best)));
    if (here < there || (here == there && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best | (std::signbit(x) ? 8 : 0));
}

TEST(E2m1, EveryCodeDecodesToItsDefinition) {
  for (uint8_t code = 0; code < 16; ++code) {
    const int exponent = (code >> 1) & 3, mantissa = code & 1;
    const double magnitude =
        exponent == 0 ? mantissa * 0.5 : (1 + mantissa * 0.5) * std::exp2(exponent - 1);
    EXPECT_EQ(e2m1_decode(code), static_cast<float>(code & 8 ? -magnitude : magnitude));
    EXPECT_EQ(std::signbit(e2m1_decode(code)), code >= 8);
    EXPECT_EQ(e2m1_encode(e2m1_decode(code)), code);
  }
}

// All 2^32 floats with VCA_EXHAUSTIVE set (minutes); else every upper half with the lower halves
// around the ties, and every 1,021st float.
TEST(E2m1, EncodeIsTheNearestCodeForEveryFloat) {
  const uint64_t step = std::getenv("VCA_EXHAUSTIVE") != nullptr ? 1 : 1021;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += step) {
    const float x = float_from_bits(static_cast<uint32_t>(bits));
    ASSERT_EQ(e2m1_encode(x), nearest_e2m1(x)) << x;
  }
  for (uint32_t top = 0; top < 65536; ++top)
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float x = float_from_bits((top << 16) | low);
      ASSERT_EQ(e2m1_encode(x), nearest_e2m1(x)) << x;
    }
}

TEST(E2m1, TiesGoToTheEvenCode) {
  const float tie[] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
  const uint8_t even[] = {0, 2, 2, 4, 4, 6, 6};
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(e2m1_encode(tie[i]), even[i]) << tie[i];
    EXPECT_EQ(e2m1_encode(std::nextafter(tie[i], 0.0f)), i) << tie[i];
    EXPECT_EQ(e2m1_encode(std::nextafter(tie[i], 9.0f)), i + 1) << tie[i];
  }
}

TEST(Ue4m3, CodesAreThePositiveHalfOfE4m3) {
  for (uint32_t code = 0; code < 127; ++code) {
    EXPECT_EQ(ue4m3_decode(static_cast<uint8_t>(code)), kE4m3Values[code]);
    EXPECT_EQ(ue4m3_encode(kE4m3Values[code]), code);
  }
  for (uint32_t top = 0; top < 65536; ++top)
    for (const uint32_t low : {0x0000u, 0x0001u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float x = float_from_bits((top << 16) | low);
      const uint8_t code = ue4m3_encode(x);
      ASSERT_LT(code, 128);
      if (std::isnan(x)) {
        ASSERT_EQ(code, 0x7F);
      } else if (std::signbit(x)) {
        ASSERT_EQ(code, 0) << x;
      } else {
        ASSERT_EQ(code, e4m3_encode(x)) << x;
      }
    }
}

// The nearest code for every float, from the midpoints of neighbouring codes alone: positive floats
// are walked upwards, and the code rises behind each midpoint (at it, when that makes it even). All
// 2^32 floats with VCA_EXHAUSTIVE set.
TEST(Ue4m3, EncodeIsTheNearestCodeForEveryFloat) {
  const uint64_t step = std::getenv("VCA_EXHAUSTIVE") != nullptr ? 1 : 1021;
  constexpr uint64_t kInf = 0x7F800000;
  uint8_t expected = 0;
  for (uint64_t bits = 0; bits <= kInf; bits += step) {
    const float x = float_from_bits(static_cast<uint32_t>(bits));
    while (expected < 126) {
      const float middle = 0.5f * (ue4m3_decode(expected) + ue4m3_decode(expected + 1));  // exact
      if (x < middle || (x == middle && expected % 2 == 0)) break;
      ++expected;
    }
    ASSERT_EQ(ue4m3_encode(x), expected) << x;
  }
  EXPECT_EQ(expected, 126) << "saturates";
  for (uint64_t bits = kInf + 1; bits < (uint64_t{1} << 32); bits += step) {
    const float x = float_from_bits(static_cast<uint32_t>(bits));
    ASSERT_EQ(ue4m3_encode(x), std::isnan(x) ? 0x7F : 0) << std::hex << bits;
  }
}

TEST(Ue4m3, LogTableIsTheNearestFloat) {
  for (int code = 0; code < 127; ++code) {
    const long double value = ue4m3_decode(static_cast<uint8_t>(code == 0 ? 1 : code));
    EXPECT_EQ(ue4m3_log_table()[static_cast<size_t>(code)],
              static_cast<float>(8.0L * std::log2(value)))
        << code;
  }
}

TEST(PackedElements, EveryPositionKeepsItsNeighbours) {
  uint8_t row[64] = {};
  for (int c = 0; c < 128; ++c) fp4_set(row, 128, c, static_cast<uint8_t>(c * 7 % 16));
  for (int c = 0; c < 128; ++c) EXPECT_EQ(fp4_get(row, 128, c), c * 7 % 16);
  EXPECT_EQ(row[5], (5 * 7 % 16) | ((69 * 7 % 16) << 4));
}

double group_error(const MicroGroup& g, const float* x) {
  double sum = 0;
  for (int i = 0; i < kMicroGroup; ++i) {
    const double miss = static_cast<double>(x[i]) - static_cast<double>(e2m1_decode(g.codes[i])) *
                                                        static_cast<double>(ue4m3_decode(g.scale));
    sum += miss * miss;
  }
  return sum;
}

TEST(MicroGroup, ElementsAreNearestUnderTheRoundedScale) {
  std::mt19937 g(1);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 20000; ++trial) {
    float x[kMicroGroup];
    const float size = std::exp2(static_cast<float>(static_cast<int>(g() % 24) - 14));
    for (float& v : x) v = size * normal(g);
    float amax = 0;
    for (const float v : x) amax = std::max(amax, std::fabs(v));
    const MicroGroup plain = quantise_micro_group(x, false);
    ASSERT_EQ(plain.scale, ue4m3_encode(amax * (1.0f / 6.0f)));
    const float scale = ue4m3_decode(plain.scale);
    for (int i = 0; i < kMicroGroup; ++i) {
      if (scale == 0.0f) {
        ASSERT_EQ(plain.codes[i], 0);
        continue;
      }
      // Nearest, but for quotients that RN(1/scale) moves over a tie: 2^-23 of them.
      const double quotient = static_cast<double>(x[i]) / scale;
      const double miss = std::fabs(quotient - e2m1_decode(plain.codes[i]));
      const double best =
          std::fabs(quotient - e2m1_decode(nearest_e2m1(static_cast<float>(quotient))));
      ASSERT_LE(miss, best + std::fabs(quotient) * 0x1p-22);
    }
  }
}

TEST(MicroGroup, ScaleOfThreeIsTheLeastErrorAndTiesGoToSix) {
  std::mt19937 g(2);
  std::normal_distribution<float> normal;
  double plain_sum = 0, three_sum = 0;
  int chosen[3] = {};
  for (int trial = 0; trial < 20000; ++trial) {
    float x[kMicroGroup];
    for (float& v : x) v = 40 * normal(g);
    float amax = 0;
    for (const float v : x) amax = std::max(amax, std::fabs(v));
    const MicroGroup plain = quantise_micro_group(x, false), three = quantise_micro_group(x, true);
    double best = INFINITY;
    for (const float divisor : {6.0f, 5.0f, 4.0f}) {
      MicroGroup candidate;
      candidate.scale = ue4m3_encode(amax * (1.0f / divisor));
      for (int i = 0; i < kMicroGroup; ++i)
        candidate.codes[i] = e2m1_encode(x[i] * (1.0f / ue4m3_decode(candidate.scale)));
      best = std::min(best, group_error(candidate, x));
      if (three.scale == candidate.scale) ++chosen[static_cast<int>(6 - divisor)];
    }
    ASSERT_LE(group_error(three, x), best * (1 + 0x1p-18));
    plain_sum += group_error(plain, x);
    three_sum += group_error(three, x);
  }
  printf(
      "micro-scale of three: %.2f dB less error on normal values; amax/6, /5, /4 chosen %d %d %d\n",
      10 * std::log10(plain_sum / three_sum), chosen[0], chosen[1], chosen[2]);
  EXPECT_LT(three_sum, 0.9 * plain_sum);
  for (const int n : chosen) EXPECT_GT(n, 100);
  // All candidates exact: the first.
  const float sixes[kMicroGroup] = {6, 3, 0, -6, 1.5};
  EXPECT_EQ(quantise_micro_group(sixes, true).scale, ue4m3_encode(1.0f));
}

}  // namespace
}  // namespace vca::spec
