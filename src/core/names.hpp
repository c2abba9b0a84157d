// SPDX-License-Identifier: Apache-2.0
// Names of the enums of vca.h, and their counterparts in the specification.
#pragma once

#include <string>

#include "spec/grouping/grouping.hpp"
#include "spec/recipe.hpp"
#include "spec/target.hpp"
#include "vca/vca.h"

namespace vca::core {

// NULL when unknown.
const char* recipe_name(int32_t recipe);
const char* grouping_name(int32_t grouping);
const char* target_name(int32_t target);
const char* dtype_name(int32_t dtype);

// "auto, exact, bf16, ..." for messages.
std::string recipe_names();
std::string grouping_names();
std::string target_names();

// VCA_RECIPE_AUTO gives the CPU's default, vc8.
spec::RecipeId resolve_recipe(int32_t recipe);
// VCA_GROUPING_DEFAULT gives the recipe's own; recipes without V-Smooth are never reordered.
spec::Grouping resolve_grouping(int32_t grouping, const spec::Recipe& recipe);
int32_t grouping_number(spec::Grouping grouping);
// VCA_TARGET_AUTO gives the CPU.
spec::Target resolve_target(int32_t target);

void parse_recipe(const char* name, int32_t* recipe, int32_t* hadamard);
void parse_grouping(const char* name, int32_t* grouping);
void parse_target(const char* name, int32_t* target);

}  // namespace vca::core
