// SPDX-License-Identifier: Apache-2.0
#include "spec/arith.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace vca::spec {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kTiny = std::numeric_limits<float>::denorm_min();
const float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 32);
}

std::vector<float> special_floats() {
  std::vector<float> out;
  for (float x : {0.0f, kTiny, 2 * kTiny, 1.17549435e-38f, 1.1754942e-38f, 1e-30f, 0.1f, 0.5f, 1.0f,
                  1.0000001f, 1.5f, 3.0f, 126.0f, 16777215.0f, 16777216.0f, 1e30f, kMax, kInf}) {
    out.push_back(x);
    out.push_back(-x);
  }
  out.push_back(kNan);
  return out;
}

// The processor's own directed rounding as the oracle. The volatile accesses pin the operation
// between the two changes of the mode.
template <class Operation>
float with_rounding(int mode, float a, float b, Operation operation) {
  volatile float x = a;
  volatile float y = b;
  std::fesetround(mode);
  volatile float result = operation(x, y);
  std::fesetround(FE_TONEAREST);
  return result;
}

void expect_same(float got, float want, float a, float b) {
  if (std::isnan(want)) {
    ASSERT_TRUE(std::isnan(got)) << a << " " << b;
  } else {
    ASSERT_EQ(float_bits(got), float_bits(want)) << a << " " << b << ": " << got << " " << want;
  }
}

void check_directed(float a, float b) {
  const auto product = [](float x, float y) { return x * y; };
  const auto difference = [](float x, float y) { return x - y; };
  expect_same(mul_ru(a, b), with_rounding(FE_UPWARD, a, b, product), a, b);
  expect_same(sub_rd(a, b), with_rounding(FE_DOWNWARD, a, b, difference), a, b);
}

TEST(Directed, SpecialValuesAgreeWithTheHardware) {
  const std::vector<float> values = special_floats();
  for (float a : values) {
    for (float b : values) check_directed(a, b);
  }
}

TEST(Directed, RandomBitPatternsAgreeWithTheHardware) {
  uint64_t state = 1;
  for (int i = 0; i < 300000; ++i) {
    const uint32_t a = next_random(state);
    const uint32_t b = next_random(state);
    check_directed(float_from_bits(a), float_from_bits(b));
    // Exponents close to each other, where a difference has rest bits or cancels.
    const uint32_t near = (a & 0x7F800000u) + (b & 0x81FFFFFFu) - 0x00800000u;
    check_directed(float_from_bits(a), float_from_bits(near));
    // Products near the bottom of the range.
    check_directed(float_from_bits(a),
                   float_from_bits((0x7F000000u - (a & 0x7F800000u)) / 2 + b % 1024));
  }
}

TEST(Directed, FusedMultiplyAddDownwardsAgreesWithTheHardware) {
  const auto check = [](float a, float b, float c) {
    const float want = with_rounding(FE_DOWNWARD, a, b, [&](float x, float y) {
      volatile float z = c;
      return std::fma(x, y, z);
    });
    expect_same(fma_rd(a, b, c), want, a, b);
  };
  const std::vector<float> values = special_floats();
  for (float a : values)
    for (float b : values)
      for (float c : values) check(a, b, c);
  uint64_t state = 3;
  for (int i = 0; i < 300000; ++i) {
    const uint32_t bits = next_random(state);
    const float a = float_from_bits((bits & 0x807FFFFFu) | (64u + next_random(state) % 96u) << 23);
    const float b = float_from_bits(next_random(state) % 0x3F000000u + 0x20000000u);
    check(a, b, float_from_bits((next_random(state) & 0x807FFFFFu) | (i % 255u) << 23));
    check(a, b, -a * b);  // nearly cancels
    check(-kScoreMagic, std::fabs(a), 126.0f - b);
  }
}

// docs/numerics.md E2: with the score rounded up and the bias down no code can exceed 126, whatever
// the scale and the scores.
TEST(Directed, NoCodeAbove126) {
  uint64_t state = 2;
  for (int i = 0; i < 200000; ++i) {
    const float scale =
        std::ldexp(1.0f + static_cast<float>(next_random(state) % 8388608) * 0x1p-23f,
                   -static_cast<int>(next_random(state) % 40));
    const float top =
        static_cast<float>(static_cast<int32_t>(next_random(state) % 4128769) - 2064384);
    const float below = top - static_cast<float>(next_random(state) % 3);
    const float m = ceil_sixteenth(mul_ru(top, scale));
    const float bias = sub_rd(126.0f, m);
    ASSERT_LE(fma_rn(top, scale, bias), 126.0f);
    ASSERT_LE(fma_rn(below, scale, bias), 126.0f);
    ASSERT_LE(f2ip_code(fma_rn(top, scale, bias)), 126);
    // With the offset of INT8 dots.
    ASSERT_LE(fma_rn(kScoreMagic + top, scale, fma_rd(-kScoreMagic, scale, bias)), 126.0f);
  }
}

TEST(Tf32, NearestTiesAwayOverAllUpperHalves) {
  for (uint32_t top = 0; top < 65536; ++top) {
    for (uint32_t low :
         {0x0000u, 0x0FFFu, 0x1000u, 0x1001u, 0x2FFFu, 0x3000u, 0x7FFFu, 0xF000u, 0xFFFFu}) {
      const uint32_t bits = (top << 16) | low;
      const float x = float_from_bits(bits);
      const float y = rna_tf32(x);
      if (!std::isfinite(x)) {
        ASSERT_EQ(float_bits(y), bits);
        continue;
      }
      // On magnitudes: the grid point below, and up when at least halfway.
      const uint32_t below = bits & 0xFFFFE000u;
      const uint32_t expected = (bits & 0x1FFFu) >= 0x1000u ? below + 0x2000u : below;
      ASSERT_EQ(float_bits(y), expected);
      ASSERT_EQ(float_bits(rna_tf32(y)), float_bits(y));
    }
  }
  EXPECT_EQ(rna_tf32(1.0f + 0x1p-11f), 1.0f + 0x1p-10f);
  EXPECT_EQ(rna_tf32(-1.0f - 0x1p-11f), -1.0f - 0x1p-10f);
  EXPECT_EQ(rna_tf32(kMax), kInf);
}

TEST(CeilSixteenth, ExactBelowTwoToThe18AndAboveXUpToTwoToThe23) {
  for (uint32_t top = 0; top < 65536; ++top) {
    for (uint32_t low : {0x0000u, 0x0001u, 0x5555u, 0x8000u, 0xFFFFu}) {
      const float x = float_from_bits((top << 16) | low);
      const float y = ceil_sixteenth(x);
      if (std::isnan(x)) {
        ASSERT_TRUE(std::isnan(y));
      } else if (std::fabs(x) < 0x1p18f) {
        ASSERT_EQ(static_cast<double>(y), std::ceil(static_cast<double>(x) * 16.0) / 16.0) << x;
      } else if (std::fabs(x) < 0x1p23f) {
        // x + 1.5 * 2^19 is below 2^24, where floats are at most 1 apart. From 2^19 on x is a
        // multiple of 1/16 itself, and between -2^19 and -2^18 the sum has room for one bit more.
        ASSERT_GE(y, x);
        ASSERT_LE(y, x + 1.0f);
        ASSERT_EQ(std::fmod(y, x < 0.0f ? 0.03125f : 0.0625f), 0.0f) << x;
      }
    }
  }
  EXPECT_EQ(ceil_sixteenth(-0.0625f), -0.0625f);
  EXPECT_EQ(ceil_sixteenth(std::nextafter(0.0625f, 1.0f)), 0.125f);
  EXPECT_EQ(ceil_sixteenth(-0.0001f), 0.0f);
}

double relative_error(float x) {
  const double exact = std::exp2(static_cast<double>(x));
  return std::fabs(static_cast<double>(exp2_cpu(x)) - exact) / exact;
}

// The bound 2.0e-7, relative to 2^f in [0.707, 1.414], by its parts: the fit of (2^f − 1)/f 9.2e-8;
// the last addition 2⁻²⁴ = 6.0e-8 (2⁻²⁵/0.707 = 4.2e-8 below 1); the product q·f <= 0.42 2⁻²⁶/0.707
// = 2.1e-8; the last addition inside q, halved by f, 2.1e-8; the earlier Horner steps, quartered
// and less by f, under 0.5e-8 together. Measured over every float of [−1, −1e-9]: 1.94e-7.
TEST(Exp2Cpu, ErrorBound) {
  double worst = 0;
  for (uint32_t bits = 0x80000000u; bits <= 0xBF800000u; bits += 173) {
    worst = std::max(worst, relative_error(float_from_bits(bits)));
  }
  for (uint32_t bits = 0xBEFF0000u; bits <= 0xBF010000u; ++bits) {  // around −1/2
    worst = std::max(worst, relative_error(float_from_bits(bits)));
  }
  for (int i = -126 * 8192; i <= 16 * 8192; ++i) {
    worst = std::max(worst, relative_error(static_cast<float>(i) / 8192.0f));
  }
  EXPECT_LE(worst, 2.0e-7);
  EXPECT_GT(worst, 1.0e-7);  // the sample meets the hard places
}

TEST(Exp2Cpu, ExactPowersAndEnds) {
  for (int n = -126; n <= 16; ++n) {
    EXPECT_EQ(exp2_cpu(static_cast<float>(n)), std::ldexp(1.0f, n)) << n;
  }
  EXPECT_EQ(float_bits(exp2_cpu(-kInf)), 0u);
  EXPECT_EQ(float_bits(exp2_cpu(std::nextafter(-126.0f, -kInf))), 0u);
  EXPECT_EQ(float_bits(exp2_cpu(-kMax)), 0u);
  EXPECT_GE(exp2_cpu(std::nextafter(-126.0f, 0.0f)), 0x1p-126f);
  EXPECT_EQ(exp2_cpu(-0.0f), 1.0f);
  EXPECT_EQ(exp2_cpu(kInf), 65536.0f);
  EXPECT_TRUE(std::isnan(exp2_cpu(kNan)));
}

TEST(FmaSat, ClampsAndDropsNan) {
  EXPECT_EQ(fma_sat(2.0f, 0.25f, 0.25f), 0.75f);
  EXPECT_EQ(fma_sat(2.0f, 1.0f, 0.25f), 1.0f);
  EXPECT_EQ(float_bits(fma_sat(-2.0f, 1.0f, 0.25f)), 0u);
  EXPECT_EQ(float_bits(fma_sat(-0.0f, 1.0f, -0.0f)), 0u);
  EXPECT_EQ(float_bits(fma_sat(kNan, 1.0f, 0.5f)), 0u);
  EXPECT_EQ(fma_sat(kInf, 1.0f, 0.5f), 1.0f);
}

// exp2_code of t = s·a, relative to a maximum m.
float code_exponential(float s, float a, float bias) {
  return exp2_code(s, exp2_code_factor(a), exp2_code_offset(bias));
}

// The cubic's 7.48·10⁻⁵, three FMAs of half an ulp, and the roundings of v and of the offset: half
// an ulp of each, 128 octaves a unit.
TEST(Exp2Code, RelativeError) {
  for (const float m : {0.0f, 3.5f, -40.0f, 900.0f, -5000.0f, 60000.0f}) {
    const float bias = sub_rd(70.4588399f, m);
    const double half_ulp = 0x1p-25 * (1.0 + 2.0 * std::fabs(exp2_code_offset(bias)));
    const double bound = 7.48e-5 + 3 * 0x1p-24 + std::log(2.0) * 128.0 * half_ulp;
    double largest = 0.0;
    for (int i = 0; i <= 20000; ++i) {
      const float t = m - 1000.0f * static_cast<float>(i) / 20000.0f;
      const double exact =
          std::exp2((static_cast<double>(t) + static_cast<double>(bias)) / 8.0);  // y >= -117
      const double error = std::fabs(code_exponential(t, 1.0f, bias) / exact - 1.0);
      largest = std::max(largest, error);
    }
    EXPECT_LE(largest, bound) << m;
    if (m == 0.0f) {
      EXPECT_GE(largest, 7.4e-5);  // the bound is no idle one
    }
  }
}

TEST(Exp2Code, OctavesJoinAndTheRangeEnds) {
  // Downwards from the maximum, over 118 octaves: never up by more than the roundings.
  float last = code_exponential(0.0f, 1.0f, 70.4588399f);
  EXPECT_NEAR(last, 448.0f, 448.0f * 8e-5f);
  for (int i = 1; i <= 120000; ++i) {
    const float now = code_exponential(-static_cast<float>(i) / 120.0f, 1.0f, 70.4588399f);
    ASSERT_LE(now, last * (1.0f + 0x1p-22f)) << i;
    last = now;
  }
  // Below 2^-118, and for scores that are no numbers: the floor.
  for (const float s : {-2000.0f, -1e9f, -kMax, -kInf, kNan})
    EXPECT_NEAR(code_exponential(s, 1.0f, 70.0f), 0x1p-118f, 0x1p-118f * 8e-5f) << s;
  EXPECT_EQ(e4m3_encode(code_exponential(-2000.0f, 1.0f, 70.0f)), 0);
  EXPECT_NEAR(code_exponential(1e9f, 1.0f, 70.0f), 1024.0f, 1024.0f * 8e-5f);
}

// The same loop compiled for several vector widths must give the same bits.
#if defined(__x86_64__)
#if defined(__clang__)
#define VCA_TEST_WIDE(isa) __attribute__((noinline, target(isa)))
#else
#define VCA_TEST_WIDE(isa) __attribute__((noinline, target(isa), optimize("O3")))
#endif

VCA_TEST_WIDE("sse2") void exp2_sse2(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = exp2_cpu(x[i]);
}
VCA_TEST_WIDE("avx2,fma") void exp2_avx2(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = exp2_cpu(x[i]);
}
VCA_TEST_WIDE("avx512f,fma") void exp2_avx512(const float* x, float* y, int n) {
  for (int i = 0; i < n; ++i) y[i] = exp2_cpu(x[i]);
}

TEST(Exp2Cpu, SameBitsAtEveryVectorWidth) {
  std::vector<float> x = {0.0f, -0.0f, -kInf, kInf, -126.0f, -127.0f, kNan, 16.0f, -0.5f};
  uint64_t state = 3;
  for (int i = 0; i < 200000; ++i) x.push_back(float_from_bits(next_random(state)));
  for (int i = 0; i < 200000; ++i) {
    x.push_back(-static_cast<float>(next_random(state)) * 0x1p-25f);
  }
  const int n = static_cast<int>(x.size());
  std::vector<float> scalar(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    volatile float one = x[i];
    scalar[i] = exp2_cpu(one);
  }
  const auto check = [&](void (*wide)(const float*, float*, int), const char* name) {
    std::vector<float> y(x.size());
    wide(x.data(), y.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(float_bits(y[i]), float_bits(scalar[i])) << name << " at " << x[i];
    }
  };
  check(exp2_sse2, "sse2");
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) check(exp2_avx2, "avx2");
  if (__builtin_cpu_supports("avx512f")) check(exp2_avx512, "avx512f");
}
#endif

// ---- sums ----------------------------------------------------------------------------------

float level_by_level(std::vector<float> s) {
  if (s.empty()) return 0.0f;
  while (s.size() > 1) {
    std::vector<float> next;
    for (size_t i = 0; i + 1 < s.size(); i += 2) next.push_back(s[i] + s[i + 1]);
    if (s.size() % 2 == 1) next.push_back(s.back());
    s = next;
  }
  return s[0];
}

float split_at_power_of_two(const float* x, int64_t n) {
  if (n == 1) return x[0];
  int64_t half = 1;
  while (half * 2 < n) half *= 2;
  return split_at_power_of_two(x, half) + split_at_power_of_two(x + half, n - half);
}

std::vector<float> wild_floats(int64_t n, uint64_t seed) {  // sums of these depend on the order
  std::vector<float> out;
  uint64_t state = seed;
  for (int64_t i = 0; i < n; ++i) {
    const float mantissa = static_cast<float>(static_cast<int32_t>(next_random(state))) * 0x1p-31f;
    out.push_back(std::ldexp(mantissa, static_cast<int>(next_random(state) % 20)));
  }
  return out;
}

TEST(TreeSum, AllFormsAreTheDefinition) {
  int order_matters = 0;
  for (int64_t n = 0; n <= 300; ++n) {
    const std::vector<float> x = wild_floats(n, 100 + static_cast<uint64_t>(n));
    const float want = level_by_level(x);
    ASSERT_EQ(float_bits(tree_sum(x.data(), n)), float_bits(want)) << n;
    ASSERT_EQ(float_bits(tree_sum(n, [&x](int64_t i) { return x[static_cast<size_t>(i)]; })),
              float_bits(want));
    if (n > 0) {
      ASSERT_EQ(float_bits(split_at_power_of_two(x.data(), n)), float_bits(want));
    }
    float serial = 0;
    for (float v : x) serial += v;
    order_matters += serial != want;
  }
  EXPECT_GT(order_matters, 200);  // otherwise the comparison above says nothing
}

TEST(TreeSum, Stride) {
  const std::vector<float> x = wild_floats(700, 5);
  std::vector<float> every_seventh;
  for (size_t i = 0; i < x.size(); i += 7) every_seventh.push_back(x[i]);
  EXPECT_EQ(tree_sum(x.data(), 100, 7), level_by_level(every_seventh));
}

TEST(TreeSum, RowsAreColumnwiseTheSameTree) {
  for (int64_t n : {0, 1, 2, 3, 7, 8, 9, 127, 128, 129, 1000}) {
    const int64_t d = 5;
    const std::vector<float> x = wild_floats(n * d, 40 + static_cast<uint64_t>(n));
    std::vector<float> out(static_cast<size_t>(d), kNan);
    tree_sum_rows(
        [&x](int64_t i, float* dst) {
          for (int64_t c = 0; c < d; ++c) dst[c] = x[static_cast<size_t>(i * d + c)];
        },
        n, d, out.data());
    for (int64_t c = 0; c < d; ++c) {
      ASSERT_EQ(float_bits(out[static_cast<size_t>(c)]), float_bits(tree_sum(x.data() + c, n, d)));
    }
  }
}

TEST(RnInverse, NearestForEveryCount) {
  for (int64_t n = 1; n <= 200000; ++n) {
    const double exact = 1.0 / static_cast<double>(n);
    const double got = static_cast<double>(rn_inverse(n));
    ASSERT_LE(std::fabs(got - exact), std::ldexp(1.0, std::ilogb(exact) - 24)) << n;
  }
}

}  // namespace
}  // namespace vca::spec
