// SPDX-License-Identifier: Apache-2.0
// The map from scores to E4M3 codes: docs/numerics.md E1, E2 and F1 to F4.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "spec/heads.hpp"
#include "spec/score_rows.hpp"

namespace vca {
namespace {

using namespace spec;
using test::map_row;
using test::MappedRow;

double epsilon(double m) { return m - 8 * std::log2(1 + m / 8); }

// ---- F1 ------------------------------------------------------------------------------------

TEST(CodeLine, IdentityOnNormalCodes) {
  for (int c = 8; c <= 126; ++c) {
    const double v = e4m3_decode(static_cast<uint8_t>(c));
    // log2 below 16 in magnitude is good to 2^-49; eight of it, and sums below 128: 2^-44.
    EXPECT_NEAR(8 * std::log2(v) + 56 + epsilon(c % 8), c, 0x1p-44) << c;
  }
}

TEST(CodeLine, Centres) {
  const double m_star = 8 / std::log(2.0) - 8;
  double lowest = 0;
  for (double m = 0; m < 8; m += 1e-4) lowest = std::min(lowest, epsilon(m));
  EXPECT_NEAR(lowest, epsilon(m_star), 1e-8);  // the minimum is where the derivative says
  EXPECT_NEAR(epsilon(m_star) / 2, -0.3443, 5e-5);
  double lowest_integer = 0;
  for (int m = 0; m < 8; ++m) lowest_integer = std::min(lowest_integer, epsilon(m));
  EXPECT_EQ(lowest_integer, epsilon(4));
  EXPECT_NEAR(lowest_integer / 2, -0.3399, 5e-5);
}

struct LineErrors {
  double low = 0, high = 0;
  int code_distance = 0, differing = 0, total = 0;
};

// Every score on a grid of 2^-12 codes whose code is normal, against the value at the maximum.
LineErrors scan_line(float top, double value_at_max) {
  LineErrors e;
  const double lowest = 7.5 - static_cast<double>(top);  // codes from 8 on
  for (int i = 0;; --i) {
    const double t = i * 0x1p-12;
    if (t <= lowest) break;
    const uint8_t code = f2ip_code(fma_rn(static_cast<float>(i), 0x1p-12f, top));
    const double ideal = value_at_max * std::exp2(t / 8);
    const double error = static_cast<double>(e4m3_decode(code)) / ideal - 1;
    e.low = std::min(e.low, error);
    e.high = std::max(e.high, error);
    const int cast = e4m3_encode(static_cast<float>(ideal));
    e.code_distance = std::max(e.code_distance, std::abs(cast - code));
    e.differing += cast != code;
    ++e.total;
  }
  return e;
}

TEST(CodeLine, LargestElementError) {
  // Exponents (beta - eps +- 1/2) / 8 and (eps(6) - eps +- 1/2) / 8; the grid comes within 2^-13
  // codes of each edge, 8e-5 relative at most (ln2/8 * 2^-12 * safety of two).
  constexpr double kGrid = 5e-5;
  const LineErrors paper = scan_line(kTopPaper, 256);
  EXPECT_NEAR(paper.high, std::exp2((-0.35 + 0.5 - epsilon(4)) / 8) - 1, kGrid);
  EXPECT_NEAR(paper.low, std::exp2((-0.35 - 0.5) / 8) - 1, kGrid);
  EXPECT_NEAR(paper.high, 0.0745, 5e-5);
  const LineErrors line = scan_line(kTopExpCast, 448);
  EXPECT_NEAR(line.low, std::exp2((epsilon(6) - 0.5) / 8) - 1, kGrid);
  EXPECT_NEAR(line.high, std::exp2((epsilon(6) - epsilon(4) + 0.5) / 8) - 1, kGrid);
  EXPECT_NEAR(line.low, -0.0797, 5e-5);
}

TEST(CodeLine, NeverMoreThanOneCodeFromTheCast) {
  for (const auto& [top, value] : {std::pair{kTopPaper, 256.0}, std::pair{kTopExpCast, 448.0}}) {
    const LineErrors e = scan_line(top, value);
    EXPECT_EQ(e.code_distance, 1) << top;
    printf("top %.2f: codes that differ from the cast %.1f %%\n", static_cast<double>(top),
           100.0 * e.differing / e.total);
  }
}

// ---- F2 ------------------------------------------------------------------------------------

// n keys in two groups at the ends of one code step or of the line, and one key at the maximum.
std::vector<double> two_groups(double low, double high, double ratio, size_t n) {
  // Masses sqrt(a) on the upper and sqrt(b) on the lower end.
  const double per_low = std::exp2(low / 8), per_high = std::exp2(high / 8);
  const double share = 1 / (1 + per_low / per_high / std::sqrt(ratio));
  std::vector<double> t(n, low);
  t[0] = 0;
  const auto n_high = static_cast<size_t>((1 - share) * static_cast<double>(n));
  for (size_t i = 1; i <= n_high; ++i) t[i] = high;
  return t;
}

TEST(TotalVariation, TwoGroupRowAttainsTheBound) {
  const double ratio = test::kLineHigh / test::kLineLow;
  EXPECT_NEAR(test::total_variation_of_ratio(ratio), 0.03637, 5e-6);
  // Lower end: mantissa 0, upper rounding edge (x.5 goes to the even code below); upper end:
  // mantissa 4, lower edge.
  for (const auto& [id, low, high] :
       {std::tuple{RecipeId::vc8_turbo, 120.5 - 126, 123.5 - 126},
        std::tuple{RecipeId::vc8_paper, 112.5 - 119.65 + 0x1p-12, 115.5 - 119.65 + 0x1p-12}}) {
    // 119.65 is no multiple of the score grid: the edge is met to one step, 2^-12 codes, which
    // moves a group's ratio by 2^-12 ln2 / 8 at most, unless it rounds away: step inwards.
    const bool exact_grid = id == RecipeId::vc8_turbo;
    const double inwards = exact_grid ? 0 : 0x1p-11;
    const MappedRow row =
        map_row(recipe(id), Target::cpu, two_groups(low - inwards, high + inwards, ratio, 70000));
    // One key of 70,000 stands at neither end, and the group sizes are whole numbers.
    EXPECT_NEAR(row.tv(), test::total_variation_of_ratio(ratio), 4.0 / 70000 + 1e-4)
        << recipe(id).name;
    EXPECT_EQ(row.mass_below(8), 0.0);
  }
}

TEST(TotalVariation, FloorOfAnyMonotoneMap) {
  const double floor = test::total_variation_of_ratio(9.0 / 8.0);
  EXPECT_NEAR(floor, 0.02944, 5e-6);
  // exp + cast at the jump between the codes of 256 and 288, half-way, 272: equal scores, 9/8
  // apart.
  const double jump = 8 * std::log2(272.0 / 448.0);
  const double down = std::floor(jump / 0x1p-12) * 0x1p-12;
  std::vector<double> scores = two_groups(down - 0x1p-12, down + 0x1p-11, 9.0 / 8.0, 70000);
  MappedRow row = map_row(recipe(RecipeId::vc8_exp), Target::cpu, scores);
  // The published bound is for a row normalised by its decoded sum.
  double sum = 0;
  for (const double x : row.mapped) sum += x;
  for (double& x : row.mapped) x /= sum;
  EXPECT_NEAR(row.tv(), floor, 4.0 / 70000 + 1e-4);
  EXPECT_LE(row.tv(), floor + 1e-6);
}

// Scores of many shapes in [lowest, 0], the maximum 0 included.
std::vector<double> random_row(std::mt19937& g, size_t n, double lowest) {
  const double shape = test::uniform(g) * 4, spread = -lowest * test::uniform(g);
  std::vector<double> t(n);
  for (double& x : t)
    x = -spread * (shape < 1   ? test::uniform(g)
                   : shape < 2 ? std::pow(test::uniform(g), 0.2)
                   : shape < 3 ? std::fabs(std::sin(7 * test::uniform(g)))
                               : std::round(4 * test::uniform(g)) / 4);
  t[g() % n] = 0;
  return t;
}

TEST(TotalVariation, NormalRowsStayBelowTheBound) {
  std::mt19937 g(1);
  const double line = test::total_variation_of_ratio(test::kLineHigh / test::kLineLow);
  double worst = 0;
  for (int trial = 0; trial < 600; ++trial) {
    const size_t n = 1 + g() % 900;
    // u >= -14 octaves (published top), -14.75 (top 126): all codes are normal.
    const std::vector<double> paper = random_row(g, n, -14.0 * 8 + 0.5);
    const std::vector<double> wide = random_row(g, n, -14.75 * 8 + 0.5);
    // Rounding of the FMA moves a ratio by less than 2^-20 (docs/numerics.md, F4).
    constexpr double kFma = 0x1p-20;
    const double cut = test::total_variation_of_ratio(test::kLineHigh / (1 - test::kWeightLoss));
    EXPECT_LE(map_row(recipe(RecipeId::vc8_paper), Target::cpu, paper).tv(), line + kFma);
    for (const RecipeId id : {RecipeId::vc8_turbo, RecipeId::vc8}) {
      const double tv = map_row(recipe(id), Target::cpu, wide).tv();
      worst = std::max(worst, tv);
      EXPECT_LE(tv, (id == RecipeId::vc8 ? cut : line) + kFma);
    }
    // FP32 sums: p_n rho_n with |rho - 1| <= 1/17 (half a step above a power of two), half the sum
    // of deviations is 1/34; the exponential is good to 2e-7.
    EXPECT_LE(map_row(recipe(RecipeId::vc8_exp), Target::cpu, wide).tv(), 1.0 / 34 + 1e-6);
  }
  printf("worst of 1200 rows: %.3f %% of %.3f %%\n", 100 * worst, 100 * line);
}

TEST(TotalVariation, OutputErrorIsAtMostTvTimesDiameter) {
  std::mt19937 g(2);
  constexpr size_t kD = 8;
  for (int trial = 0; trial < 60; ++trial) {
    const size_t n = 2 + g() % 300;
    const std::vector<double> t = random_row(g, n, -30.0 * 8);
    std::vector<double> v(n * kD);
    for (double& x : v) x = test::normal(g) * (g() % 97 == 0 ? 30 : 1);
    double diameter = 0;
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < i; ++j) {
        double sum = 0;
        for (size_t c = 0; c < kD; ++c) sum += std::pow(v[i * kD + c] - v[j * kD + c], 2);
        diameter = std::max(diameter, std::sqrt(sum));
      }
    for (const RecipeId id : {RecipeId::vc8_paper, RecipeId::vc8_turbo, RecipeId::vc8}) {
      const MappedRow row = map_row(recipe(id), Target::cpu, t);
      double error = 0;
      for (size_t c = 0; c < kD; ++c) {
        double sum = 0;
        for (size_t i = 0; i < n; ++i) sum += (row.mapped[i] - row.exact[i]) * v[i * kD + c];
        error += sum * sum;
      }
      EXPECT_LE(std::sqrt(error), row.tv() * diameter * (1 + 1e-12)) << recipe(id).name;
    }
  }
}

// ---- F3, F4 --------------------------------------------------------------------------------

TEST(BlockMaximum, EveryRowStaysBelowTheBound) {
  EXPECT_LT(test::kBlockTail, 0.00444);
  const double tau_most = test::kBlockTail / (1 + test::kBlockTail);
  constexpr double kExtra = 1 / (1 - test::kWeightLoss);
  const double bound = test::tail_bound(tau_most, kExtra) + 0x1p-20;
  EXPECT_NEAR(bound, 0.03859, 5e-6);
  const Recipe& vc8 = recipe(RecipeId::vc8);
  const auto check = [&](const char* what, const std::vector<double>& t) {
    const MappedRow row = map_row(vc8, Target::cpu, t);
    const double tau = row.mass_below(8), tv = row.tv();
    EXPECT_LE(tau, tau_most) << what;
    EXPECT_LE(tv, test::tail_bound(tau, kExtra) + 0x1p-20) << what;
    EXPECT_LE(tv, bound) << what;
    printf("%-34s n %6zu  mass below normal %.4f %%  TV %.3f %%\n", what, t.size(), 100 * tau,
           100 * tv);
    return tau;
  };
  constexpr double kEdge = -118.5 + 1.0 / 16 - 0x1p-11;  // just below the last normal code
  // The maximum sits just above a multiple of 1/16, so the reference is almost 1/16 too high.
  std::vector<double> t(128, kEdge);
  t[0] = 0x1p-12;
  EXPECT_NEAR(check("127 keys at the edge, one block", t), tau_most, 1e-6);
  std::vector<double> many;
  for (int j = 0; j < 40; ++j)
    for (const double x : t) many.push_back(x - (j % 7) * 3);
  check("the same in 40 blocks", many);
  // Half of the blocks at the two ends of the line, the other half full of edge keys.
  std::vector<double> mixed;
  for (int j = 0; j < 32; ++j)
    for (int n = 0; n < 128; ++n)
      mixed.push_back(n == 0 ? 0x1p-12 : j % 2 == 0 ? kEdge : n < 74 ? 120.5 - 126 : 123.5 - 126);
  check("two groups and edge keys", mixed);
  std::mt19937 g(3);
  for (const double nats : {4.0, 6.0, 8.0, 11.0}) {
    std::vector<double> bulk(70000);
    for (double& x : bulk) x = test::normal(g) * 0.5 * 8 / std::log(2.0);
    bulk[12345] = 8 / std::log(2.0) * (nats + 2);
    check("one key far above 70,000", bulk);
    for (int i = 0; i < 8; ++i) bulk[static_cast<size_t>(i) * 8191] = bulk[12345];
    check("eight sinks", bulk);
  }
}

// A climb: random changes of a few keys are kept when the total variation rises.
TEST(BlockMaximum, SearchFindsNoRowAboveTheBound) {
  const double bound =
      test::tail_bound(test::kBlockTail / (1 + test::kBlockTail), 1 / (1 - test::kWeightLoss)) +
      0x1p-20;
  const double menu[] = {0,           0x1p-12,   120.5 - 126, 123.5 - 126, 112.5 - 126, 115.5 - 126,
                         123.5 - 134, -118.4380, -119.5,      -126.5,      -140,        -400,
                         112.5 - 134, 2};
  std::mt19937 g(4);
  double best_of_all = 0;
  for (int start = 0; start < 10; ++start) {
    const size_t n = 128 * (1 + g() % 3) - g() % 100;
    std::vector<double> t(n);
    for (double& x : t) x = menu[g() % std::size(menu)];
    double best = 0;
    for (int step = 0; step < 12000; ++step) {
      std::vector<double> next = t;
      const size_t changes = 1 + g() % 8;
      for (size_t i = 0; i < changes; ++i)
        next[g() % n] = g() % 4 == 0 ? -160 * test::uniform(g) : menu[g() % std::size(menu)];
      const double tv = map_row(recipe(RecipeId::vc8), Target::cpu, next).tv();
      ASSERT_LE(tv, bound);
      if (tv > best) {
        best = tv;
        t = next;
      }
    }
    best_of_all = std::max(best_of_all, best);
  }
  printf("highest total variation found %.3f %%, bound %.3f %%\n", 100 * best_of_all, 100 * bound);
  EXPECT_GT(best_of_all, 0.035);  // the search is no idler: it nears the two-group row
}

// ---- E2: no code above 126, m a multiple of 1/16 -------------------------------------------

TEST(CodeLine, NoCodeExceeds126) {
  std::mt19937 g(5);
  int64_t at_top = 0;
  for (int trial = 0; trial < 30000; ++trial) {
    BlockScores s;
    // Factors of any size and mantissa with |t| < 2^23, as B6 guarantees; integers of any size.
    const int bits = 1 + static_cast<int>(g() % 21);
    const int low = -40, high = 23 - bits;
    for (int g4 = 0; g4 < 4; ++g4) {
      const int exponent = low + static_cast<int>(g() % static_cast<uint32_t>(high - low));
      s.a[g4] = static_cast<float>(std::ldexp(1 + test::uniform(g), exponent - (g() % 5 == 0)));
      s.a[g4] = std::min(s.a[g4], static_cast<float>(std::ldexp(1.0, high)));
      if (g() % 50 == 0) s.a[g4] = 0;
    }
    const int32_t span = 1 << bits;
    const auto mask = static_cast<uint32_t>(span) - 1;
    for (int n = 0; n < kBlock; ++n) {
      s.integer[n] = static_cast<int32_t>(g() & mask) * (g() % 2 == 0 ? 1 : -1);
      if (trial % 3 == 0) s.integer[n] = span - 1 - static_cast<int32_t>(g() % 4);  // near the top
      if (trial % 3 == 1) s.integer[n] = -std::abs(s.integer[n]);  // a maximum below zero
      s.value[n] = static_cast<float>(s.integer[n]);
    }
    const float m = s.block_maximum();
    double t_max = -INFINITY;
    for (int n = 0; n < kBlock; ++n)
      t_max = std::max(t_max, static_cast<double>(s.value[n]) * s.a[k_group(n)]);
    const bool fine = std::fabs(t_max) < 0x1p18 - 1;  // where m is exactly a ceiling (E2)
    if (fine) {
      ASSERT_EQ(m * 16, std::floor(m * 16));
    }
    ASSERT_GE(static_cast<double>(m), t_max);
    // Up to 1/16 for the multiple, one unit in the last place for the product; beyond 2^18 the
    // multiple is the unit in the last place of t + 1.5 * 2^19, at most 4 |t| there.
    ASSERT_LE(static_cast<double>(m),
              t_max + 1.0 / 16 + std::fabs(t_max) * (fine ? 0x1p-23 : 0x1p-20));
    // The running maximum may be anything above.
    const float running = trial % 2 == 0 ? m : std::max(m, ceil_sixteenth(m + 3.3f));
    bool valid[kBlock];
    std::fill(valid, valid + kBlock, true);
    BlockP p;
    for (const RecipeId id : {RecipeId::vc8, RecipeId::vc8_paper}) {
      const Recipe& r = recipe(id);
      compute_p(r, Target::cpu, s, running, valid, false, nullptr, p);
      uint8_t largest = 0;
      for (const uint8_t c : p.codes) largest = std::max(largest, c);
      ASSERT_LE(largest, r.top > 120 ? 126 : 120);
      // E1, E2: bias and addend rounded down, one FMA, one rounding.
      const double exact_bias = static_cast<double>(r.top) - static_cast<double>(running);
      auto bias = static_cast<float>(exact_bias);
      if (static_cast<double>(bias) > exact_bias) bias = std::nextafter(bias, -INFINITY);
      double largest_loss = 0;
      for (int n = 0; n < kBlock; ++n) {
        const float a = s.a[k_group(n)];
        const float x = std::fma(12582912.0f + s.value[n], a, fma_rd(-12582912.0f, a, bias));
        ASSERT_EQ(p.codes[n], std::max(0.0f, std::nearbyint(x))) << running;
        // What the offset costs: below the line without it, by offset_loss at most, and half an ulp
        // of what is left.
        const double line = static_cast<double>(s.value[n]) * a + exact_bias;
        const double loss = test::offset_loss(a, exact_bias);
        const double half_ulp = (std::fabs(line) + loss) * 0x1p-24;
        ASSERT_LE(x, line + half_ulp);
        ASSERT_GE(x, line - loss - half_ulp) << a;
        largest_loss = std::max(largest_loss, loss);
      }
      // 126 - m is exact and the best key lies within 1/16 + 1/64 of m: code 126, unless the offset
      // costs the rest of half a code.
      const int expected = r.top > 120 ? 126 : 120;
      const double room = static_cast<double>(r.top) - (expected - 0.5) - 1.0 / 16 - 1.0 / 64;
      if (running == m && fine && largest_loss < room) {
        ASSERT_EQ(largest, expected) << m;
        ++at_top;
      }
    }
  }
  EXPECT_GT(at_top, 8000);
}

}  // namespace
}  // namespace vca
