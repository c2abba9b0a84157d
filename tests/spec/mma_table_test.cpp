// SPDX-License-Identifier: Apache-2.0
// The table of chip models, the serial and the integer kind, and the row-by-row product.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "spec/arith.hpp"
#include "spec/codes.hpp"
#include "spec/mma_model.hpp"

namespace vca::spec {
namespace {

uint32_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return static_cast<uint32_t>(state >> 32);
}

float random_e4m3(uint64_t& state) {
  for (;;) {
    const float value = e4m3_decode(static_cast<uint8_t>(next_random(state)));
    if (is_finite(value)) return value;
  }
}

// ---- serial and integer --------------------------------------------------------------------

TEST(Serial, IsTheWrittenOrderAndForE4m3AlsoTheFma) {
  uint64_t state = 11;
  const int k = 128, n = 37;
  std::vector<float> a, b, c(static_cast<size_t>(n), 0.1f);
  for (int i = 0; i < k; ++i) a.push_back(random_e4m3(state));
  for (int i = 0; i < k * n; ++i) {
    b.push_back(random_e4m3(state));
  }
  std::vector<float> want = c;
  for (int j = 0; j < n; ++j) {
    float fused = want[static_cast<size_t>(j)];
    for (int i = 0; i < k; ++i) {
      const float x = a[static_cast<size_t>(i)];
      const float y = b[static_cast<size_t>(i * n + j)];
      want[static_cast<size_t>(j)] = add(want[static_cast<size_t>(j)], mul(x, y));
      fused = fma_rn(x, y, fused);  // 8-bit products are exact, so a backend may use either
    }
    ASSERT_EQ(float_bits(fused), float_bits(want[static_cast<size_t>(j)]));
  }
  mma_accumulate_f32(mma_model(Target::cpu, Instr::pv_e4m3), a.data(), b.data(), n, k, n, c.data());
  EXPECT_EQ(c, want);
}

TEST(Dot, IsTheRowFunctionForEveryRow) {
  uint64_t state = 12;
  const int m = 5, n = 9, k = 40;
  std::vector<float> a, b, c(static_cast<size_t>(m * n), 0.25f);
  for (int i = 0; i < m * k; ++i) a.push_back(random_e4m3(state));
  for (int i = 0; i < k * n; ++i) b.push_back(random_e4m3(state));
  std::vector<float> want = c;
  const MmaModel model = mma_model(Target::sm90, Instr::pv_e4m3);
  for (int r = 0; r < m; ++r) {
    mma_accumulate_f32(model, a.data() + r * k, b.data(), n, k, n, want.data() + r * n);
  }
  mma_dot_f32(model, a.data(), k, b.data(), n, m, n, k, c.data(), n);
  EXPECT_EQ(c, want);
}

TEST(Integers, ExactAtTheExtremes) {
  const int k = 66000;
  const std::vector<int8_t> low(k, -127), high(k, 127);
  const std::vector<uint8_t> top(k, 255);
  int32_t sum = 0;
  mma_accumulate_i32(low.data(), high.data(), 1, k, 1, &sum);
  EXPECT_EQ(sum, -127 * 127 * k);
  sum = 0;
  mma_accumulate_i32(top.data(), low.data(), 1, k, 1, &sum);
  EXPECT_EQ(sum, -255 * 127 * k);
  sum = 7;
  mma_accumulate_i32(high.data(), high.data(), 1, 128, 1, &sum);
  EXPECT_EQ(sum, 127 * 127 * 128 + 7);
}

TEST(Integers, RandomAgainstInt64) {
  uint64_t state = 13;
  const int k = 129, n = 21, ldb = 24;
  std::vector<int8_t> a, b;
  std::vector<uint8_t> u;
  for (int i = 0; i < k; ++i) {
    a.push_back(static_cast<int8_t>(next_random(state)));
    u.push_back(static_cast<uint8_t>(next_random(state)));
  }
  for (int i = 0; i < k * ldb; ++i) b.push_back(static_cast<int8_t>(next_random(state)));
  std::vector<int32_t> c(n, 1), d(n, -1);
  mma_accumulate_i32(a.data(), b.data(), ldb, k, n, c.data());
  mma_accumulate_i32(u.data(), b.data(), ldb, k, n, d.data());
  for (int j = 0; j < n; ++j) {
    int64_t signed_sum = 1, unsigned_sum = -1;
    for (int i = 0; i < k; ++i) {
      const int64_t right = b[static_cast<size_t>(i * ldb + j)];
      signed_sum += a[static_cast<size_t>(i)] * right;
      unsigned_sum += u[static_cast<size_t>(i)] * right;
    }
    EXPECT_EQ(c[static_cast<size_t>(j)], signed_sum);
    EXPECT_EQ(d[static_cast<size_t>(j)], unsigned_sum);
  }
}

// ---- the table -----------------------------------------------------------------------------

TEST(Table, EveryPairIsDefinedAndConsistent) {
  for (Target target : kAllTargets) {
    for (Instr instr : kAllInstrs) {
      const MmaModel model = mma_model(target, instr);
      const std::string evidence = model.evidence;
      EXPECT_TRUE(evidence == "measured" || evidence == "published" || evidence == "assumed");
      EXPECT_EQ(model.measured, evidence == "measured");
      EXPECT_EQ(model.k_step, instr == Instr::bf16 ? 16 : instr == Instr::mean_tf32 ? 8 : 32);
      EXPECT_EQ(model.k_step % model.k_split, 0);
      const bool is_integer = instr == Instr::qk_int8 || instr == Instr::pv_int8;
      EXPECT_EQ(model.kind == MmaKind::exact_int32, is_integer);
      if (!is_integer) {
        EXPECT_EQ(model.kind == MmaKind::serial_f32, target == Target::cpu);
      }
    }
  }
}

// F, output mantissa bits and groups per instruction as MMA-Sim publishes them; a change here is a
// change of the specification.
TEST(Table, PublishedNumbers) {
  const auto expect = [](Target target, Instr instr, int frac_bits, int out_bits, int k_split) {
    const MmaModel model = mma_model(target, instr);
    EXPECT_EQ(model.frac_bits, frac_bits) << to_string(target);
    EXPECT_EQ(model.out_mantissa_bits, out_bits) << to_string(target);
    EXPECT_EQ(model.k_split, k_split) << to_string(target);
  };
  for (Instr instr : {Instr::qk_e4m3, Instr::pv_e4m3}) {
    expect(Target::sm89, instr, 13, 13, 2);
    expect(Target::sm90, instr, 13, 13, 1);
    for (Target target : {Target::sm100, Target::sm103, Target::sm120}) {
      expect(target, instr, 25, 23, 1);
    }
  }
  for (Instr instr : {Instr::mean_tf32, Instr::bf16}) {
    expect(Target::sm89, instr, 24, 23, 2);
    for (Target target : {Target::sm90, Target::sm100, Target::sm103, Target::sm120}) {
      expect(target, instr, 25, 23, 1);
    }
  }
}

TEST(TableDeathTest, AnIntegerModelInTheFloatFunctionIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  float c = 0;
  const float one_value = 1;
  EXPECT_DEATH(mma_accumulate_f32(mma_model(Target::cpu, Instr::qk_int8), &one_value, &one_value, 1,
                                  1, 1, &c),
               "use mma_accumulate_i32");
}

}  // namespace
}  // namespace vca::spec
