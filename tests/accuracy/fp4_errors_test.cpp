// SPDX-License-Identifier: Apache-2.0
// Errors of the NVFP4 recipes (docs/numerics.md F12) on the calibrated tensors and on a captured
// head of the bundled video DiT, and the choices that rest on them: query means, rotation,
// micro-scale and ExpCast4 (docs/decisions/0007, 0008). The figures stand in docs/accuracy-4bit.md.
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "accuracy/heads.hpp"
#include "tools/vcattn/safetensors.hpp"

namespace vca {
namespace {

using namespace spec;
using test::CalibratedHead;

Recipe variant(RecipeId id, const char* name) {
  Recipe r = recipe(id);
  r.name = name;
  return r;
}

std::vector<Recipe> shipped() {
  std::vector<Recipe> list;
  for (const RecipeId id :
       {RecipeId::fp4, RecipeId::sage3, RecipeId::vc4_paper, RecipeId::vc4, RecipeId::vc4_int8qk})
    list.push_back(recipe(id));
  return list;
}

// The choices behind vc4: every combination of rotation, query means and micro-scale, ExpCast4, and
// rotation elsewhere. "r" rotated, "q" query means, "3" micro-scale of three.
std::vector<Recipe> choices() {
  static const char* const kNames[] = {"---", "r--", "-q-", "rq-", "--3", "r-3", "-q3", "rq3"};
  std::vector<Recipe> list = {recipe(RecipeId::sage3)};
  for (int i = 0; i < 8; ++i) {
    Recipe r = variant(RecipeId::vc4, kNames[i]);
    r.hadamard = (i & 1) != 0;
    r.q_mean = (i & 2) != 0;
    r.micro_of_three = (i & 4) != 0;
    list.push_back(r);
  }
  Recipe r = variant(RecipeId::vc4, "rq3 ExpCast4");
  r.hadamard = r.q_mean = true;
  r.p = PMap::expcast4;
  list.push_back(r);
  list.push_back(recipe(RecipeId::vc4_int8qk));
  r = variant(RecipeId::vc4_int8qk, "int8qk ExpCast4");
  r.p = PMap::expcast4;
  list.push_back(r);
  r = variant(RecipeId::vc4_int8qk, "int8qk, amax/6");
  r.micro_of_three = false;
  list.push_back(r);
  r = variant(RecipeId::vc4_int8qk, "int8qk, rotated");
  r.hadamard = true;
  list.push_back(r);
  r = variant(RecipeId::sage3, "sage3, rotated");
  r.hadamard = true;
  list.push_back(r);
  return list;
}

// VCA_STUDY=1 measures the choices on three seeds (some ten minutes) and asserts nothing.
// VCA_STUDY=heads holds the budgets on five seeds of 256 rows a head (some ten minutes): seeds 4
// and 5 were looked at after vc4 had been chosen.
std::string study_kind() {
  const char* value = std::getenv("VCA_STUDY");
  return value != nullptr ? value : "";
}
bool study() { return study_kind() == "1"; }
bool many_heads() { return study_kind() == "heads"; }

// A few peaky rows decide the error of a head: the ratio of two recipes on one head has a standard
// error of 0.06 to 0.16 with 32 rows, of 0.03 to 0.09 with 128 (docs/accuracy-4bit.md).
int64_t rows_of_head() { return study() ? 32 : many_heads() ? 256 : 128; }

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> all = study() ? choices() : shipped();
  return all;
}

struct Result {
  std::vector<RowDiagnosis> rows;
  Diagnosis all;
};

struct Case {
  std::string name;
  std::map<std::string_view, Result> of;
  double ratio(std::string_view a, std::string_view b) const {
    return of.at(a).all.rel_l2 / of.at(b).all.rel_l2;
  }
};

Case measure(CalibratedHead& head, std::string name) {
  Case c{std::move(name), {}};
  printf("%s: rel_l2 cpu / sm120 | QK | P | V (all %%) | TV mean / max | f\n", c.name.c_str());
  for (const Recipe& r : recipes()) {
    head.use(r);
    Result result;
    result.rows = head.diagnose(Target::cpu);
    const Diagnosis& d = result.all = summarise(result.rows);
    // Blackwell's arithmetic is slow to follow: a few rows, and not in the study.
    const double chip = study() || many_heads() ? NAN : head.relative_error(Target::sm120, 16);
    printf("| `%s` | %.3f / %.3f | %.3f | %.3f | %.3f | %.2f / %.2f | %.3f |\n", r.name.data(),
           100 * d.rel_l2, 100 * chip, 100 * d.qk_only, 100 * d.p_only, 100 * d.v_only,
           100 * d.tv_mean, 100 * d.tv_max,
           static_cast<double>(head.kv.view.stats->energy_removed));
    fflush(stdout);
    c.of[r.name] = std::move(result);
  }
  return c;
}

std::unique_ptr<CalibratedHead> captured() {
  const tools::SafetensorsFile file(std::string(VCA_SOURCE_DIR) +
                                    "/tests/golden/dit_capture_l2_s3.safetensors");
  test::CalibratedTensors t;
  t.grid = {14, 13, 23};
  t.n = 14 * 13 * 23;
  for (auto& [name, into] : {std::pair{"q", &t.q}, {"k", &t.k}, {"v", &t.v}}) {
    const auto* data = static_cast<const uint16_t*>(file.data(file.require(name)));
    for (int64_t i = 0; i < t.n * test::kHeadDim; ++i) into->push_back(bf16_decode(data[i]));
  }
  return std::make_unique<CalibratedHead>(std::move(t), rows_of_head());
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = [] {
    std::vector<Case> out;
    const auto head = captured();
    out.push_back(measure(*head, "DiT layer 2, step 3"));
    for (uint64_t seed = 1; seed <= (study() ? 3 : many_heads() ? 5 : 1); ++seed)
      for (const test::Family family : test::kFamilies) {
        std::unique_ptr<CalibratedHead> first;
        for (const double n_eff : {30.0, 300.0}) {
          auto h = std::make_unique<CalibratedHead>(family, test::kSmallGrid, n_eff, seed,
                                                    rows_of_head());
          if (first != nullptr) first->share_orders(*h);
          out.push_back(measure(*h, std::string(to_string(family)) + " n_eff " +
                                        std::to_string(std::lrint(h->tensors.n_eff))));
          if (first == nullptr) first = std::move(h);
        }
      }
    return out;
  }();
  return all;
}

// The definition of F12: one error of a recipe over all sampled rows and heads of a set of tensors,
// sqrt(sum |o - o*|^2) / sqrt(sum |o*|^2), as a ratio of two recipes. A set: the heads whose names
// begin with `set`.
double pooled_ratio(const std::string& set, std::string_view a, std::string_view b) {
  std::vector<RowDiagnosis> of_a, of_b;
  for (const Case& c : cases()) {
    if (c.name.rfind(set, 0) != 0) continue;
    of_a.insert(of_a.end(), c.of.at(a).rows.begin(), c.of.at(a).rows.end());
    of_b.insert(of_b.end(), c.of.at(b).rows.begin(), c.of.at(b).rows.end());
  }
  const double ratio = summarise(of_a).rel_l2 / summarise(of_b).rel_l2;
  printf("%-6s %-12s / %-8s %.3f over %zu rows\n", set.c_str(), a.data(), b.data(), ratio,
         of_a.size());
  return ratio;
}

// Geometric means over the cases of error ratios, with the standard error over the cases: of the
// rel_l2 of a case, which a few peaky rows decide, and of the typical row (mean of logarithms).
struct Ratio {
  double rel_l2, row, row_error;
};
Ratio ratio(std::string_view a, std::string_view b) {
  double pooled = 0, sum = 0, sum2 = 0;
  const auto n = static_cast<double>(cases().size());
  for (const Case& c : cases()) {
    const auto &x = c.of.at(a).rows, &y = c.of.at(b).rows;
    double rows = 0;
    for (size_t i = 0; i < x.size(); ++i)
      rows += std::log(x[i].relative_error() / y[i].relative_error());
    rows /= static_cast<double>(x.size());
    pooled += std::log(c.ratio(a, b)) / n;
    sum += rows / n;
    sum2 += rows * rows / n;
  }
  const Ratio r = {std::exp(pooled), std::exp(sum), std::sqrt((sum2 - sum * sum) / (n - 1))};
  printf("%-18s / %-12s rel_l2 %.3f, typical row %.3f +- %.1f %%\n", a.data(), b.data(), r.rel_l2,
         r.row, 100 * r.row_error);
  return r;
}

TEST(Fp4Errors, Budgets) {
  if (study()) {
    for (const Recipe& r : recipes()) ratio(r.name, "sage3");
    for (const auto& [a, b] : {std::pair{"r-3", "--3"},
                               {"rq3", "-q3"},
                               {"-q3", "--3"},
                               {"rq3", "r-3"},
                               {"--3", "---"},
                               {"rq3", "rq-"},
                               {"rq3 ExpCast4", "rq3"},
                               {"int8qk ExpCast4", "vc4-int8qk"},
                               {"vc4-int8qk", "int8qk, amax/6"},
                               {"int8qk, rotated", "vc4-int8qk"}})
      ratio(a, b);
    return;
  }
  for (const Case& c : cases())
    for (const char* name : {"fp4", "vc4-paper", "vc4", "vc4-int8qk"})
      printf("%-20s %s / sage3 %.3f\n", c.name.c_str(), name, c.ratio(name, "sage3"));
  // Calibrated sets of 16,384 tokens: each family, and all of them ("G"); the captured head.
  for (const char* set : {"GA", "GB", "GC", "G", "DiT"}) {
    EXPECT_LT(pooled_ratio(set, "vc4-paper", "sage3"), 1.0) << set;
    EXPECT_LE(pooled_ratio(set, "vc4", "sage3"), 0.92) << set;
    EXPECT_LE(pooled_ratio(set, "vc4-int8qk", "sage3"), 0.6) << set;
  }
}

}  // namespace
}  // namespace vca
