// SPDX-License-Identifier: Apache-2.0
// Preprocessing against a plain restatement: docs/numerics.md, sections B and D.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "spec/arith.hpp"
#include "spec/heads.hpp"
#include "spec/value_stats.hpp"

namespace vca {
namespace {

using namespace spec;
using test::Heads;
using test::Order;
using test::Prepared;

// The tree of B1 as it is told: level by level, an odd last element passes up.
float tree(std::vector<float> s) {
  if (s.empty()) return 0.0f;
  while (s.size() > 1) {
    std::vector<float> next;
    for (size_t i = 0; i + 1 < s.size(); i += 2) next.push_back(s[i] + s[i + 1]);
    if (s.size() % 2 != 0) next.push_back(s.back());
    s = std::move(next);
  }
  return s[0];
}

Order shuffled(const SubProblem& sub, uint32_t seed) {
  std::mt19937 g(seed);
  Order order = sub.segments;
  for (auto& segment : order)
    for (size_t i = segment.size(); i > 1; --i) std::swap(segment[i - 1], segment[g() % i]);
  return order;
}

// Valid tokens with gaps: what key masks and padding segments leave.
SubProblem gappy(int64_t s_q, int64_t s_kv, std::mt19937& g) {
  SubProblem sub = Heads::whole(0, s_q, 0);
  for (int64_t i = 0; i < s_kv; ++i)
    if (g() % 3 != 0) sub.segments[0].push_back(i);
  return sub;
}

// ---- keys ----------------------------------------------------------------------------------

TEST(KOffset, MeanOfEverySixteenthValidRow) {
  std::mt19937 g(1);
  for (const int64_t n : {1, 15, 16, 17, 300, 1111}) {
    Heads h({1, 1, 1, 4, n, 40}, 7, 1.0, 5.0);
    const SubProblem sub = gappy(4, n, g);
    for (const RecipeId id : {RecipeId::vc8, RecipeId::sage2, RecipeId::fp8}) {
      h.use(id);
      std::vector<float> offset(64, 99.0f);
      compute_k_offset(h.p, sub, 0, offset.data());
      for (int c = 0; c < 64; ++c) {
        std::vector<float> column;
        const size_t step = id == RecipeId::sage2 ? 1 : 16;
        for (size_t i = 0; i < sub.segments[0].size() && c < 40; i += step)
          column.push_back(h.k[static_cast<size_t>(sub.segments[0][i] * 40 + c)]);
        const float mean = column.empty() || id == RecipeId::fp8
                               ? 0.0f
                               : tree(column) * (1.0f / static_cast<float>(column.size()));
        ASSERT_EQ(offset[static_cast<size_t>(c)], mean) << n << " " << c;
      }
    }
  }
}

TEST(KOffset, AnOverflowingSumCountsAsZero) {
  Heads h({1, 1, 1, 1, 64, 64}, 3);
  for (size_t i = 0; i < 64; ++i) h.k[i * 64 + 5] = 0x1.8p127f;
  std::vector<float> offset(64);
  compute_k_offset(h.p, h.p.subs[0], 0, offset.data());
  EXPECT_EQ(offset[5], 0.0f);
  EXPECT_NE(offset[6], 0.0f);
}

// Codes, scales and pads of every block, for every tail length that matters.
TEST(Keys, ScalesByFragmentGroupAndPadsCopyTheirOwnGroup) {
  for (const int64_t n : {1, 2, 3, 5, 7, 8, 9, 63, 65, 127, 128, 129, 300}) {
    Heads h({1, 1, 1, 1, n, 64}, static_cast<uint32_t>(n), 1.0, 2.0);
    const Order order = shuffled(h.p.subs[0], 11);
    for (const RecipeId id : {RecipeId::vc8, RecipeId::vc8_fp8qk}) {
      h.use(id);
      const Prepared prepared(h.p, h.p.subs[0], 0, &order);
      const KvOperands& kv = prepared.kv.view;
      const bool int8 = id == RecipeId::vc8;
      const float top = int8 ? 127.0f : 448.0f;
      for (int64_t j = 0; j < kv.n_blocks; ++j) {
        const int64_t valid = std::min<int64_t>(kBlock, n - j * kBlock);
        float amax[4] = {};
        const auto element = [&](int64_t column, int64_t c) {
          const int64_t token = order[0][static_cast<size_t>(j * kBlock + column)];
          return h.k[static_cast<size_t>(token * 64 + c)] - kv.k_offset[c];
        };
        for (int64_t col = 0; col < valid; ++col)
          for (int64_t c = 0; c < 64; ++c)
            amax[col % 8 / 2] = std::max(amax[col % 8 / 2], std::fabs(element(col, c)));
        for (int64_t col = 0; col < kBlock; ++col) {
          const auto g = static_cast<size_t>(col % 8 / 2);
          ASSERT_EQ(kv.order[j * kBlock + col],
                    col < valid ? order[0][static_cast<size_t>(j * kBlock + col)] : -1);
          // The group's lowest column is 2g; where that is a pad the group is empty.
          const bool empty = static_cast<int64_t>(2 * g) >= valid;
          const int64_t from = col < valid ? col : (empty ? 0 : static_cast<int64_t>(2 * g));
          const auto scale_group = static_cast<size_t>(from % 8 / 2);
          ASSERT_EQ(kv.k_scale[j * 4 + static_cast<int64_t>(g)], amax[scale_group] / top);
          for (int64_t c = 0; c < 64; ++c) {
            const float factor = amax[scale_group] > 0 ? top / amax[scale_group] : 0.0f;
            const float x = element(from, c) * factor;
            const uint8_t code = int8 ? static_cast<uint8_t>(static_cast<int8_t>(
                                            std::clamp(std::nearbyint(x), -127.0f, 127.0f)))
                                      : e4m3_encode(x);
            ASSERT_EQ(kv.k_codes[(j * kBlock + col) * 64 + c], code);
          }
        }
      }
    }
  }
}

TEST(Keys, TinyGroupsGiveZeroCodesAndScale) {
  Heads h({1, 1, 1, 16, 128, 64}, 5);
  for (float& x : h.k) x = 0x1p-101f;
  for (size_t c = 0; c < 64; ++c) h.k[8 * 64 + c] = 0x1p-100f;  // token 8: group 0, just counts
  for (float& x : h.q) x = 0.0f;
  h.use(RecipeId::vc8_exp);
  Recipe no_mean = recipe(RecipeId::vc8);
  no_mean.k_mean = false;
  h.use(no_mean);
  const Prepared prepared(h.p, h.p.subs[0]);
  const KvOperands& kv = prepared.kv.view;
  EXPECT_EQ(kv.k_scale[0], 0x1p-100f / 127.0f);
  EXPECT_EQ(static_cast<int8_t>(kv.k_codes[8 * 64]), 127);
  for (int g = 1; g < 4; ++g) EXPECT_EQ(kv.k_scale[g], 0.0f);
  EXPECT_EQ(kv.k_codes[2 * 64], 0);
  EXPECT_EQ(prepared.q.view.q_scale[0], 0.0f);
}

TEST(Keys, NaiveFp8HasOneScalePerHead) {
  Heads h({1, 1, 1, 33, 200, 64}, 6);
  h.use(RecipeId::fp8);
  const Prepared prepared(h.p, h.p.subs[0]);
  float k_max = 0, q_max = 0;
  for (const float x : h.k) k_max = std::max(k_max, std::fabs(x));
  for (const float x : h.q) q_max = std::max(q_max, std::fabs(x));
  for (int i = 0; i < 8; ++i) EXPECT_EQ(prepared.kv.view.k_scale[i], k_max / 448.0f);
  for (int i = 0; i < 24; ++i) EXPECT_EQ(prepared.q.view.q_scale[i], q_max / 448.0f);
}

// ---- queries -------------------------------------------------------------------------------

TEST(Queries, OneScaleForRowsEightApart) {
  for (const int64_t rows : {1, 8, 9, 16, 37}) {
    Heads h({1, 1, 1, rows, 16, 128}, 8);
    for (const double scale : {0.09, -0.09}) {
      h.p.scale = scale;
      const Prepared prepared(h.p, h.p.subs[0]);
      const QOperands& q = prepared.q.view;
      float largest = 0;
      for (int64_t row = 0; row < rows; ++row) {
        float amax = 0;
        for (const int64_t mate : {row / 16 * 16 + row % 8, row / 16 * 16 + row % 8 + 8})
          for (int64_t c = 0; c < 128 && mate < rows; ++c)
            amax = std::max(amax, std::fabs(h.q[static_cast<size_t>(mate * 128 + c)]));
        ASSERT_EQ(q.q_scale[row / 16 * 8 + row % 8], amax / 127.0f);
        largest = std::max(largest, amax / 127.0f);
        for (int64_t c = 0; c < 128; ++c) {
          const float x = h.q[static_cast<size_t>(row * 128 + c)] * (scale < 0 ? -1.0f : 1.0f);
          ASSERT_EQ(static_cast<int8_t>(q.q_codes[row * 128 + c]),
                    static_cast<int8_t>(std::nearbyint(x * (127.0f / amax))));
        }
      }
      EXPECT_EQ(*q.max_q_scale, largest);
    }
  }
}

TEST(Queries, OverflowExponentIsTheSmallestThatFits) {
  Heads h({1, 1, 1, 1, 1, 128}, 9);
  std::mt19937 g(9);
  for (const RecipeId id : {RecipeId::vc8, RecipeId::vc8_fp8qk}) {
    h.use(id);
    const double code = id == RecipeId::vc8 ? 127 : 448;
    int seen = 0;
    for (int trial = 0; trial < 2000; ++trial) {
      const auto a = static_cast<float>(std::exp2(40 * test::uniform(g) - 10));
      const auto b = static_cast<float>(std::exp2(40 * test::uniform(g) - 10));
      const int e = overflow_exponent(h.p, a, b);
      const double bound = static_cast<double>(h.p.code_scale()) * a * b * code * code * h.p.d_pad;
      ASSERT_GE(e, 0);
      ASSERT_LT(std::ldexp(bound, -e), 0x1p23);
      if (e > 0) {
        ASSERT_GE(std::ldexp(bound, 1 - e), 0x1p23);
        ++seen;
      }
    }
    EXPECT_GT(seen, 100);
  }
}

// ---- values --------------------------------------------------------------------------------

// What goes into the E4M3 encoder, recomputed from s_v and mu.
double largest_residual(const Heads& h, const Prepared& prepared) {
  const KvOperands& kv = prepared.kv.view;
  double largest = 0;
  for (int64_t col = 0; col < kv.n_cols(); ++col) {
    if (kv.order[col] < 0) continue;
    for (int64_t c = 0; c < h.p.d; ++c) {
      const float v = h.v[static_cast<size_t>(kv.order[col] * h.p.d + c)];
      const float r = fma_rn(v, 1.0f / kv.s_v[c], -kv.mu[col / kBlock * kv.d_pad + c]);
      EXPECT_EQ(kv.v_codes[col * kv.d_pad + c], e4m3_encode(r));
      largest = std::max(largest, std::fabs(static_cast<double>(r)));
    }
  }
  return largest;
}

// B7: offsets from none to 2^14 times the spread, any magnitude, means at either end of the range.
TEST(Values, NothingSaturates) {
  std::mt19937 g(10);
  double largest = 0;
  for (int trial = 0; trial < 60; ++trial) {
    const int64_t n = 1 + g() % 400;
    Heads h({1, 1, 1, 1, n, 64}, 1);
    for (int64_t c = 0; c < 64; ++c) {
      const double magnitude = std::exp2(static_cast<double>(g() % 200) - 95);
      const double spread = g() % 8 == 0 ? 0 : std::exp2(-20 * test::uniform(g));
      const double offset = c % 3 == 0 ? 0 : (c % 3 == 1 ? 1 : -1);
      // Rare values at one end: a block mean at the other end and a value as far as it gets.
      const uint32_t rare = 1 + g() % 200;
      for (int64_t i = 0; i < n; ++i) {
        const double end = g() % rare == 0 ? 1 : 0;
        const double x = c % 2 == 0 && g() % 4 == 0 ? test::uniform(g) : end;
        h.v[static_cast<size_t>(i * 64 + c)] =
            static_cast<float>(magnitude * (offset + spread * (2 * x - 1)));
      }
    }
    const Prepared prepared(h.p, h.p.subs[0]);
    largest = std::max(largest, largest_residual(h, prepared));
  }
  printf("largest residual %.4f of 448\n", largest);
  EXPECT_LT(largest, 448.0);
  EXPECT_GT(largest, 440.0);  // the range is used
}

TEST(Values, ChannelScaleFormula) {
  Heads h({1, 1, 1, 1, 200, 64}, 12);
  for (int64_t i = 0; i < 200; ++i) {
    h.v[static_cast<size_t>(i * 64)] = 0x1p-101f;  // channel 0: counts as zero
    h.v[static_cast<size_t>(i * 64 + 1)] = 3.0f;   // channel 1: no spread
  }
  const Prepared prepared(h.p, h.p.subs[0]);
  for (int64_t c = 0; c < 64; ++c) {
    float low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < 200; ++i) {
      low = std::min(low, h.v[static_cast<size_t>(i * 64 + c)]);
      high = std::max(high, h.v[static_cast<size_t>(i * 64 + c)]);
    }
    const float up = high * (1.0f / 448.0f), down = low * (1.0f / 448.0f);
    const float slack = std::max(std::fabs(low), std::fabs(high)) * (0x1p-8f / 448.0f);
    const float expected = c == 0 ? 1.0f : (up - down) + slack;
    EXPECT_EQ(prepared.kv.view.s_v[c], expected) << c;
  }
}

TEST(Values, ResidualAndMeanRebuildTheValue) {
  for (const RecipeId id : {RecipeId::vc8, RecipeId::vc8_hq, RecipeId::sage2, RecipeId::fp8}) {
    Heads h({1, 1, 1, 1, 333, 40}, 13);
    h.use(id);
    const Recipe& r = *h.p.recipe;
    const Prepared prepared(h.p, h.p.subs[0]);
    const KvOperands& kv = prepared.kv.view;
    for (int64_t col = 0; col < kv.n_cols(); ++col) {
      for (int c = 0; c < 64; ++c) {
        const int64_t at = col * 64 + c;
        if (kv.order[col] < 0 || c >= 40) {  // pads of either kind carry nothing
          ASSERT_EQ(dequantised_value(r, kv, col, c), 0.0f);
          continue;
        }
        const double v = h.v[static_cast<size_t>(kv.order[col] * 40 + c)];
        const double mu = r.v_smooth() ? kv.mu[col / kBlock * 64 + c] : 0.0f;
        const double back = (mu + dequantised_value(r, kv, col, c)) * kv.s_v[c];
        // E4M3: half a step, 2^-4 of the residual or 2^-10 of the unit; INT8: half of v_scale.
        // FP32 rounding of the factors: 2^-21 of the value.
        const double residual = std::fabs(v / kv.s_v[c] - mu);
        const double step = id == RecipeId::vc8_hq ? kv.v_scale[at / 64 / kBlock * 64 + c] / 2
                                                   : std::max(residual / 16, 0x1p-10);
        ASSERT_LE(std::fabs(back - v), step * kv.s_v[c] + std::fabs(v) * 0x1p-20) << r.name;
      }
    }
  }
}

TEST(Values, RemovedEnergyIsTheStatedFraction) {
  for (const double magnitude : {1.0, 1e-25, 1e28}) {
    Heads h({1, 1, 1, 1, 500, 64}, 14);
    for (size_t i = 0; i < h.v.size(); ++i)
      h.v[i] = static_cast<float>(magnitude * (h.v[i] + (i / 64 / 128 % 2 == 0 ? 1.0 : -0.5)));
    const Prepared prepared(h.p, h.p.subs[0]);
    const KvOperands& kv = prepared.kv.view;
    double removed = 0, whole = 0;
    for (const float x : h.v) whole += static_cast<double>(x) * x;
    for (int64_t j = 0; j < kv.n_blocks; ++j)
      for (int c = 0; c < 64; ++c)
        removed += static_cast<double>(std::min<int64_t>(kBlock, 500 - j * kBlock)) *
                   std::pow(static_cast<double>(kv.mu[j * 64 + c]) * kv.s_v[c], 2);
    // Trees of depth 6 + 9 and three roundings an element, in both sums: 2 * 18 * 2^-24.
    EXPECT_NEAR(kv.stats->energy_removed, removed / whole, 36 * 0x1p-24 * removed / whole);
    EXPECT_GT(kv.stats->energy_removed, 0.3);
  }
  Heads zero({1, 1, 1, 1, 20, 64}, 15);
  std::fill(zero.v.begin(), zero.v.end(), 0.0f);
  EXPECT_TRUE(std::isnan(Prepared(zero.p, zero.p.subs[0]).kv.view.stats->energy_removed));
}

// ---- views ---------------------------------------------------------------------------------

TEST(Views, DtypeStrideAndAlignmentDoNotChangeTheBytes) {
  Heads h({1, 1, 1, 20, 150, 40}, 16);
  const std::vector<float> q = h.q, k = h.k, v = h.v;
  for (const Recipe* r : test::running_recipes()) {
    h.use(*r);
    const Prepared plain(h.p, h.p.subs[0]);
    EXPECT_TRUE(q == h.q && k == h.k && v == h.v);  // inputs are never written
    // BF16 rows 7 elements apart from the next, one byte off any alignment.
    std::vector<char> bytes(2 * 150 * 47 + 1);
    for (int64_t i = 0; i < 150; ++i)
      for (int64_t c = 0; c < 40; ++c) {
        const uint16_t code = bf16_encode(k[static_cast<size_t>(i * 40 + c)]);
        std::memcpy(bytes.data() + 1 + (i * 47 + c) * 2, &code, 2);
      }
    Problem odd = h.p;
    odd.k.data = bytes.data() + 1;
    odd.k.dtype = DType::bf16;
    odd.k.stride = {0, 0, 47, 1};
    const Prepared other(odd, odd.subs[0]);
    EXPECT_EQ(plain.kv.bytes, other.kv.bytes) << r->name;
    // As bytes: f (in stats) may be NaN, and -0 must stay -0.
    EXPECT_EQ(std::memcmp(plain.kv.f32.data(), other.kv.f32.data(), plain.kv.f32.size() * 4), 0);
    EXPECT_EQ(plain.q.bytes, other.q.bytes);
  }
}

TEST(Views, ExpandedTensorsAndFp16) {
  Heads h({1, 1, 1, 4, 64, 64}, 17);
  h.p.v.stride[2] = 0;  // every token shows the first row
  const Prepared expanded(h.p, h.p.subs[0]);
  for (int64_t i = 1; i < 64; ++i) std::copy_n(h.v.begin(), 64, h.v.begin() + i * 64);
  h.p.v.stride[2] = 64;
  EXPECT_EQ(expanded.kv.bytes, Prepared(h.p, h.p.subs[0]).kv.bytes);
  std::vector<uint16_t> half(h.q.size());
  for (size_t i = 0; i < half.size(); ++i) {
    half[i] = fp16_encode(h.q[i]);
    h.q[i] = fp16_decode(half[i]);
  }
  const Prepared fp32(h.p, h.p.subs[0]);
  h.p.q.data = half.data();
  h.p.q.dtype = DType::fp16;
  EXPECT_EQ(fp32.q.bytes, Prepared(h.p, h.p.subs[0]).q.bytes);
}

}  // namespace
}  // namespace vca
