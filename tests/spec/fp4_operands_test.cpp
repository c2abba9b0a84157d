// SPDX-License-Identifier: Apache-2.0
// NVFP4 in preprocessing and on a chip: scales of a head, query means and their scores, P along the
// keys, and the block-scaled matrix instruction. Bounds on whole rows: attention_test.cpp.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "spec/bounds.hpp"
#include "spec/mma_fp4.hpp"
#include "spec/softmax.hpp"
#include "spec/value_stats.hpp"

namespace vca::spec {
namespace {

using test::Heads;
using test::Prepared;
using test::Traced;

// ---- operands ------------------------------------------------------------------------------

TEST(Fp4Operands, TheLargestElementOfAHeadUsesTheWholeRange) {
  Heads h({1, 1, 1, 40, 200, 64}, 1, 1.0, 3.0);
  for (const RecipeId id : {RecipeId::fp4, RecipeId::sage3, RecipeId::vc4}) {
    h.use(id);
    const Prepared prepared(h.p, h.p.subs[0]);
    const KvOperands& kv = prepared.kv.view;
    uint8_t top = 0;
    for (int64_t i = 0; i < 200 * 4; ++i) top = std::max(top, kv.k_micro[i]);
    // 448 stands for 448 * 6: the scale may be /5 or /4 where that fits better, but not here: the
    // candidates saturate at 448.
    EXPECT_EQ(top, 0x7E) << h.p.recipe->name;
    for (int64_t j = 1; j < kv.n_blocks * 4; ++j) EXPECT_EQ(kv.k_scale[j], kv.k_scale[0]);
    top = 0;
    for (int64_t i = 0; i < 40 * 4; ++i) top = std::max(top, prepared.q.view.q_micro[i]);
    EXPECT_EQ(top, 0x7E) << h.p.recipe->name;
  }
}

// g = max over channels of (max - min + 2^-8 max|V|) / 2688: no residual is beyond 2688 in its
// unit.
TEST(Fp4Operands, ResidualsAndMeansRebuildTheValue) {
  for (const RecipeId id : {RecipeId::fp4, RecipeId::vc4_paper, RecipeId::vc4}) {
    Heads h({1, 1, 1, 1, 333, 40}, 13);
    h.use(id);
    const Recipe& r = *h.p.recipe;
    const Prepared prepared(h.p, h.p.subs[0]);
    const KvOperands& kv = prepared.kv.view;
    for (int64_t col = 0; col < kv.n_cols(); ++col)
      for (int c = 0; c < 64; ++c) {
        if (kv.order[col] < 0 || c >= 40) {
          ASSERT_EQ(dequantised_value(r, kv, col, c), 0.0f);
          continue;
        }
        double amax = 0;
        const auto residual = [&](int64_t n) {
          const double mu = r.v_smooth() ? kv.mu[n / kBlock * 64 + c] : 0.0f;
          return h.v[static_cast<size_t>(kv.order[n] * 40 + c)] / kv.s_v[c] - mu;
        };
        for (int64_t n = col / 16 * 16; n < col / 16 * 16 + 16; ++n)
          if (kv.order[n] >= 0) amax = std::max(amax, std::fabs(residual(n)));
        ASSERT_LE(amax, 2688.0);
        const double miss = std::fabs(dequantised_value(r, kv, col, c) - residual(col));
        ASSERT_LE(miss, test::element_error(QkFormat::nvfp4, residual(col), 1.0, amax) + 0x1p-11)
            << r.name;
      }
  }
}

// Channels 2^6 apart share the head's scale, but each 16 keys of a channel have a micro-scale of
// their own: every channel keeps its relative error. (2^20 apart they would not: E4M3 ends.)
TEST(Fp4Operands, ChannelsOfUnlikeMagnitudeKeepTheirRelativeError) {
  Heads even({1, 1, 1, 1, 512, 64}, 3), uneven({1, 1, 1, 1, 512, 64}, 3);
  for (size_t i = 0; i < uneven.v.size(); ++i)
    uneven.v[i] = std::ldexp(uneven.v[i], static_cast<int>(i % 64 % 7) - 3);
  for (const RecipeId id : {RecipeId::sage3, RecipeId::vc4}) {
    even.use(id);
    uneven.use(id);
    const Prepared a(even.p, even.p.subs[0]), b(uneven.p, uneven.p.subs[0]);
    const auto error = [&](const Heads& h, const Prepared& prepared, int c) {
      const KvOperands& kv = prepared.kv.view;
      double num = 0, den = 0;
      for (int64_t n = 0; n < 512; ++n) {
        const double mu = h.p.recipe->v_smooth() ? kv.mu[n / kBlock * 64 + c] : 0.0f;
        const double v = h.v[static_cast<size_t>(kv.order[n] * 64 + c)];
        const double back = (mu + dequantised_value(*h.p.recipe, kv, n, c)) * kv.s_v[c];
        num += (back - v) * (back - v);
        den += v * v;
      }
      return std::sqrt(num / den);
    };
    for (int c = 0; c < 64; ++c)
      EXPECT_LT(error(uneven, b, c), 1.15 * error(even, a, c) + 0.002) << c;
  }
}

// Pads: copies of column 0 for keys, zeros for values (D1).
TEST(Fp4Operands, PadsCopyColumnZero) {
  Heads h({1, 1, 1, 4, 150, 64}, 4);
  h.use(RecipeId::sage3);
  const Prepared prepared(h.p, h.p.subs[0]);
  const KvOperands& kv = prepared.kv.view;
  for (int64_t n = 150; n < 256; ++n) {
    EXPECT_TRUE(std::equal(kv.k_codes + n * 32, kv.k_codes + n * 32 + 32, kv.k_codes + 128 * 32));
    EXPECT_TRUE(std::equal(kv.k_real + n * 64, kv.k_real + n * 64 + 64, kv.k_real + 128 * 64));
    for (int c = 0; c < 32; ++c) EXPECT_EQ(kv.v_codes[n * 32 + c], 0);
  }
}

// ---- query means ---------------------------------------------------------------------------

// A constant added to all queries of a block moves every score by constant . k, which sits in dS
// and is never quantised: the error of the scores stays what it was without it.
TEST(QueryMeans, AnOffsetOfTheQueriesCostsNothing) {
  Heads plain({1, 1, 1, 128, 300, 64}, 5), offset({1, 1, 1, 128, 300, 64}, 5);
  for (size_t i = 0; i < offset.q.size(); ++i)
    offset.q[i] += 6.0f * static_cast<float>(std::sin(static_cast<double>(i % 64)));
  const auto score_error = [](Heads& h, RecipeId id) {
    h.use(id);
    const Prepared prepared(h.p, h.p.subs[0]);
    const Traced t(h.p, prepared, Target::cpu, 0, 128);
    double sum = 0;
    for (int64_t row = 0; row < 128; ++row) {
      const test::RowBound bound = test::row_bound(h.p, h.p.subs[0], 0, prepared.kv.view,
                                                   prepared.q.view, t, row, row, Target::cpu);
      EXPECT_LE(bound.score_use, 1.0);
      sum += bound.score;
    }
    return sum / 128;
  };
  const double with = score_error(offset, RecipeId::sage3),
               without = score_error(plain, RecipeId::sage3);
  EXPECT_LT(with, 1.1 * without);
  EXPECT_GT(score_error(offset, RecipeId::vc4_int8qk), 0.0);
  // Without the means the offset takes the range.
  EXPECT_GT(score_error(offset, RecipeId::fp4), 2 * score_error(plain, RecipeId::fp4));
}

TEST(QueryMeans, RowsThatEqualTheirMeanStillAttend) {
  Heads h({1, 1, 1, 130, 200, 64}, 6);
  for (size_t i = 0; i < h.q.size(); ++i) h.q[i] = h.q[i % 64];
  h.use(RecipeId::sage3);
  test::check_rows(h, h.p.subs[0], 0, Target::cpu);
  const Prepared prepared(h.p, h.p.subs[0]);
  const Traced t(h.p, prepared, Target::cpu, 0, 130);
  const test::Exact exact(h.p, h.p.subs[0], 0, 7);
  // Scores come from dS alone: known to FP32.
  EXPECT_NEAR(t.lse[7], exact.lse, 1e-3);
}

// The last block of rows has a mean of its own, over what it has.
TEST(QueryMeans, EachBlockOf128RowsHasItsOwn) {
  Heads h({1, 1, 1, 300, 64, 64}, 7);
  h.use(RecipeId::sage3);
  const Prepared prepared(h.p, h.p.subs[0]);
  const QOperands& q = prepared.q.view;
  for (int64_t b = 0; b < 3; ++b)
    for (int c = 0; c < 64; ++c) {
      double mean = 0;
      const int64_t n = b == 2 ? 44 : 128;
      for (int64_t i = 0; i < n; ++i) mean += h.q[static_cast<size_t>((b * 128 + i) * 64 + c)];
      ASSERT_NEAR(q.q_mean[b * 64 + c] * q.q_scale[0], mean / static_cast<double>(n), 1e-5);
    }
}

// ---- P -------------------------------------------------------------------------------------

// Folding the scale into the exponent is the same map: codes differ where the log of the scale is
// rounded over a tie, sums in FP32 rounding.
TEST(Fp4Probabilities, FoldedAndDividedAgree) {
  Heads h({1, 1, 1, 64, 1024, 128}, 8, 1.5);
  Recipe divided = recipe(RecipeId::vc4_int8qk);
  divided.p = PMap::nvfp4;
  h.use(RecipeId::vc4_int8qk);
  const Prepared prepared(h.p, h.p.subs[0]);
  for (const Target target : {Target::cpu, Target::sm120}) {
    h.p.recipe = &recipe(RecipeId::vc4_int8qk);
    const Traced a(h.p, prepared, target, 0, 64);
    h.p.recipe = &divided;
    const Traced b(h.p, prepared, target, 0, 64);
    int64_t differ = 0;
    for (size_t i = 0; i < a.codes.size(); ++i) {
      ASSERT_LE(std::abs(a.codes[i] - b.codes[i]), 1);
      differ += a.codes[i] != b.codes[i];
    }
    EXPECT_LT(static_cast<double>(differ), 1e-4 * static_cast<double>(a.codes.size()));
    for (size_t i = 0; i < a.r.size(); ++i) ASSERT_NEAR(a.r[i], b.r[i], b.r[i] * 0x1p-18 + 1e-4);
    for (const uint8_t code : a.codes) ASSERT_LT(code, 8);
  }
}

// ---- the instruction -----------------------------------------------------------------------

TEST(Fp4Mma, ExactWhereFp32HoldsTheSum) {
  std::mt19937 g(9);
  float a[128], b[128 * 3], sa[8], sb[8 * 3];
  for (int trial = 0; trial < 200; ++trial) {
    for (float& x : a) x = e2m1_decode(static_cast<uint8_t>(g() % 16));
    for (float& x : b) x = e2m1_decode(static_cast<uint8_t>(g() % 16));
    for (float& x : sa) x = ue4m3_decode(static_cast<uint8_t>(0x30 + g() % 16));
    for (float& x : sb) x = ue4m3_decode(static_cast<uint8_t>(0x30 + g() % 16));
    float c[3] = {0.0f, 1.0f, -2.5f};
    double want[3] = {0.0, 1.0, -2.5};
    for (int j = 0; j < 3; ++j)
      for (int k = 0; k < 128; ++k)
        want[j] += static_cast<double>(a[k]) * b[k * 3 + j] * sa[k / 16] * sb[k / 16 * 3 + j];
    mma_accumulate_nvfp4(a, sa, b, sb, 3, 128, 3, c);
    for (int j = 0; j < 3; ++j) ASSERT_EQ(c[j], static_cast<float>(want[j]));
  }
}

// The accumulator's bits below 2^-35 of the largest scale product go, towards zero, and so do the
// result's beyond 23.
TEST(Fp4Mma, TruncatesTowardsZero) {
  float a[16] = {1.0f}, b[16] = {1.0f}, scale[1] = {448.0f};
  float c[1] = {0x1p-20f};
  mma_accumulate_nvfp4(a, scale, b, scale, 1, 16, 1, c);
  // 448^2 = 1.53125 * 2^17: grid 2^(2 * 8 - 35) = 2^-19, so 2^-20 is cut.
  EXPECT_EQ(c[0], 448.0f * 448.0f);
  c[0] = -0x1p-20f;
  mma_accumulate_nvfp4(a, scale, b, scale, 1, 16, 1, c);
  EXPECT_EQ(c[0], 448.0f * 448.0f);  // towards zero, not down
  c[0] = -0x1p-7f;
  mma_accumulate_nvfp4(a, scale, b, scale, 1, 16, 1, c);
  EXPECT_EQ(c[0], std::nextafter(448.0f * 448.0f, 0.0f));  // 200704 - 2^-7, cut to FP32's 2^-6
}

TEST(Fp4Mma, NothingIsLostFromAnAccumulatorWithoutProducts) {
  std::mt19937 g(10);
  float zero[64] = {}, scale[4] = {1, 1, 1, 1};
  for (int i = 0; i < 1000; ++i) {
    float c[1] = {float_from_bits(static_cast<uint32_t>(g()) & 0xBFFFFFFFu)};
    if (!is_finite(c[0])) continue;
    const float before = c[0];
    mma_accumulate_nvfp4(zero, scale, zero, scale, 1, 64, 1, c);
    ASSERT_EQ(c[0], before);
  }
}

}  // namespace
}  // namespace vca::spec
