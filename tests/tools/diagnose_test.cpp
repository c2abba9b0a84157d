// SPDX-License-Identifier: Apache-2.0
// The figures of a row against their definitions, restated here plainly and in long double.
#include "spec/diagnose.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "spec/grouping/grouping.hpp"
#include "spec/value_stats.hpp"

namespace vca::spec {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// One head, S_q != S_kv, a tail block, head_dim below its padding.
struct Case {
  std::vector<float> q, k, v;
  Problem p;
  OwnedKv kv;

  Case(RecipeId id, int64_t s_q, int64_t s_kv, int d) {
    // The engine's sequence is fixed by the standard; the distributions' is not.
    std::mt19937 engine(7);
    const auto next = [&] { return static_cast<float>(static_cast<int32_t>(engine())) * 0x1p-31f; };
    for (int64_t i = 0; i < s_q * d; ++i) q.push_back(4 * next());
    for (int64_t i = 0; i < s_kv * d; ++i) {
      k.push_back(2 * next() + 0.5f);
      v.push_back(next() * next() * 3 + static_cast<float>(i / d % 3));
    }
    const auto view = [d](const std::vector<float>& x, int64_t s) {
      TensorView t;
      t.data = x.data();
      t.dtype = DType::fp32;
      t.shape = {1, 1, s, d};
      t.stride = {s * d, s * d, d, 1};
      return t;
    };
    p.set_tensors(view(q, s_q), view(k, s_kv), view(v, s_kv));
    p.recipe = &recipe(id);
    p.hadamard = p.recipe->hadamard;
    SubProblem sub;
    sub.q_len = s_q;
    if (s_kv > 0) {
      sub.segments.emplace_back(static_cast<size_t>(s_kv));
      std::iota(sub.segments[0].begin(), sub.segments[0].end(), int64_t{0});
      // Reversed, so that columns and tokens differ.
      sub.segment_info = {{0, s_kv, 0}};
    }
    p.subs.push_back(sub);
    std::vector<std::vector<int64_t>> order = sub.segments;
    for (auto& segment : order) std::reverse(segment.begin(), segment.end());
    allocate(*p.recipe, sub.n_valid(), sub.n_blocks(), p.d_pad, kv);
    prepare_kv(p, sub, 0, order, kv.view);
  }
  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;
};

// A stored value in units of s_v. vc8-hq multiplies integers and scales the sum, so its value is
// the unrounded product.
long double stored(const Case& c, size_t column, size_t channel) {
  const KvOperands& kv = c.kv.view;
  const auto pitch = static_cast<size_t>(c.p.d_pad);
  if (c.p.recipe->v == VFormat::int8_smooth)
    return static_cast<long double>(static_cast<int8_t>(kv.v_codes[column * pitch + channel])) *
           kv.v_scale[column / 128 * pitch + channel];
  return dequantised_value(*c.p.recipe, kv, static_cast<int64_t>(column),
                           static_cast<int>(channel));
}

// The definitions of diagnose.hpp, word by word.
RowDiagnosis by_definition(const Case& c, int64_t row) {
  using Real = long double;
  const Problem& p = c.p;
  const KvOperands& kv = c.kv.view;
  OwnedQ q;
  allocate(*p.recipe, p.s_q, p.d_pad, false, q);
  prepare_q(p, p.subs[0], 0, kv.k_offset, q.view);
  RowTraces t(p, kv, 1);
  attention_rows(p, kv, q.view, Target::cpu, row, 1, nullptr, t.outputs());
  std::vector<float> a(static_cast<size_t>(kv.n_blocks * 4));
  score_factors(p, kv, q.view, row, a.data());

  const auto d = static_cast<size_t>(p.d);
  const auto n_cols = static_cast<size_t>(kv.n_cols());
  std::vector<Real> own(n_cols, 0), mapped(n_cols, 0), exact(n_cols, 0);
  Real own_sum = 0, exact_sum = 0, denominator = 0;
  Real own_max = -1e30L, exact_max = -1e30L;
  for (int pass = 0; pass < 2; ++pass) {
    for (size_t n = 0; n < n_cols; ++n) {
      const int64_t token = kv.order[n];
      if (token < 0) continue;
      const Real s = p.recipe->integer_scores() ? static_cast<Real>(t.s[n])
                                                : static_cast<Real>(std::bit_cast<float>(t.s[n]));
      const Real score = s * a[n / 128 * 4 + n % 8 / 2];
      Real dot = 0;
      for (size_t i = 0; i < d; ++i)
        dot += static_cast<Real>(c.q[static_cast<size_t>(row) * d + i]) *
               c.k[static_cast<size_t>(token) * d + i];
      dot *= p.scale;
      if (pass == 0) {
        own_max = std::max(own_max, score);
        exact_max = std::max(exact_max, dot);
      } else {
        own_sum += own[n] = std::exp2((score - own_max) / 8);
        exact_sum += exact[n] = std::exp(dot - exact_max);
      }
    }
  }
  const Real m_final = t.m_run[static_cast<size_t>(kv.n_blocks - 1)];
  for (size_t j = 0; j < static_cast<size_t>(kv.n_blocks); ++j)
    denominator += std::exp2((t.m[j] - m_final) / 8) * t.r[j];

  RowDiagnosis out;
  for (size_t n = 0; n < n_cols; ++n) {
    if (kv.order[n] < 0) continue;
    own[n] /= own_sum;
    exact[n] /= exact_sum;
    mapped[n] = t.p[n] * std::exp2((t.m[n / 128] - m_final) / 8) / denominator;
    out.tv += static_cast<double>(std::abs(mapped[n] - own[n]) / 2);
    if (t.codes[n] == 0) out.tau += static_cast<double>(own[n]);
  }
  for (size_t i = 0; i < d; ++i) {
    Real o_star = 0, o_qk = 0, o_p = 0, o_v = 0;
    for (size_t j = 0; j < static_cast<size_t>(kv.n_blocks); ++j) {
      const Real mean =
          p.recipe->v_smooth()
              ? static_cast<Real>(kv.mu[j * static_cast<size_t>(p.d_pad) + i]) * kv.s_v[i]
              : 0.0L;
      // o_p as written in the definition: residuals by P, the mean by the block's own sum.
      Real block = 0;
      for (size_t n = j * 128; n < (j + 1) * 128; ++n) {
        const int64_t token = kv.order[n];
        if (token < 0) continue;
        const Real v = c.v[static_cast<size_t>(token) * d + i];
        o_star += exact[n] * v;
        o_qk += own[n] * v;
        block += t.p[n] * (v - mean);
        o_v += exact[n] * (stored(c, n, i) * kv.s_v[i] + mean);
      }
      o_p += std::exp2((t.m[j] - m_final) / 8) * (block + t.r[j] * mean) / denominator;
    }
    const Real o = t.o[i];
    const auto add = [](double& into, Real x) { into += static_cast<double>(x * x); };
    add(out.exact_sq, o_star);
    add(out.output_sq, o);
    add(out.error_sq, o - o_star);
    add(out.own_sq, o_qk);
    add(out.qk_sq, o_qk - o_star);
    add(out.p_sq, o_p - o_qk);
    add(out.v_sq, o_v - o_star);
    out.dot += static_cast<double>(o * o_star);
  }
  return out;
}

// Both sides sum at most 301 terms of weights that add up to 1 (to 1.1 for P) and |V| < 6, in FP64
// at the latest: each channel is off by less than 4 * 301 * 2^-53 * 6 < 1e-12, so a norm over 72
// channels is off by less than 1e-11.
constexpr double kNormTolerance = 1e-11;

class DiagnoseRecipe : public ::testing::TestWithParam<RecipeId> {};

TEST_P(DiagnoseRecipe, FollowsItsDefinitions) {
  for (int d : {33, 72}) {
    const Case c(GetParam(), 5, 301, d);
    const std::vector<int64_t> rows = {0, 3, 4};
    const std::vector<RowDiagnosis> got =
        diagnose_head(c.p, c.p.subs[0], c.kv.view, 0, Target::cpu, rows);
    ASSERT_EQ(got.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const RowDiagnosis expected = by_definition(c, rows[i]);
      const auto norm = [&](const char* what, double a, double b) {
        EXPECT_NEAR(std::sqrt(a), std::sqrt(b), kNormTolerance) << what << " of row " << rows[i];
      };
      norm("exact", got[i].exact_sq, expected.exact_sq);
      norm("output", got[i].output_sq, expected.output_sq);
      norm("error", got[i].error_sq, expected.error_sq);
      norm("own", got[i].own_sq, expected.own_sq);
      norm("qk", got[i].qk_sq, expected.qk_sq);
      norm("p", got[i].p_sq, expected.p_sq);
      norm("v", got[i].v_sq, expected.v_sq);
      // |o|, |o*| < 6 sqrt(72) < 51, each off by less than 1e-11.
      EXPECT_NEAR(got[i].dot, expected.dot, 2 * 51 * kNormTolerance);
      if (c.p.recipe->has_codes()) {
        EXPECT_NEAR(got[i].tv, expected.tv, 1e-12);
        EXPECT_NEAR(got[i].tau, expected.tau, 1e-12);
        EXPECT_GT(got[i].tv, 0);
      } else {
        EXPECT_TRUE(std::isnan(got[i].tv));
        EXPECT_TRUE(std::isnan(got[i].tau));
      }
      // A recipe at 8 bits is not exact, so the figures are of something.
      if (c.p.recipe->quantised()) {
        EXPECT_GT(got[i].qk_sq, 0);
        EXPECT_GT(got[i].p_sq, 0);
        EXPECT_GT(got[i].v_sq, 0);
      }
    }
  }
}

std::string recipe_test_name(const ::testing::TestParamInfo<RecipeId>& info) {
  std::string name(recipe(info.param).name);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, DiagnoseRecipe,
                         ::testing::Values(RecipeId::bf16, RecipeId::fp8, RecipeId::sage2,
                                           RecipeId::vc8_paper, RecipeId::vc8_exp, RecipeId::vc8,
                                           RecipeId::vc8_turbo, RecipeId::vc8_hq,
                                           RecipeId::vc8_fp8qk, RecipeId::vc8_fp8qk_paper),
                         recipe_test_name);

// Sampling is a way to compute the same rows, not other rows.
TEST(SampleQueries, GivesTheBitsOfTheWholeHead) {
  for (RecipeId id : {RecipeId::vc8, RecipeId::sage2, RecipeId::fp8, RecipeId::bf16}) {
    const Case c(id, 61, 140, 64);
    OwnedQ all, sampled;
    allocate(*c.p.recipe, c.p.s_q, c.p.d_pad, true, all);
    prepare_q(c.p, c.p.subs[0], 0, c.kv.view.k_offset, all.view);
    const std::vector<int64_t> rows = evenly_spread(61, 19);
    sample_queries(c.p, all.view, rows, sampled);
    for (size_t i = 0; i < rows.size(); ++i) {
      RowTraces a(c.p, c.kv.view, 1), b(c.p, c.kv.view, 1);
      float lse_a = 0, lse_b = 1;
      RowOutputs out_a = a.outputs(), out_b = b.outputs();
      out_a.lse = &lse_a;
      out_b.lse = &lse_b;
      attention_rows(c.p, c.kv.view, all.view, Target::sm90, rows[i], 1, nullptr, out_a);
      attention_rows(c.p, c.kv.view, sampled.view, Target::sm90,
                     sample_slot(static_cast<int64_t>(i)), 1, nullptr, out_b);
      EXPECT_EQ(a.s, b.s);
      EXPECT_EQ(a.codes, b.codes);
      EXPECT_EQ(a.o, b.o);
      EXPECT_EQ(lse_a, lse_b);
    }
  }
}

TEST(DiagnoseRow, CurvesAndHistogramOfARow) {
  const Case c(RecipeId::vc8, 2, 301, 64);
  OwnedQ q;
  allocate(*c.p.recipe, 2, c.p.d_pad, false, q);
  prepare_q(c.p, c.p.subs[0], 0, c.kv.view.k_offset, q.view);
  RowTraces t(c.p, c.kv.view, 1);
  attention_rows(c.p, c.kv.view, q.view, Target::cpu, 1, 1, nullptr, t.outputs());
  const std::vector<int64_t> rows = {1};
  const ExactRows exact = exact_rows(c.p, c.p.subs[0], 0, rows);
  EXPECT_NEAR(std::accumulate(exact.prob.begin(), exact.prob.end(), 0.0), 1, 1e-13);
  const std::vector<float> values = value_rows(c.p, c.p.subs[0], 0);
  RowCurves curves;
  std::vector<int64_t> histogram(256);
  const RowDiagnosis row = diagnose_row(c.p, c.kv.view, q.view, 1, t, 0, exact, 0, values.data(),
                                        &curves, histogram.data());
  ASSERT_EQ(curves.own.size(), 301u);
  EXPECT_NEAR(std::accumulate(curves.own.begin(), curves.own.end(), 0.0), 1, 1e-13);
  double tv = 0;
  for (size_t i = 0; i < 301; ++i) tv += std::fabs(curves.own[i] - curves.mapped[i]) / 2;
  EXPECT_NEAR(tv, row.tv, 1e-13);
  // Valid keys only: the tail block's pads are copies and must not be counted.
  EXPECT_EQ(std::accumulate(histogram.begin(), histogram.end(), int64_t{0}), 301);
  EXPECT_EQ(std::accumulate(histogram.begin() + 127, histogram.end(), int64_t{0}), 0);
  EXPECT_GT(histogram[126], 0);
}

TEST(DiagnoseRow, NoKeys) {
  const Case c(RecipeId::vc8, 3, 0, 64);
  const std::vector<int64_t> rows = {0, 2};
  for (const RowDiagnosis& row : diagnose_head(c.p, c.p.subs[0], c.kv.view, 0, Target::cpu, rows)) {
    EXPECT_EQ(row.exact_sq, 0);
    EXPECT_EQ(row.error_sq, 0);
    EXPECT_EQ(row.relative_error(), 0);
    EXPECT_EQ(row.tv, 0);
  }
}

TEST(EvenlySpread, MiddlesOfEqualParts) {
  EXPECT_EQ(evenly_spread(10, 4), (std::vector<int64_t>{1, 3, 6, 8}));
  EXPECT_EQ(evenly_spread(7, 1), (std::vector<int64_t>{3}));
  EXPECT_EQ(evenly_spread(3, 0), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(evenly_spread(3, 256), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_TRUE(evenly_spread(0, 256).empty());
  // (2i + 1) n beyond 63 bits.
  EXPECT_EQ(evenly_spread(int64_t{1} << 62, 2),
            (std::vector<int64_t>{int64_t{1} << 60, 3 * (int64_t{1} << 60)}));
}

TEST(Summarise, ByHand) {
  RowDiagnosis a, b;
  a.exact_sq = 9;
  a.output_sq = 16;
  a.dot = 12;
  a.error_sq = 1;
  a.own_sq = 4;
  a.qk_sq = 0.25;
  a.p_sq = 1;
  a.v_sq = 4;
  a.tv = 0.1;
  a.tau = 0.02;
  b.exact_sq = 16;
  b.output_sq = 9;
  b.dot = 12;
  b.error_sq = 8;
  b.own_sq = 12;
  b.qk_sq = 2;
  b.p_sq = 3;
  b.v_sq = 0;
  b.tv = 0.3;
  b.tau = 0;
  const RowDiagnosis rows[] = {a, b};
  const Diagnosis d = summarise(rows);
  EXPECT_DOUBLE_EQ(d.rel_l2, 3.0 / 5);
  EXPECT_DOUBLE_EQ(d.worst_row, std::sqrt(8.0) / 4);
  EXPECT_DOUBLE_EQ(d.cosine, 24.0 / 25);
  EXPECT_DOUBLE_EQ(d.qk_only, 1.5 / 5);
  EXPECT_DOUBLE_EQ(d.p_only, 2.0 / 4);
  EXPECT_DOUBLE_EQ(d.v_only, 2.0 / 5);
  EXPECT_DOUBLE_EQ(d.tv_mean, 0.2);
  EXPECT_DOUBLE_EQ(d.tv_max, 0.3);
  EXPECT_DOUBLE_EQ(d.tau_mean, 0.01);
  EXPECT_DOUBLE_EQ(d.tau_max, 0.02);
}

TEST(Summarise, UndefinedFigures) {
  const Diagnosis none = summarise({});
  for (double x : {none.rel_l2, none.worst_row, none.cosine, none.qk_only, none.p_only, none.v_only,
                   none.tv_mean, none.tv_max, none.tau_mean, none.tau_max})
    EXPECT_TRUE(std::isnan(x));
  // V = 0: nothing went wrong, and there is no direction to compare.
  RowDiagnosis zero;
  const Diagnosis silent = summarise(std::span(&zero, 1));
  EXPECT_EQ(silent.rel_l2, 0);
  EXPECT_EQ(silent.worst_row, 0);
  EXPECT_TRUE(std::isnan(silent.cosine));
  // Something where nothing should be.
  RowDiagnosis wrong;
  wrong.error_sq = 1;
  EXPECT_TRUE(std::isnan(summarise(std::span(&wrong, 1)).rel_l2));
  EXPECT_TRUE(std::isnan(summarise(std::span(&wrong, 1)).worst_row));
  // One undefined TV makes the mean undefined instead of silently smaller.
  RowDiagnosis rows[2];
  rows[1].tv = kNaN;
  EXPECT_TRUE(std::isnan(summarise(rows).tv_mean));
  EXPECT_TRUE(std::isnan(summarise(rows).tv_max));
}

}  // namespace
}  // namespace vca::spec
