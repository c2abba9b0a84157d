// SPDX-License-Identifier: Apache-2.0
// The charts of the report, each a piece of SVG (or HTML around several). An empty string when the
// result has nothing to show in one. `exact` and `bf16` are left out where an 8-bit recipe is
// there: their errors would only stretch the scales.
#pragma once

#include <string>
#include <vector>

#include "tools/vcattn/compare_run.hpp"

namespace vca::tools {

// The recipes that charts show.
std::vector<const RecipeResult*> charted(const CompareResult& result);

// Bars: the whole error and the error of each stage alone, by recipe.
std::string stage_chart(const CompareResult& result);

// Error of the single rows: range, middle 80 %, median, by recipe, on a logarithmic axis.
std::string row_chart(const CompareResult& result);

// f by (batch, kv head); recipes with the same figures share a line.
std::string energy_map(const CompareInput& in, const CompareResult& result);

// rel_l2 by (batch, query head) and recipe.
std::string head_error_map(const CompareInput& in, const CompareResult& result);

// Share of each code of P, one small chart a recipe.
std::string code_charts(const CompareResult& result);

// Keys of the worst row by rank: softmax of the own scores against P, one small chart a recipe.
std::string worst_row_charts(const CompareResult& result);

}  // namespace vca::tools
