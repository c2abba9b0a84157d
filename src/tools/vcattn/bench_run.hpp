// SPDX-License-Identifier: Apache-2.0
// The measurement behind `vcattn bench`: our implementations through the C ABI on random problems.
// Knows nothing of options, tables and files. docs/benchmarking.md says what each figure means.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/vcattn/bench_place.hpp"
#include "tools/vcattn/bench_problems.hpp"

namespace vca::tools {

struct BenchRecipe {
  std::string impl;  // as result files call it: "vc8", "sage2-ours", "vc8+had"
  int32_t recipe;    // vca_recipe, never AUTO
  int32_t hadamard;  // 1 when asked for, else 0
};

// What is done to the order of values inside a timed call.
enum class BenchGrouping {
  none,  // token order
  warm,  // the order of the step before is improved
  cold   // a new order
};
const char* to_string(BenchGrouping grouping);

struct BenchOptions {
  std::vector<NamedProblem> problems;
  std::vector<BenchRecipe> recipes;
  bool recipes_given = false;  // then one that cannot run is an error, not a note
  bool whole = false;          // preparation and the whole call, too
  std::vector<BenchGrouping> groupings = {BenchGrouping::none};  // of prep and whole
  TimingOptions timing;
  int threads = 0;  // of the CPU
  bool quiet = false;
};

struct BenchRow {
  size_t problem = 0;  // index into options.problems
  std::string impl;
  const char* scope = "kernel";  // kernel, prep, whole
  BenchGrouping grouping = BenchGrouping::none;
  double ms_median = 0, ms_min = 0, ms_max = 0;
  std::optional<double> rel_error, clock_mhz, power_w;
};

struct BenchResult {
  std::vector<BenchRow> rows;
  std::vector<std::string> notes;  // what was left out and why
  std::vector<std::string> wrong;  // outputs that are not the answer
};

// Of a head. An output that has nothing to do with the answer has an error of 1 (zeros) or sqrt(2)
// (another head's); on these inputs every 8-bit recipe stays below 0.1, and four-bit codes of Q, K,
// P and V, each about a tenth off, would come to 0.2. What lies above this line is a fault.
inline constexpr double kWrongOutput = 0.5;

// tflops of a row: the attention's operations over the median.
double bench_tflops(const core::ProblemText& problem, double ms);

// Median of some numbers; of an even count the mean of the middle two.
double median(std::vector<double> values);

// UserError when nothing can be measured.
BenchResult run_bench(Place& place, const BenchOptions& options);

}  // namespace vca::tools
