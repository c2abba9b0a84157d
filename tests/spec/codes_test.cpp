// SPDX-License-Identifier: Apache-2.0
// Every code of every format, and the encoders against searches that share nothing with them.
#include "spec/codes.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace vca::spec {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

// Value of a small float format by its definition, in double.
double format_value(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  const uint32_t exponent = (code >> mantissa_bits) & ((1u << exponent_bits) - 1u);
  const uint32_t mantissa = code & ((1u << mantissa_bits) - 1u);
  if (exponent == 0) return std::ldexp(static_cast<double>(mantissa), 1 - bias - mantissa_bits);
  return std::ldexp(static_cast<double>(mantissa + (1u << mantissa_bits)),
                    static_cast<int>(exponent) - bias - mantissa_bits);
}

// Nearest of the ascending values, ties to the even index, by looking at all of them.
uint32_t nearest_index(double x, const std::vector<double>& values) {
  uint32_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (uint32_t i = 0; i < values.size(); ++i) {
    const double distance = std::fabs(x - values[i]);
    if (distance < best_distance || (distance == best_distance && i % 2 == 0)) {
      best = i;
      best_distance = distance;
    }
  }
  return best;
}

// Floats around every representable value and every midpoint of neighbours, both signs.
std::vector<float> boundary_floats(const std::vector<double>& values) {
  std::vector<float> out;
  const auto around = [&out](double v) {
    const float f = static_cast<float>(v);
    const float candidates[] = {std::nextafter(f, -kInf), f, std::nextafter(f, kInf)};
    for (float c : candidates) {
      out.push_back(c);
      out.push_back(-c);
    }
  };
  for (size_t i = 0; i < values.size(); ++i) {
    around(values[i]);
    if (i + 1 < values.size()) around(0.5 * (values[i] + values[i + 1]));
  }
  return out;
}

// All BF16 and all FP16 bit patterns: a set of inputs both dense and wide.
std::vector<float> sixteen_bit_floats() {
  std::vector<float> out;
  for (uint32_t code = 0; code < 65536; ++code) {
    out.push_back(bf16_decode(static_cast<uint16_t>(code)));
    out.push_back(fp16_decode(static_cast<uint16_t>(code)));
  }
  return out;
}

std::vector<double> e4m3_magnitudes() {
  std::vector<double> values;
  for (uint32_t code = 0; code <= 0x7E; ++code) values.push_back(format_value(code, 4, 3, 7));
  return values;
}

// ---- integers ------------------------------------------------------------------------------

int64_t half_even(double x) {  // not the magic number: floor and an explicit tie rule
  const double below = std::floor(x);
  const double rest = x - below;
  const int64_t n = static_cast<int64_t>(below);
  if (rest > 0.5) return n + 1;
  if (rest < 0.5) return n;
  return n % 2 == 0 ? n : n + 1;
}

TEST(RoundHalfEven, HalvesQuartersAndNeighboursUpToTheLimit) {
  std::vector<float> inputs;
  for (int i = -4096; i <= 4096; ++i) inputs.push_back(static_cast<float>(i) * 0.25f);
  for (float limit : {4194304.0f, -4194304.0f, 2097151.5f, -2097151.5f, 1048575.5f}) {
    inputs.push_back(limit);
  }
  for (float x : inputs) {
    for (float y : {x, std::nextafter(x, 0.0f), std::nextafter(x, x < 0 ? -kInf : kInf)}) {
      if (std::fabs(y) > 4194304.0f) continue;
      ASSERT_EQ(round_half_even_i32(y), half_even(y)) << y;
    }
  }
}

TEST(IntegerCodes, AllSixteenBitInputsAndTies) {
  std::vector<float> inputs = sixteen_bit_floats();
  for (int i = -1200; i <= 1200; ++i) {
    const float tie = static_cast<float>(i) * 0.5f;
    inputs.insert(inputs.end(), {std::nextafter(tie, -kInf), tie, std::nextafter(tie, kInf)});
  }
  for (float x : inputs) {
    if (std::isnan(x)) {
      ASSERT_EQ(int8_encode(x), 0);
      ASSERT_EQ(u8_encode(x), 0);
      continue;
    }
    const double clamped = std::fmin(std::fmax(static_cast<double>(x), -1e6), 1e6);
    const int64_t n = half_even(clamped);
    ASSERT_EQ(int8_encode(x), std::min<int64_t>(std::max<int64_t>(n, -127), 127)) << x;
    ASSERT_EQ(u8_encode(x), std::min<int64_t>(std::max<int64_t>(n, 0), 255)) << x;
    ASSERT_EQ(f2ip_code(x), u8_encode(x)) << x;
  }
  EXPECT_EQ(int8_encode(kInf), 127);
  EXPECT_EQ(int8_encode(-kInf), -127);
  EXPECT_EQ(u8_encode(kInf), 255);
  EXPECT_EQ(u8_encode(-kInf), 0);
}

TEST(IntegerCodes, Int8RoundTrip) {
  for (int code = -127; code <= 127; ++code) {
    EXPECT_EQ(int8_encode(int8_decode(static_cast<int8_t>(code))), code);
  }
}

// ---- E4M3 ----------------------------------------------------------------------------------

TEST(E4m3, DecodeIsTheDefinition) {
  for (uint32_t code = 0; code < 256; ++code) {
    const float value = e4m3_decode(static_cast<uint8_t>(code));
    if ((code & 0x7F) == 0x7F) {
      EXPECT_TRUE(std::isnan(value)) << code;
      continue;
    }
    const double magnitude = format_value(code & 0x7F, 4, 3, 7);
    EXPECT_EQ(static_cast<double>(value), code < 128 ? magnitude : -magnitude) << code;
    EXPECT_EQ(std::signbit(value), code >= 128) << code;
  }
  EXPECT_EQ(e4m3_decode(0x7E), kE4m3Max);
}

TEST(E4m3, RoundTripOfAllCodes) {
  for (uint32_t code = 0; code < 256; ++code) {
    EXPECT_EQ(e4m3_encode(e4m3_decode(static_cast<uint8_t>(code))), code);
  }
}

void expect_e4m3_nearest(float x, const std::vector<double>& values) {
  if (std::isnan(x)) {
    ASSERT_EQ(e4m3_encode(x), std::signbit(x) ? 0xFF : 0x7F);
    return;
  }
  const double magnitude = std::fmin(std::fabs(static_cast<double>(x)), 448.0);
  const uint32_t expected = nearest_index(magnitude, values) | (std::signbit(x) ? 0x80u : 0u);
  ASSERT_EQ(e4m3_encode(x), expected) << x;
}

TEST(E4m3, EncodeIsTheNearestCodeForAllBf16AndFp16Inputs) {
  const std::vector<double> values = e4m3_magnitudes();
  for (float x : sixteen_bit_floats()) expect_e4m3_nearest(x, values);
}

TEST(E4m3, EncodeAtEveryMidpointAndItsNeighbours) {
  const std::vector<double> values = e4m3_magnitudes();
  for (float x : boundary_floats(values)) expect_e4m3_nearest(x, values);
}

TEST(E4m3, SaturationSignedZeroAndNan) {
  EXPECT_EQ(e4m3_encode(448.0f), 0x7E);
  EXPECT_EQ(e4m3_encode(463.99f), 0x7E);
  EXPECT_EQ(e4m3_encode(464.0f), 0x7E);  // where an unbounded format would round to 480
  EXPECT_EQ(e4m3_encode(std::numeric_limits<float>::max()), 0x7E);
  EXPECT_EQ(e4m3_encode(kInf), 0x7E);
  EXPECT_EQ(e4m3_encode(-kInf), 0xFE);
  EXPECT_EQ(e4m3_encode(0.0f), 0x00);
  EXPECT_EQ(e4m3_encode(-0.0f), 0x80);
  EXPECT_EQ(e4m3_encode(kNan), 0x7F);
  EXPECT_EQ(e4m3_encode(std::copysign(kNan, -1.0f)), 0xFF);
  EXPECT_EQ(e4m3_encode(std::numeric_limits<float>::denorm_min()), 0x00);
}

// Codes of consecutive magnitudes never decrease: every upper half of a float, with low halves
// around the ties.
TEST(E4m3, MonotoneOverTheFloats) {
  uint8_t previous = 0;
  for (uint32_t top = 0; top <= 0x7F80; ++top) {
    for (uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      if (top == 0x7F80 && low != 0) break;
      const uint8_t code = e4m3_encode(float_from_bits((top << 16) | low));
      ASSERT_GE(code, previous);
      previous = code;
    }
  }
  EXPECT_EQ(previous, 0x7E);
}

// ---- UE8M0 ---------------------------------------------------------------------------------

std::vector<double> ue8m0_values() {
  std::vector<double> values;
  for (int code = 0; code < 255; ++code) values.push_back(std::ldexp(1.0, code - 127));
  return values;
}

TEST(Ue8m0, DecodeAndRoundTrip) {
  const std::vector<double> values = ue8m0_values();
  for (uint32_t code = 0; code < 255; ++code) {
    const float value = ue8m0_decode(static_cast<uint8_t>(code));
    EXPECT_EQ(static_cast<double>(value), values[code]);
    EXPECT_EQ(ue8m0_encode_up(value), code);
    EXPECT_EQ(ue8m0_encode_rn(value), code);
    EXPECT_EQ(ue8m0_encode_up(-value), code);
  }
  EXPECT_TRUE(std::isnan(ue8m0_decode(0xFF)));
  EXPECT_EQ(ue8m0_encode_up(kNan), 0xFF);
  EXPECT_EQ(ue8m0_encode_rn(kNan), 0xFF);
  EXPECT_EQ(ue8m0_encode_up(0.0f), 0);
  EXPECT_EQ(ue8m0_encode_rn(0.0f), 0);
  EXPECT_EQ(ue8m0_encode_up(kInf), 254);
  EXPECT_EQ(ue8m0_encode_rn(std::numeric_limits<float>::max()), 254);
}

TEST(Ue8m0, UpIsTheFirstPowerNotBelowAndRnTheNearest) {
  const std::vector<double> values = ue8m0_values();
  std::vector<float> inputs = boundary_floats(values);
  for (uint32_t code = 0; code < 0x7F80; code += 3) {
    inputs.push_back(bf16_decode(static_cast<uint16_t>(code)));
  }
  for (float x : inputs) {
    const double magnitude = std::fabs(static_cast<double>(x));
    uint32_t up = 0;
    while (up < 254 && values[up] < magnitude) ++up;
    ASSERT_EQ(ue8m0_encode_up(x), up) << x;
    ASSERT_EQ(ue8m0_encode_rn(x), nearest_index(magnitude, values)) << x;
  }
}

// ---- BF16 and FP16 -------------------------------------------------------------------------

TEST(Bf16, RoundTripOfAllCodesAndNanPolicy) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint16_t c = static_cast<uint16_t>(code);
    const bool nan = (code & 0x7FFF) > 0x7F80;
    EXPECT_EQ(bf16_encode(bf16_decode(c)), nan ? (c | 0x40) : c);
    EXPECT_EQ(std::isnan(bf16_decode(c)), nan);
  }
  // A NaN whose payload lies in the dropped bits must not become Inf.
  EXPECT_EQ(bf16_encode(float_from_bits(0x7F800001u)), 0x7FC0);
  EXPECT_EQ(bf16_encode(float_from_bits(0xFFFFFFFFu)), 0xFFFF);
}

TEST(Fp16, DecodeIsTheDefinitionAndRoundTrip) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const uint16_t c = static_cast<uint16_t>(code);
    const float value = fp16_decode(c);
    const uint32_t magnitude = code & 0x7FFF;
    if (magnitude > 0x7C00) {
      EXPECT_TRUE(std::isnan(value));
      EXPECT_EQ(fp16_encode(value), c | 0x200);
      continue;
    }
    const double expected =
        magnitude == 0x7C00 ? static_cast<double>(kInf) : format_value(magnitude, 5, 10, 15);
    EXPECT_EQ(static_cast<double>(value), code < 32768 ? expected : -expected);
    EXPECT_EQ(std::signbit(value), code >= 32768);
    EXPECT_EQ(fp16_encode(value), c);
    EXPECT_EQ(fp16_encode_sat(value), magnitude == 0x7C00 ? c - 1 : c);
  }
}

// All 2^16 upper halves × lower halves that hit every tie of both formats: the expected code is
// found by comparing with the two neighbouring codes in double.
template <class Decode>
uint16_t nearest_16(float x, uint16_t below, Decode decode, double overflow_value) {
  const double magnitude = std::fabs(static_cast<double>(x));
  const uint16_t above = static_cast<uint16_t>(below + 1);
  const double low = static_cast<double>(decode(below));
  double high = static_cast<double>(decode(above));
  if (std::isinf(high)) high = overflow_value;  // the code above in an unbounded format
  const double to_low = magnitude - low;
  const double to_high = high - magnitude;
  if (to_low != to_high) return to_low < to_high ? below : above;
  return below % 2 == 0 ? below : above;
}

TEST(SixteenBit, EncodeIsNearestEvenOverAllUpperHalves) {
  const uint32_t lows[] = {0x0000, 0x0001, 0x0FFF, 0x1000, 0x1001, 0x2000, 0x3000, 0x5000,
                           0x7000, 0x7FFF, 0x8000, 0x8001, 0x9000, 0xD000, 0xF000, 0xFFFF};
  for (uint32_t top = 0; top < 65536; ++top) {
    for (uint32_t low : lows) {
      const float x = float_from_bits((top << 16) | low);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(bf16_decode(bf16_encode(x))));
        ASSERT_TRUE(std::isnan(fp16_decode(fp16_encode(x))));
        ASSERT_EQ(std::signbit(bf16_decode(bf16_encode(x))), std::signbit(x));
        ASSERT_EQ(std::signbit(fp16_decode(fp16_encode(x))), std::signbit(x));
        continue;
      }
      const uint16_t sign = static_cast<uint16_t>((top & 0x8000u));
      if (std::isinf(x)) {
        ASSERT_EQ(bf16_encode(x), sign | 0x7F80);
        ASSERT_EQ(fp16_encode(x), sign | 0x7C00);
        continue;
      }
      const uint16_t bf16_below = static_cast<uint16_t>(top & 0x7FFFu);
      ASSERT_EQ(bf16_encode(x), sign | nearest_16(x, bf16_below, bf16_decode, std::ldexp(1.0, 128)))
          << x;
      // The FP16 code at or below |x|, by bisection over the ordered codes 0 … 65504.
      uint16_t lo = 0, hi = 0x7BFF;
      while (lo < hi) {
        const uint16_t mid = static_cast<uint16_t>((lo + hi + 1) / 2);
        if (static_cast<double>(fp16_decode(mid)) <= std::fabs(static_cast<double>(x))) {
          lo = mid;
        } else {
          hi = static_cast<uint16_t>(mid - 1);
        }
      }
      const uint16_t expected = nearest_16(x, lo, fp16_decode, 65536.0);
      ASSERT_EQ(fp16_encode(x), sign | expected) << x;
      ASSERT_EQ(fp16_encode_sat(x), sign | (expected == 0x7C00 ? 0x7BFF : expected)) << x;
    }
  }
}

TEST(Fp16, OverflowBoundary) {
  EXPECT_EQ(fp16_encode(65504.0f), 0x7BFF);
  EXPECT_EQ(fp16_encode(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(fp16_encode(65520.0f), 0x7C00);
  EXPECT_EQ(fp16_encode_sat(65520.0f), 0x7BFF);
  EXPECT_EQ(fp16_encode_sat(-kInf), 0xFBFF);
  EXPECT_TRUE(std::isnan(fp16_decode(fp16_encode_sat(kNan))));
}

}  // namespace
}  // namespace vca::spec
