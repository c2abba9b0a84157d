// SPDX-License-Identifier: Apache-2.0
// Total variation of P on long rows, 70,000 keys as in a 720p clip, beside the published figures:
// ExpCast mean 1.6 %, worst row 17.8 %, below 1.4 % without underflow; exp and cast 1.1 %. The
// table stands in docs/accuracy.md.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "spec/score_rows.hpp"

namespace vca {
namespace {

using namespace spec;
using test::map_row;
using test::MappedRow;

constexpr size_t kKeys = 70000;
constexpr int kRows = 24;
constexpr double kCodesPerNat = 8 * 1.4426950408889634;

double uniform(std::mt19937& g) { return (static_cast<double>(g()) + 0.5) * 0x1p-32; }
double normal(std::mt19937& g) {
  return std::sqrt(-2 * std::log(uniform(g))) * std::cos(2 * M_PI * uniform(g));
}

struct RowFamily {
  std::string name;
  std::function<double(std::mt19937&, size_t)> logit;  // nats
};

std::vector<RowFamily> families() {
  std::vector<RowFamily> out;
  for (const double sigma : {0.5, 1.0, 1.5, 2.0, 3.0, 4.0})
    out.push_back({"Gauss " + std::to_string(sigma).substr(0, 3),
                   [sigma](std::mt19937& g, size_t) { return sigma * normal(g); }});
  out.push_back({"Laplace 1", [](std::mt19937& g, size_t) {
                   const double u = uniform(g) - 0.5;
                   return -std::copysign(std::log(1 - 2 * std::fabs(u)), u);
                 }});
  // 40 neighbouring keys far above a background: attention to one's own surroundings.
  out.push_back({"local cluster +10", [](std::mt19937& g, size_t i) {
                   const bool near = i >= 31000 && i < 31040;
                   return normal(g) * (near ? 1.0 : 0.7) + (near ? 10.0 : 0.0);
                 }});
  // Keys far above a bulk whose own maximum is about 4.4: the rows that lose most.
  out.push_back({"one key at +12.4",
                 [](std::mt19937& g, size_t i) { return i == 31000 ? 12.4 : normal(g); }});
  out.push_back({"one key at +10.4",
                 [](std::mt19937& g, size_t i) { return i == 31000 ? 10.4 : normal(g); }});
  out.push_back({"8 sinks at +7.4", [](std::mt19937& g, size_t i) {
                   return i < 8 ? 7.4 + 0.3 * normal(g) : normal(g);
                 }});
  return out;
}

// TV of a row whose scores are spread evenly over octaves: half the mean of |rho / mean(rho) - 1|
// over one octave of scores.
double dense_tv(const std::function<double(double)>& value) {
  constexpr int kSteps = 1 << 16;
  std::vector<double> rho(kSteps);
  double mean = 0, tv = 0;
  for (int i = 0; i < kSteps; ++i) {
    const double t = -8 * (1 + (i + 0.5) / kSteps);
    mean += (rho[static_cast<size_t>(i)] = value(t) / std::exp2(t / 8)) / kSteps;
  }
  for (const double x : rho) tv += std::fabs(x / mean - 1) / 2 / kSteps;
  return tv;
}

struct Column {
  const char* name;
  RecipeId id;
  double mean = 0, worst = 0, all = 0, worst_of_all = 0;
};

TEST(TotalVariation, DenseRows) {
  const double line =
      dense_tv([](double t) { return e4m3_decode(f2ip_code(static_cast<float>(t + 126))); });
  const double cast = dense_tv([](double t) {
    return e4m3_decode(e4m3_encode(static_cast<float>(448 * std::exp2(t / 8))));
  });
  printf("dense rows: ExpCast %.3f %%, exp and cast %.3f %%\n", 100 * line, 100 * cast);
  EXPECT_NEAR(line, 0.01294, 5e-6);
  EXPECT_NEAR(cast, 0.01126, 5e-6);
  EXPECT_LT(line, 0.014);  // published: < 1.4 % without underflow
}

// F3: two groups at the ends of the line and a tail of code 0 attain the bound.
TEST(TotalVariation, TailBoundIsAttained) {
  std::vector<double> t(400000, 0.4 - 126);  // rounds to code 0; about 7.6 of the top's mass
  t[0] = 0;
  // y = s (t - s) / (b - a) of the mass on the upper end, s = sqrt(a (1 - tau)), t = sqrt(b).
  const double group = 70, tau = 7.6 / (group + 7.6 + 1);
  const double s = std::sqrt(test::kLineLow * (1 - tau)), upper = std::sqrt(test::kLineHigh);
  const double y = s * (upper - s) / (test::kLineHigh - test::kLineLow);
  const auto n_high = static_cast<size_t>(std::lrint(y * (group + 8.6) / std::exp2(-2.5 / 8)));
  const auto n_low =
      static_cast<size_t>(std::lrint((1 - y - tau) * (group + 8.6) / std::exp2(-5.5 / 8)));
  for (size_t i = 1; i <= n_high; ++i) t[i] = 123.5 - 126;
  for (size_t i = 0; i < n_low; ++i) t[n_high + 1 + i] = 120.5 - 126;
  const MappedRow row = map_row(recipe(RecipeId::vc8_turbo), Target::cpu, t);
  const double tail = row.mass_below(8), bound = test::tail_bound(tail);
  printf("tail %.2f %%: TV %.3f %%, bound %.3f %%\n", 100 * tail, 100 * row.tv(), 100 * bound);
  EXPECT_LE(row.tv(), bound + 0x1p-20);
  // The key at the maximum, 1/79 of the mass, stands between the ends: at most b/a - 1 of it.
  EXPECT_GE(row.tv(), bound - (test::kLineHigh - 1) / 79);
}

TEST(TotalVariation, LongRows) {
  std::vector<Column> columns = {{"exp+cast", RecipeId::vc8_exp},
                                 {"vc8-paper", RecipeId::vc8_paper},
                                 {"vc8-turbo", RecipeId::vc8_turbo},
                                 {"vc8", RecipeId::vc8}};
  printf("TV in %% (mean / worst of %d rows of %zu keys)\n%-22s %9s %9s", kRows, kKeys, "logits",
         "n_eff", "tail mass");
  for (const Column& c : columns) printf("  %15s", c.name);
  printf("\n");
  const std::vector<RowFamily> all = families();
  std::mt19937 g(1);
  for (const RowFamily& family : all) {
    double n_eff = 0, tail = 0;
    for (Column& c : columns) c.mean = c.worst = 0;
    for (int row = 0; row < kRows; ++row) {
      std::vector<double> t(kKeys);
      for (size_t i = 0; i < kKeys; ++i) t[i] = kCodesPerNat * family.logit(g, i);
      const double top = *std::max_element(t.begin(), t.end());
      for (Column& c : columns) {
        const MappedRow mapped = map_row(recipe(c.id), Target::cpu, t);
        const double tv = mapped.tv();
        c.mean += tv / kRows;
        c.worst = std::max(c.worst, tv);
        // F3 on every row of the line's three forms; the FMA's rounding is below 2^-20.
        if (recipe(c.id).p == PMap::expcast) {
          EXPECT_LE(tv, test::tail_bound(mapped.mass_below(8)) + 0x1p-20) << family.name;
        }
        if (c.id != RecipeId::vc8) continue;
        EXPECT_LE(mapped.mass_below(8), test::kBlockTail) << family.name;  // F4
        n_eff += mapped.n_eff() / kRows;
        for (size_t i = 0; i < kKeys; ++i)
          if (mapped.t[i] < top - 15 * 8) tail += mapped.exact[i] / kRows;
      }
    }
    printf("%-22s %9.1f %8.2f%%", family.name.c_str(), n_eff, 100 * tail);
    for (Column& c : columns) {
      printf("  %6.2f / %6.2f", 100 * c.mean, 100 * c.worst);
      c.all += c.mean / static_cast<double>(all.size());
      c.worst_of_all = std::max(c.worst_of_all, c.worst);
    }
    printf("\n");
    const double cast = columns[0].mean, paper = columns[1].mean, turbo = columns[2].mean,
                 vc8 = columns[3].mean;
    // Diffuse rows are dense: what is left is the sampling of the phases, 2 % / sqrt(n_eff * rows).
    if (n_eff > 5000) {
      EXPECT_NEAR(cast, 0.01126, 1e-4);
      EXPECT_NEAR(paper, 0.01294, 1e-4);
      EXPECT_NEAR(turbo, 0.01294, 1e-4);
    }
    EXPECT_LT(vc8, turbo) << family.name;
    if (tail > 1e-3) {
      EXPECT_LT(turbo, paper) << family.name;
      EXPECT_LT(vc8, cast) << family.name;
    }
  }
  printf("%-42s", "all");
  for (const Column& c : columns) printf("  %6.2f / %6.2f", 100 * c.all, 100 * c.worst_of_all);
  printf("\n");
  EXPECT_LE(columns[3].all, 0.012);           // the goal
  EXPECT_LE(columns[3].worst_of_all, 0.041);  // and the goal for the worst row; F4 says 3.85 %
}

}  // namespace
}  // namespace vca
