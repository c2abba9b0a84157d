// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/bench_problems.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "tools/vcattn/errors.hpp"

namespace vca::tools {
namespace {

constexpr const char* kShapesJson =
#include "bench_shapes.inl"  // bench/shapes.json as a string literal, written by CMake
    ;

ProblemCatalogue read_catalogue() {
  const auto json = nlohmann::ordered_json::parse(kShapesJson);
  ProblemCatalogue catalogue;
  for (const auto& [name, entry] : json.at("problems").items())
    catalogue.problems.push_back(
        {name, core::parse_problem(entry.at("problem").get<std::string>()), entry.at("what")});
  for (const auto& [name, members] : json.at("sets").items())
    catalogue.sets.push_back({name, members});
  return catalogue;
}

const NamedProblem* find_name(const std::string& name) {
  const auto& all = problem_catalogue().problems;
  const auto at =
      std::find_if(all.begin(), all.end(), [&](const NamedProblem& p) { return p.name == name; });
  return at == all.end() ? nullptr : &*at;
}

NamedProblem from_text(const std::string& text) {
  core::ProblemText problem;
  try {
    problem = core::parse_problem(text);
  } catch (const core::ProblemTextError& e) {
    throw UserError("--problems: " + e.wrong, e.got, e.allowed, "");
  }
  for (const NamedProblem& named : problem_catalogue().problems)
    if (named.problem == problem) return named;
  return {core::to_text(problem), problem, ""};
}

std::string known_names() {
  std::string text;
  for (const auto& set : problem_catalogue().sets) text += set.name + ", ";
  for (const NamedProblem& p : problem_catalogue().problems) text += p.name + ", ";
  return text + "or " + core::kProblemForm;
}

}  // namespace

const ProblemCatalogue& problem_catalogue() {
  static const ProblemCatalogue catalogue = read_catalogue();
  return catalogue;
}

std::vector<NamedProblem> select_problems(const std::vector<std::string>& wanted) {
  std::vector<NamedProblem> chosen;
  const auto add = [&](const NamedProblem& problem) {
    const bool known = std::any_of(chosen.begin(), chosen.end(),
                                   [&](const NamedProblem& p) { return p.name == problem.name; });
    if (!known) chosen.push_back(problem);
  };
  for (const std::string& word : wanted) {
    const auto& sets = problem_catalogue().sets;
    const auto set =
        std::find_if(sets.begin(), sets.end(), [&](const auto& s) { return s.name == word; });
    if (set != sets.end()) {
      for (const std::string& member : set->members) {
        const NamedProblem* problem = find_name(member);
        if (problem == nullptr) throw std::logic_error("shapes.json: set of unknown " + member);
        add(*problem);
      }
    } else if (const NamedProblem* named = find_name(word)) {
      add(*named);
    } else if (word.find(' ') != std::string::npos) {
      add(from_text(word));
    } else {
      throw UserError("--problems: unknown problem", "\"" + word + "\"", known_names(),
                      "vcattn bench --list shows them");
    }
  }
  return chosen;
}

}  // namespace vca::tools
