// SPDX-License-Identifier: Apache-2.0
// The chip models: vectors worked by hand from the rules in mma_model.hpp, and random groups
// against an integer implementation that starts from the code bits and shares nothing with the
// one under test.
#include "spec/mma_model.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "spec/arith.hpp"
#include "spec/codes.hpp"

namespace vca::spec {
namespace {

__extension__ typedef __int128 Wide;

constexpr float kInf = std::numeric_limits<float>::infinity();

uint32_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 32);
}

// ---- the independent implementation --------------------------------------------------------

// value = (−1)^negative · significand · 2^(exponent − fraction_bits), exponent as the field says
// (field 0 counts as 1).
struct Operand {
  bool negative;
  uint32_t significand;
  int exponent;
  int fraction_bits;
};

Operand parse(uint32_t code, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const uint32_t field = (code >> fraction_bits) & ((1u << exponent_bits) - 1u);
  const uint32_t fraction = code & ((1u << fraction_bits) - 1u);
  return {((code >> (exponent_bits + fraction_bits)) & 1u) != 0,
          field == 0 ? fraction : fraction | (1u << fraction_bits),
          (field == 0 ? 1 : static_cast<int>(field)) - bias, fraction_bits};
}

// Magnitude · 2^(shift), rounded towards zero.
Wide shifted(Wide magnitude, int shift) {
  if (shift >= 0) return shift < 60 ? magnitude << shift : Wide{0};
  return shift > -120 ? magnitude >> -shift : Wide{0};
}

uint32_t reference_group(const std::vector<Operand>& a, const std::vector<Operand>& b, uint32_t c,
                         int frac_bits, int out_bits) {
  const Operand acc = parse(c, 8, 23);
  int max_exponent = acc.exponent;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].significand == 0 || b[i].significand == 0) continue;
    max_exponent = std::max(max_exponent, a[i].exponent + b[i].exponent);
  }
  // Units of 2^(max_exponent − frac_bits).
  Wide sum = shifted(acc.significand, acc.exponent - max_exponent + frac_bits - 23);
  if (acc.negative) sum = -sum;
  for (size_t i = 0; i < a.size(); ++i) {
    const Wide product = Wide{a[i].significand} * b[i].significand;
    const int exponent = a[i].exponent + b[i].exponent - a[i].fraction_bits - b[i].fraction_bits;
    const Wide term = shifted(product, exponent - max_exponent + frac_bits);
    sum += a[i].negative != b[i].negative ? -term : term;
  }
  if (sum == 0) return 0;
  const bool negative = sum < 0;
  uint64_t magnitude = static_cast<uint64_t>(negative ? -sum : sum);
  int exponent = max_exponent - frac_bits;  // of the unit
  int top = 63;
  while (((magnitude >> top) & 1u) == 0) --top;
  const int value_exponent = std::max(exponent + top, -126);
  const int drop = value_exponent - out_bits - exponent;  // low bits below the output grid
  if (drop > 0) magnitude = drop < 64 ? (magnitude >> drop) << drop : 0;
  if (magnitude == 0) return 0;
  // As FP32 bits: the significand is magnitude · 2^(exponent − value_exponent + 23).
  const int to_fp32 = exponent - value_exponent + 23;
  const uint64_t significand = to_fp32 >= 0 ? magnitude << to_fp32 : magnitude >> -to_fp32;
  uint32_t bits = 0;
  if (value_exponent > 127) {
    bits = 0x7F800000u;
  } else if (significand < 0x800000u) {
    bits = static_cast<uint32_t>(significand);  // subnormal
  } else {
    bits = (static_cast<uint32_t>(value_exponent + 127) << 23) |
           static_cast<uint32_t>(significand & 0x7FFFFFu);
  }
  return bits | (negative ? 0x80000000u : 0u);
}

struct Format {
  int exponent_bits;
  int fraction_bits;
};

Format format_of(Instr instr) {
  if (instr == Instr::bf16) return {8, 7};
  if (instr == Instr::mean_tf32) return {8, 10};
  return {4, 3};
}

float decode(uint32_t code, Instr instr) {
  if (instr == Instr::bf16) return bf16_decode(static_cast<uint16_t>(code));
  if (instr == Instr::mean_tf32) return float_from_bits(code << 13);
  return e4m3_decode(static_cast<uint8_t>(code));
}

bool is_special(uint32_t code, Instr instr) {
  const float value = decode(code, instr);
  return !std::isfinite(value);
}

// Random finite code. `spread` limits how far the exponent field may stray from the middle.
uint32_t random_code(uint64_t& state, Instr instr, int spread) {
  const Format f = format_of(instr);
  const int bits = 1 + f.exponent_bits + f.fraction_bits;
  for (;;) {
    uint32_t code = next_random(state) & ((1u << bits) - 1u);
    if (next_random(state) % 8 == 0) code &= 1u << (bits - 1);  // zero
    if (f.exponent_bits == 8 && spread < 127) {
      const uint32_t field = 127u - static_cast<uint32_t>(spread) +
                             next_random(state) % (2u * static_cast<uint32_t>(spread) + 1u);
      code = (code & ~(0xFFu << f.fraction_bits)) | (field << f.fraction_bits);
    }
    if (!is_special(code, instr)) return code;
  }
}

float random_accumulator(uint64_t& state) {
  const uint32_t bits = next_random(state);
  switch (next_random(state) % 6) {
    case 0:
      return 0.0f;
    case 1: {  // anything finite, subnormals included
      const float x = float_from_bits(bits);
      return std::isfinite(x) ? x : 1.0f;
    }
    case 2:
      return float_from_bits(bits & 0x807FFFFFu);
    default: {  // near the products
      const uint32_t field = 127u - 20u + next_random(state) % 41u;
      return float_from_bits((bits & 0x807FFFFFu) | (field << 23));
    }
  }
}

void check_random(Target target, Instr instr, int k, int n, int spread, uint64_t seed) {
  const MmaModel model = mma_model(target, instr);
  ASSERT_EQ(model.kind, MmaKind::fused_trunc);
  const Format f = format_of(instr);
  uint64_t state = seed;
  const int ldb = n + 3;
  std::vector<uint32_t> a_codes, b_codes;
  std::vector<float> a, b, c;
  for (int i = 0; i < k; ++i) {
    a_codes.push_back(random_code(state, instr, spread));
    a.push_back(decode(a_codes.back(), instr));
  }
  for (int i = 0; i < k * ldb; ++i) {
    b_codes.push_back(random_code(state, instr, spread));
    b.push_back(decode(b_codes.back(), instr));
  }
  for (int j = 0; j < n; ++j) c.push_back(random_accumulator(state));
  std::vector<uint32_t> want;
  const int group = model.k_step / model.k_split;
  for (int j = 0; j < n; ++j) {
    uint32_t acc = float_bits(c[static_cast<size_t>(j)]);
    for (int k0 = 0; k0 < k; k0 += group) {
      std::vector<Operand> x, y;
      for (int i = k0; i < std::min(k, k0 + group); ++i) {
        x.push_back(parse(a_codes[static_cast<size_t>(i)], f.exponent_bits, f.fraction_bits));
        y.push_back(
            parse(b_codes[static_cast<size_t>(i * ldb + j)], f.exponent_bits, f.fraction_bits));
      }
      if ((acc & 0x7F800000u) == 0x7F800000u) break;  // overflowed: stays, tested elsewhere
      acc = reference_group(x, y, acc, model.frac_bits, model.out_mantissa_bits);
    }
    want.push_back(acc);
  }
  mma_accumulate_f32(model, a.data(), b.data(), ldb, k, n, c.data());
  for (int j = 0; j < n; ++j) {
    const uint32_t got = float_bits(c[static_cast<size_t>(j)]);
    const uint32_t expected = want[static_cast<size_t>(j)];
    if (((expected & 0x7F800000u) == 0x7F800000u)) {
      ASSERT_FALSE(std::isfinite(float_from_bits(got)));
      continue;
    }
    ASSERT_EQ(got, expected) << to_string(target) << " k " << k << " column " << j << ": "
                             << float_from_bits(got) << " want " << float_from_bits(expected);
  }
}

TEST(FusedTrunc, RandomGroupsAgreeWithTheIntegerImplementation) {
  uint64_t seed = 1;
  for (Target target : {Target::sm89, Target::sm90, Target::sm100, Target::sm103, Target::sm120}) {
    for (Instr instr : {Instr::qk_e4m3, Instr::pv_e4m3, Instr::mean_tf32, Instr::bf16}) {
      for (int k : {1, 7, 8, 16, 31, 32, 33, 64, 100, 128}) {
        for (int spread : {3, 12, 126}) check_random(target, instr, k, 70, spread, ++seed);
      }
    }
  }
}

TEST(FusedTrunc, EveryE4m3PairInOneGroup) {
  const MmaModel model = mma_model(Target::sm90, Instr::pv_e4m3);
  std::vector<float> b;
  std::vector<uint32_t> codes;
  for (uint32_t code = 0; code < 256; ++code) {
    if (is_special(code, Instr::pv_e4m3)) continue;
    codes.push_back(code);
    b.push_back(e4m3_decode(static_cast<uint8_t>(code)));
  }
  for (uint32_t left : codes) {
    const float a = e4m3_decode(static_cast<uint8_t>(left));
    std::vector<float> c(b.size(), 0.37f);
    const int64_t n = static_cast<int64_t>(b.size());
    mma_accumulate_f32(model, &a, b.data(), n, 1, n, c.data());
    for (size_t j = 0; j < b.size(); ++j) {
      ASSERT_EQ(float_bits(c[j]), reference_group({parse(left, 4, 3)}, {parse(codes[j], 4, 3)},
                                                  float_bits(0.37f), 13, 13));
    }
  }
}

// ---- by hand -------------------------------------------------------------------------------

// One output: c + Σ a_i·b_i.
float one(Target target, Instr instr, float c, const std::vector<float>& a,
          const std::vector<float>& b) {
  mma_accumulate_f32(mma_model(target, instr), a.data(), b.data(), 1,
                     static_cast<int64_t>(a.size()), 1, &c);
  return c;
}
float hopper(float c, const std::vector<float>& a, const std::vector<float>& b) {
  return one(Target::sm90, Instr::pv_e4m3, c, a, b);
}

TEST(ByHand, SmallProductsVanishBesideALargeAccumulator) {
  // Unit 2⁻¹³ beside 1: one product of 2⁻¹³ counts, any number below it does not.
  EXPECT_EQ(hopper(1.0f, {0x1p-7f}, {0x1p-6f}), 1.0f + 0x1p-13f);
  const std::vector<float> tiny(32, 0x1p-7f);
  EXPECT_EQ(hopper(1.0f, tiny, tiny), 1.0f);
  // The same 32 alone are exact.
  EXPECT_EQ(hopper(0.0f, tiny, tiny), 0x1p-9f);
}

TEST(ByHand, TruncationIsTowardsZeroOnBothSides) {
  EXPECT_EQ(hopper(1.0f, {-0x1p-7f}, {0x1p-7f}), 1.0f);   // floor would give 1 − 2⁻¹³
  EXPECT_EQ(hopper(-1.0f, {0x1p-7f}, {0x1p-7f}), -1.0f);  // and here −1 + 2⁻¹³
  EXPECT_EQ(hopper(-1.0f - 0x1.8p-13f, {0.0f}, {0.0f}), -1.0f - 0x1p-13f);
}

TEST(ByHand, TheAccumulatorIsTruncatedEvenByZeroProducts) {
  EXPECT_EQ(hopper(1.0f + 0x1p-14f, {0.0f}, {1.0f}), 1.0f);
  EXPECT_EQ(hopper(0x1.fffffep0f, {0.0f}, {1.0f}), 0x1.fff8p0f);
  EXPECT_EQ(one(Target::sm100, Instr::pv_e4m3, 0x1.fffffep0f, {0.0f}, {1.0f}), 0x1.fffffep0f);
}

TEST(ByHand, ProductsAreNotNormalisedForTheAlignment) {
  // 1.75·1.75 = 3.0625 has exponent 0, so the unit is 2⁻¹³ and an accumulator of 2⁻¹³ survives
  // the cancellation; aligned to exponent 1 it would be lost.
  EXPECT_EQ(hopper(0x1p-13f, {1.75f, -1.75f}, {1.75f, 1.75f}), 0x1p-13f);
  EXPECT_EQ(hopper(0x1p-14f, {1.75f, -1.75f}, {1.75f, 1.75f}), 0.0f);
}

TEST(ByHand, SubnormalOperandsCountWithTheSmallestNormalExponent) {
  // 2⁻⁹ is the smallest E4M3 subnormal: exponent −6, so the unit is 2⁻¹⁹.
  EXPECT_EQ(hopper(0x1p-19f, {0x1p-9f}, {1.0f}), 0x1p-9f + 0x1p-19f);
  EXPECT_EQ(hopper(0x1p-20f, {0x1p-9f}, {1.0f}), 0x1p-9f);
  // As BF16 the same value is normal with exponent −9; F = 25 gives the unit 2⁻³⁴.
  EXPECT_EQ(one(Target::sm90, Instr::bf16, 0x1p-32f, {0x1p-9f}, {1.0f}), 0x1p-9f + 0x1p-32f);
}

TEST(ByHand, TheResultIsTruncatedAfterTheSum) {
  // 1 + 1 + 2⁻¹³: aligned exactly, but the sum has exponent 1 and 13 bits below it.
  EXPECT_EQ(hopper(0x1p-13f, {1.0f, 1.0f}, {1.0f, 1.0f}), 2.0f);
  EXPECT_EQ(hopper(0x1p-12f, {1.0f, 1.0f}, {1.0f, 1.0f}), 2.0f + 0x1p-12f);
  // FP32 output rounds towards zero too: 1 + 1.5 units in the last place.
  EXPECT_EQ(one(Target::sm100, Instr::bf16, 0x1.8p-23f, {1.0f}, {1.0f}), 1.0f + 0x1p-23f);
  EXPECT_EQ(one(Target::sm100, Instr::bf16, -0x1.8p-23f, {-1.0f}, {1.0f}), -1.0f - 0x1p-23f);
}

TEST(ByHand, AdaSumsTheTwoHalvesOfK32InOrder) {
  std::vector<float> a(32, 0.0f);
  const std::vector<float> b(32, 0x1p-7f);
  a[0] = 128.0f;
  a[1] = -128.0f;
  a[16] = 0x1p-7f;
  EXPECT_EQ(hopper(0.0f, a, b), 0.0f);  // one group: 2⁻¹⁴ is below the unit beside 1
  EXPECT_EQ(one(Target::sm89, Instr::pv_e4m3, 0.0f, a, b), 0x1p-14f);
  EXPECT_EQ(one(Target::sm100, Instr::pv_e4m3, 0.0f, a, b), 0x1p-14f);  // F = 25 keeps it
}

TEST(ByHand, IntegersWithinTheWidthAreExact) {
  // Products of small integers, sum below 2¹⁴: every term and the sum are multiples of the unit
  // of the largest term (15·15 has exponent 6, unit 2⁻⁷).
  std::vector<float> a, b;
  float exact = 5.0f;
  for (int i = 0; i < 32; ++i) {
    a.push_back(static_cast<float>(i % 16));
    b.push_back(static_cast<float>((7 * i) % 16 - 5));
    exact += a.back() * b.back();
  }
  EXPECT_EQ(hopper(5.0f, a, b), exact);
}

TEST(ByHand, RowSumsOfCodes) {
  // The indicator columns: 128 codes of 448 in four k32 steps are exact (57,344 = 7·2¹³).
  const std::vector<float> codes(128, 448.0f), ones(128, 1.0f);
  EXPECT_EQ(hopper(0.0f, codes, ones), 57344.0f);
}

TEST(ByHand, OverflowInfAndNan) {
  const float huge = 0x1.fep127f;
  EXPECT_EQ(one(Target::sm90, Instr::bf16, huge, {0x1p64f}, {0x1p63f}), kInf);
  EXPECT_EQ(one(Target::sm90, Instr::bf16, -huge, {-0x1p64f}, {0x1p63f}), -kInf);
  EXPECT_EQ(one(Target::sm90, Instr::bf16, 0.0f, {kInf}, {-1.0f}), -kInf);
  // A product beyond FLT_MAX that cancels is harmless: the group is summed before rounding.
  EXPECT_EQ(one(Target::sm90, Instr::bf16, 0.0f, {0x1p100f, -0x1p100f}, {0x1p100f, 0x1p100f}),
            0.0f);
  const auto bits_of = [](float x) { return float_bits(x); };
  EXPECT_EQ(bits_of(one(Target::sm90, Instr::bf16, 0.0f, {kInf}, {0.0f})), 0x7FFFFFFFu);
  EXPECT_EQ(bits_of(one(Target::sm90, Instr::bf16, -kInf, {kInf}, {1.0f})), 0x7FFFFFFFu);
  EXPECT_EQ(bits_of(hopper(1.0f, {0.0f}, {e4m3_decode(0x7F)})), 0x7FFFFFFFu);
  EXPECT_EQ(bits_of(hopper(1.0f, {e4m3_decode(0xFF)}, {0.0f})), 0x7FFFFFFFu);
  EXPECT_EQ(bits_of(hopper(1.0f, {1.0f}, {e4m3_decode(0x7F)})), 0x7FFFFFFFu);
  EXPECT_EQ(hopper(kInf, {1.0f}, {1.0f}), kInf);
}

TEST(ByHand, ANanStaysInItsColumn) {
  const float nan = e4m3_decode(0x7F);
  const std::vector<float> a = {1.0f, 0.0f}, b = {1.0f, 2.0f, 3.0f, 1.0f, nan, 1.0f};
  std::vector<float> c = {0.5f, 0.5f, 0.5f};
  mma_accumulate_f32(mma_model(Target::sm90, Instr::pv_e4m3), a.data(), b.data(), 3, 2, 3,
                     c.data());
  EXPECT_EQ(c[0], 1.5f);
  EXPECT_EQ(float_bits(c[1]), 0x7FFFFFFFu);
  EXPECT_EQ(c[2], 3.5f);
}

}  // namespace
}  // namespace vca::spec
