// SPDX-License-Identifier: Apache-2.0
// Hadamard of queries and keys (docs/numerics.md B5, B10): q.k is unchanged.
#include "spec/hadamard.hpp"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "spec/heads.hpp"

namespace vca {
namespace {

using namespace spec;

TEST(Hadamard, ButterfliesAreTheMatrix) {
  std::mt19937 g(1);
  for (const int d : {64, 128}) {
    for (int trial = 0; trial < 50; ++trial) {
      const std::vector<float> x = test::normal_tensor(g, d, 1.0);
      std::vector<float> y = x;
      hadamard_row(y.data(), d);
      double sum_abs = 0;
      for (const float v : x) sum_abs += std::fabs(static_cast<double>(v));
      for (unsigned i = 0; i < static_cast<unsigned>(d); ++i) {
        double exact = 0;
        for (unsigned j = 0; j < static_cast<unsigned>(d); ++j)
          exact += std::popcount(i & j) % 2 == 0 ? x[j] : -static_cast<double>(x[j]);
        // log2(d) <= 7 roundings on the way, each of a partial sum below sum |x|.
        ASSERT_NEAR(y[i], exact, 7 * 0x1p-24 * sum_abs);
      }
    }
  }
}

// Small integers: every butterfly is exact, so the identity is too.
TEST(Hadamard, ProductIsUnchangedExactly) {
  std::mt19937 g(2);
  for (const int d : {64, 128}) {
    std::vector<float> q(static_cast<size_t>(d)), k(q.size());
    for (float& x : q) x = static_cast<float>(static_cast<int>(g() % 255) - 127);
    for (float& x : k) x = static_cast<float>(static_cast<int>(g() % 255) - 127);
    double plain = 0, rotated = 0;
    for (size_t i = 0; i < q.size(); ++i) plain += static_cast<double>(q[i]) * k[i];
    hadamard_row(q.data(), d);
    hadamard_row(k.data(), d);
    for (size_t i = 0; i < q.size(); ++i) rotated += static_cast<double>(q[i]) * k[i];
    EXPECT_EQ(rotated, plain * d);
  }
}

// The whole path: rotated operands, times the factor that carries 1/d_pad, give the score of the
// unrotated inputs within the rounding of the codes.
TEST(Hadamard, ScoresMatchTheExactOnes) {
  for (const int d : {40, 64, 100, 128}) {
    test::Heads h({1, 1, 1, 8, 200, d}, 3, 1.0, 4.0);
    Recipe rotated = recipe(RecipeId::vc8);
    rotated.hadamard = true;
    h.use(rotated);
    EXPECT_EQ(h.p.code_scale() * static_cast<float>(h.p.d_pad), [&] {
      Problem plain = h.p;
      plain.hadamard = false;
      return plain.code_scale();
    }());
    const test::Prepared prepared(h.p, h.p.subs[0]);
    const test::Traced t(h.p, prepared, Target::cpu, 0, 8);
    std::vector<float> a(static_cast<size_t>(t.n_blocks * 4));
    for (int64_t row = 0; row < 8; ++row) {
      score_factors(h.p, prepared.kv.view, prepared.q.view, row, a.data());
      // Rotated rows, for their norms: a code is off by half a step of its amax / 127.
      std::vector<float> q(128, 0.0f);
      std::copy_n(h.q.begin() + row * d, d, q.begin());
      double norm1_q = 0, amax_q = prepared.q.view.q_scale[row % 8] * 127;
      hadamard_row(q.data(), h.p.d_pad);
      for (int c = 0; c < h.p.d_pad; ++c) norm1_q += std::fabs(static_cast<double>(q[c]));
      for (int64_t n = 0; n < 200; ++n) {
        double exact = 0;
        std::vector<float> k(128, 0.0f);
        for (int c = 0; c < d; ++c) {
          k[c] = h.k[static_cast<size_t>(n * d + c)] - prepared.kv.view.k_offset[c];
          exact += static_cast<double>(h.q[static_cast<size_t>(row * d + c)]) * k[c];
        }
        hadamard_row(k.data(), h.p.d_pad);
        double norm1_k = 0;
        for (int c = 0; c < h.p.d_pad; ++c) norm1_k += std::fabs(static_cast<double>(k[c]));
        const double step_q = amax_q / 127,
                     step_k = prepared.kv.view.k_scale[n / 128 * 4 + n % 8 / 2];
        const double codes = 8 * 1.4426950408889634 * h.p.scale;
        const double t_n = static_cast<double>(t.s[static_cast<size_t>(row * t.n_cols + n)]) *
                           a[static_cast<size_t>(n / 128 * 4 + n % 8 / 2)];
        // F10, in code units; one part in 2^-20 for the FP32 of rotation, factor and scales.
        const double bound =
            codes / h.p.d_pad *
            (norm1_q * step_k / 2 + norm1_k * step_q / 2 + h.p.d_pad * step_q * step_k / 4) *
            (1 + 0x1p-12);
        ASSERT_NEAR(t_n, codes * exact, bound) << d << " " << n;
      }
    }
  }
}

// Outlier channels are what the rotation is for: it spreads them, so the scores get better.
TEST(Hadamard, SpreadsOutlierChannels) {
  double error[2] = {};
  for (const bool on : {false, true}) {
    test::Heads h({1, 1, 1, 16, 512, 128}, 5);
    for (size_t i = 0; i < h.k.size(); i += 128) h.k[i + 9] *= 40.0f;  // no offset: a wide channel
    Recipe r = recipe(RecipeId::sage2);
    r.hadamard = on;
    h.use(r);
    const test::Prepared prepared(h.p, h.p.subs[0]);
    const test::Traced t(h.p, prepared, Target::cpu, 0, 16);
    std::vector<double> exact, got(t.o.begin(), t.o.end());
    for (int64_t row = 0; row < 16; ++row)
      for (const double x : test::Exact(h.p, h.p.subs[0], 0, row).o) exact.push_back(x);
    error[on ? 1 : 0] = test::relative_l2(got, exact);
  }
  EXPECT_LT(error[1], error[0]);
}

}  // namespace
}  // namespace vca
