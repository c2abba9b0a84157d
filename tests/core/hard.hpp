// SPDX-License-Identifier: Apache-2.0
// What the tests of hard input and hard views share.
#pragma once

#include <cstdint>
#include <limits>

#include "tests/core/bounds.hpp"
#include "tests/core/support.hpp"

namespace vca::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

inline constexpr int32_t kCodeRecipes[] = {
    VCA_RECIPE_FP8,     VCA_RECIPE_SAGE2,     VCA_RECIPE_VC8_PAPER,
    VCA_RECIPE_VC8_EXP, VCA_RECIPE_VC8,       VCA_RECIPE_VC8_TURBO,
    VCA_RECIPE_VC8_HQ,  VCA_RECIPE_VC8_FP8QK, VCA_RECIPE_VC8_FP8QK_PAPER};

}  // namespace vca::test
