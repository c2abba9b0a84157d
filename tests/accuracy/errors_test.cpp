// SPDX-License-Identifier: Apache-2.0
// Error budgets of the recipes on calibrated tensors (docs/numerics.md F9) and the error split with
// its share of V (F8): one head of 16 x 32 x 32 tokens, 64 rows, three families, median effective
// number of keys 30 and 300. The figures stand in docs/accuracy.md.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>

#include "accuracy/heads.hpp"
#include "spec/value_stats.hpp"

namespace vca {
namespace {

using namespace spec;
using test::CalibratedHead;

constexpr int64_t kRows = 64;

struct RecipeResult {
  std::vector<RowDiagnosis> rows;  // target cpu
  Diagnosis cpu;
  double sm90 = 0;  // rel_l2
};

// ||O - O_q||^2 of the stages: (P - P_q) V and P_q (V - V_q).
struct Split {
  double p_sq = 0, v_sq = 0;
  double gap_use = 0;  // largest gap of the identity as a part of its bound
  double v_share() const { return v_sq / (p_sq + v_sq); }
};

struct Case {
  std::string name;
  std::map<std::string_view, RecipeResult> of;
  std::vector<double> tail;  // of each row: exact mass below u = -15
  Split sage2, vc8;
};

// O - O_q = (P - P_q) V + P_q (V - V_q) in FP64, with P_q = P W / L and V_q = (mu + residual) s_v;
// the recipe's own O, an FP32 result, closes the identity up to its accumulation.
Split split(const CalibratedHead& h, int64_t rows) {
  const KvOperands& kv = h.kv.view;
  const Recipe& r = *h.p.recipe;
  constexpr int kD = test::kHeadDim;
  Split sum;
  std::vector<float> coded(static_cast<size_t>(kv.n_cols() * kD));
  for (int64_t n = 0; n < kv.n_cols(); ++n)
    for (int c = 0; c < kD; ++c)
      coded[static_cast<size_t>(n * kD + c)] =
          (dequantised_value(r, kv, n, c) + (r.v_smooth() ? kv.mu[n / kBlock * kD + c] : 0.0f)) *
          kv.s_v[c];
  for (int64_t i = 0; i < rows; ++i) {
    RowTraces t(h.p, kv, 1);
    attention_rows(h.p, kv, h.q.view, Target::cpu, sample_slot(i), 1, nullptr, t.outputs());
    double weights = 0;
    std::vector<double> w(static_cast<size_t>(kv.n_blocks));
    for (size_t j = 0; j < w.size(); ++j) {
      w[j] = std::exp2((static_cast<double>(t.m[j]) - t.m_run.back()) / 8);
      weights += w[j] * t.r[j];
    }
    double p_part[kD] = {}, v_part[kD] = {}, size[kD] = {}, mean_size[kD] = {};
    const double* prob = h.exact.prob.data() + i * h.p.s_kv;
    for (int64_t n = 0; n < kv.n_cols(); ++n) {
      const double p_q = t.p[static_cast<size_t>(n)] * w[static_cast<size_t>(n / kBlock)] / weights;
      const int64_t token = kv.order[n];
      for (int c = 0; c < kD; ++c) {
        const double v = h.values[static_cast<size_t>(token * kD + c)];
        const double v_q = coded[static_cast<size_t>(n * kD + c)];
        const double mean = r.v_smooth() ? kv.mu[n / kBlock * kD + c] * kv.s_v[c] : 0.0f;
        p_part[c] += (prob[token] - p_q) * v;
        v_part[c] += p_q * (v - v_q);
        size[c] += p_q * (std::fabs(mean) + std::fabs(v_q - mean));
        mean_size[c] += p_q * std::fabs(mean);
      }
    }
    for (int c = 0; c < kD; ++c) {
      const double o = t.o[static_cast<size_t>(c)];
      const double total = h.exact.o[static_cast<size_t>(i * kD + c)] - o;
      // FP32: 128 terms in a block, two roundings a block, four in the epilogue; block sums are
      // rounded to tf32, which moves the restored means and l by 2^-11.
      const double terms = static_cast<double>(kBlock + 2 * kv.n_blocks + 4);
      const double bound = size[c] * terms * 0x1p-24 +
                           (r.v_smooth() ? (mean_size[c] + std::fabs(o)) * 0x1p-11 : 0.0);
      sum.p_sq += p_part[c] * p_part[c];
      sum.v_sq += v_part[c] * v_part[c];
      sum.gap_use = std::max(sum.gap_use, std::fabs(total - p_part[c] - v_part[c]) / bound);
    }
  }
  return sum;
}

// As shipped, and vc8-turbo with the rotation that vc8-paper has.
const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = [] {
    std::vector<Recipe> list;
    for (const RecipeId id :
         {RecipeId::fp8, RecipeId::sage2, RecipeId::vc8_paper, RecipeId::vc8_exp, RecipeId::vc8,
          RecipeId::vc8_turbo, RecipeId::vc8_hq})
      list.push_back(recipe(id));
    list.push_back(recipe(RecipeId::vc8_turbo));
    list.back().name = "vc8-turbo+had";
    list.back().hadamard = true;
    return list;
  }();
  return all;
}

std::vector<Case> measure() {
  std::vector<Case> out;
  for (const test::Family family : test::kFamilies) {
    std::unique_ptr<CalibratedHead> first;
    for (const double n_eff : {30.0, 300.0}) {
      auto head = std::make_unique<CalibratedHead>(family, test::kSmallGrid, n_eff, 1, kRows);
      if (first != nullptr) first->share_orders(*head);
      Case c;
      c.name = std::string(to_string(family)) + " n_eff " +
               std::to_string(std::lrint(head->tensors.n_eff));
      for (int64_t i = 0; i < kRows; ++i) {
        const double* p = head->exact.prob.data() + i * head->p.s_kv;
        const double floor = *std::max_element(p, p + head->p.s_kv) * 0x1p-15;
        double mass = 0;
        for (int64_t n = 0; n < head->p.s_kv; ++n)
          if (p[n] < floor) mass += p[n];
        c.tail.push_back(mass);
      }
      printf(
          "%s: rel_l2 cpu / sm90 | worst row | QK | P | V | TV mean / max | lost mass mean / max "
          "(all %%) | f\n",
          c.name.c_str());
      for (const Recipe& recipe : recipes()) {
        head->use(recipe);
        RecipeResult r;
        r.rows = head->diagnose(Target::cpu);
        r.cpu = summarise(r.rows);
        // Hopper's arithmetic only where a budget asks for it: it is slow to follow.
        const bool budgeted = recipe.name != "fp8" && recipe.name != "vc8-turbo+had";
        r.sm90 = budgeted ? head->relative_error(Target::sm90, kRows) : NAN;
        const double f = head->kv.view.stats->energy_removed;
        printf(
            "| `%s` | %.3f / %.3f | %.2f | %.3f | %.3f | %.3f | %.2f / %.2f | %.2f / %.2f | "
            "%.3f |\n",
            recipe.name.data(), 100 * r.cpu.rel_l2, 100 * r.sm90, 100 * r.cpu.worst_row,
            100 * r.cpu.qk_only, 100 * r.cpu.p_only, 100 * r.cpu.v_only, 100 * r.cpu.tv_mean,
            100 * r.cpu.tv_max, 100 * r.cpu.tau_mean, 100 * r.cpu.tau_max, f);
        if (recipe.name == "sage2") c.sage2 = split(*head, 16);
        if (recipe.name == "vc8") c.vc8 = split(*head, 16);
        c.of[recipe.name] = std::move(r);
      }
      out.push_back(std::move(c));
      if (first == nullptr) first = std::move(head);
    }
  }
  return out;
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = measure();
  return all;
}

// a / b of rel_l2, on both targets.
struct Ratio {
  double cpu, sm90;
};
Ratio ratio(const Case& c, std::string_view a, std::string_view b) {
  const RecipeResult &x = c.of.at(a), &y = c.of.at(b);
  const Ratio r = {x.cpu.rel_l2 / y.cpu.rel_l2, x.sm90 / y.sm90};
  printf("%-14s %s / %s %.3f (cpu) %.3f (sm90)\n", c.name.c_str(), a.data(), b.data(), r.cpu,
         r.sm90);
  return r;
}

// Over the rows of all cases whose mass below u = -15 lies in [low, high): root mean square of the
// rows' relative errors, so that no family outweighs the others.
double pooled(std::string_view name, double low, double high) {
  double error = 0;
  int64_t count = 0;
  for (const Case& c : cases())
    for (size_t i = 0; i < c.tail.size(); ++i) {
      if (c.tail[i] < low || c.tail[i] >= high) continue;
      const RowDiagnosis& row = c.of.at(name).rows[i];
      error += row.error_sq / row.exact_sq;
      ++count;
    }
  EXPECT_GE(count, 20);  // enough rows on either side to speak of
  return std::sqrt(error / static_cast<double>(count));
}

void vc8_against_sage2() {
  for (const Case& c : cases()) {
    const Ratio r = ratio(c, "vc8", "sage2");
    EXPECT_LE(r.cpu, 0.85) << c.name;
    EXPECT_LE(r.sm90, 0.85) << c.name;
  }
}

void vc8_hq_against_sage2() {
  for (const Case& c : cases()) {
    const Ratio r = ratio(c, "vc8-hq", "sage2");
    EXPECT_LE(r.cpu, 0.6) << c.name;
    EXPECT_LE(r.sm90, 0.6) << c.name;
  }
}

// Mean and standard error of ln(error of a / error of b) over rows, row by row.
struct Paired {
  double sum = 0, sum2 = 0;
  int64_t n = 0;
  void add(const RecipeResult& a, const RecipeResult& b) {
    for (size_t i = 0; i < a.rows.size(); ++i) {
      const double x = std::log(a.rows[i].relative_error() / b.rows[i].relative_error());
      sum += x;
      sum2 += x * x;
      ++n;
    }
  }
  double mean() const { return sum / static_cast<double>(n); }
  double standard_error() const {
    const auto count = static_cast<double>(n);
    return std::sqrt((sum2 / count - mean() * mean()) / (count - 1));
  }
};

// Holds on the average row, not in every case: vc8-exp restores its means from FP32 sums, so its
// map's error meets the residual of V alone, 1 - f of the energy, while decoded sums carry the
// map's error into the means. On diffuse rows over strongly clustered V (GA and GC, n_eff 300) that
// outweighs the block maximum by up to 5 %. docs/accuracy.md.
void vc8_against_exp_and_cast() {
  Paired all;
  double product_cpu = 1, product_sm90 = 1;
  for (const Case& c : cases()) {
    const Ratio r = ratio(c, "vc8", "vc8-exp");
    product_cpu *= r.cpu;
    product_sm90 *= r.sm90;
    Paired here;
    here.add(c.of.at("vc8"), c.of.at("vc8-exp"));
    all.add(c.of.at("vc8"), c.of.at("vc8-exp"));
    printf("    by row: %+.1f %% +- %.1f %%\n", 100 * here.mean(), 100 * here.standard_error());
    // The documented exception, and three standard errors of what these rows can tell.
    EXPECT_LE(here.mean(), 0.05 + 3 * here.standard_error()) << c.name;
  }
  printf("    all rows: %+.1f %% +- %.1f %%\n", 100 * all.mean(), 100 * all.standard_error());
  EXPECT_LE(all.mean(), 0.0);
  EXPECT_LE(std::pow(product_cpu, 1.0 / 6), 1.0);
  EXPECT_LE(std::pow(product_sm90, 1.0 / 6), 1.0);
}

void turbo_against_paper() {
  for (const Case& c : cases()) {
    const Ratio r = ratio(c, "vc8-turbo", "vc8-paper");
    EXPECT_LT(r.cpu, 1.0) << c.name;
    EXPECT_LT(r.sm90, 1.0) << c.name;
  }
  for (const auto& [low, high] : {std::pair{1e-2, 2.0}, {-1.0, 1e-2}, {-1.0, 1e-3}, {-1.0, 1e-5}})
    printf(
        "mass below u = -15 in [%g, %g): turbo %.3f %%, with the rotation %.3f %%, paper %.3f %%\n",
        low, high, 100 * pooled("vc8-turbo", low, high), 100 * pooled("vc8-turbo+had", low, high),
        100 * pooled("vc8-paper", low, high));
  EXPECT_LT(pooled("vc8-turbo", 1e-2, 2.0), pooled("vc8-paper", 1e-2, 2.0));
  EXPECT_LE(pooled("vc8-turbo", -1.0, 1e-2), 1.02 * pooled("vc8-paper", -1.0, 1e-2));
  // Rows without any tail have nothing to gain from the top code; there the published recipe's
  // rotation of Q and K shows, which vc8-turbo leaves out. With it, 1.02 holds there too.
  EXPECT_LE(pooled("vc8-turbo+had", -1.0, 1e-5), 1.02 * pooled("vc8-paper", -1.0, 1e-5));
}

void identity_and_share_of_v() {
  for (const Case& c : cases()) {
    for (const auto& [name, s] : {std::pair{"sage2", c.sage2}, {"vc8", c.vc8}}) {
      printf(
          "%-14s %-6s share of V in the error energy %.0f %%, identity within %.2f of its bound\n",
          c.name.c_str(), name, 100 * s.v_share(), s.gap_use);
      EXPECT_LE(s.gap_use, 1.0) << name;
    }
    // What V-Smooth is for: it takes V's part down. Its share need not fall, because P's part falls
    // too, and more where V is clustered.
    EXPECT_LT(c.vc8.v_sq, c.sage2.v_sq) << c.name;
  }
}

// One test: every program start measures all cases again.
TEST(Errors, BudgetsOnCalibratedTensors) {
  vc8_against_sage2();
  vc8_hq_against_sage2();
  vc8_against_exp_and_cast();
  turbo_against_paper();
  identity_and_share_of_v();
}

}  // namespace
}  // namespace vca
