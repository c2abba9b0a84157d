// SPDX-License-Identifier: Apache-2.0
// The measurement behind `vcattn compare`: every recipe on the same query rows of the same tensors,
// against FP64. Knows nothing of options, tables and pages.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "spec/diagnose.hpp"
#include "spec/grouping/grouping.hpp"
#include "spec/recipe.hpp"
#include "spec/target.hpp"
#include "tools/vcattn/compare_input.hpp"

namespace vca::tools {

struct RecipeChoice {
  std::string label;  // as the user wrote it: "vc8+had"
  const spec::Recipe* recipe;
  bool hadamard;            // resolved
  spec::Grouping grouping;  // resolved
};

struct CompareOptions {
  std::vector<RecipeChoice> recipes;
  int64_t rows = 256;  // of each (batch, query head); 0 = all
  std::array<int64_t, 3> grid{};
  spec::Target target = spec::Target::cpu;
  int threads = 0;
  bool curves = false;  // keep what only the report shows
  bool quiet = false;
};

struct RowPlace {
  int64_t batch, head, row;
};

struct WorstRow {
  RowPlace place;
  spec::RowDiagnosis diagnosis;
};

struct RecipeResult {
  RecipeChoice choice;
  spec::Diagnosis figures;
  double energy_removed;  // mean of f over the (batch, kv head), NaN where undefined
  double seconds;

  // For the report.
  std::vector<double> head_energy;            // f, [batches * heads_kv]
  std::vector<spec::Grouping> head_grouping;  // what `auto` chose
  std::vector<double> head_error;             // rel_l2, [batches * heads_q]
  std::vector<double> row_errors;             // of all sampled rows, ascending, NaN left out
  std::vector<WorstRow> worst;                // by error, falling; at most kWorstRows
  std::array<int64_t, 256> histogram{};       // codes of the sampled rows
  spec::RowCurves curves;                     // of worst[0], by token
};
inline constexpr size_t kWorstRows = 5;

struct CompareResult {
  std::vector<RecipeResult> recipes;
  std::vector<int64_t> rows;  // sampled rows, the same for every head
  const char* timed;          // what `seconds` means
  int threads;
};

// Throws Interrupted, and UserError when the library refuses a recipe.
CompareResult run_compare(const CompareInput& in, const CompareOptions& options);

}  // namespace vca::tools
