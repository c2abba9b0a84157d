// SPDX-License-Identifier: Apache-2.0
// The named problems of bench/shapes.json (compiled in), and problems as the user asks for them.
#pragma once

#include <string>
#include <vector>

#include "core/problem_text.hpp"

namespace vca::tools {

struct NamedProblem {
  std::string name;  // of shapes.json; the text itself for a problem without a name
  core::ProblemText problem;
  std::string what;  // what it is, "" without a name
};

struct ProblemCatalogue {
  std::vector<NamedProblem> problems;
  struct Set {
    std::string name;
    std::vector<std::string> members;
  };
  std::vector<Set> sets;
};

// Checked when first asked for.
const ProblemCatalogue& problem_catalogue();

// Each word is a name, a set or a text in the form of core/problem_text.hpp. In the order given,
// each problem once; a text that has a name gets it. UserError for anything else.
std::vector<NamedProblem> select_problems(const std::vector<std::string>& wanted);

}  // namespace vca::tools
