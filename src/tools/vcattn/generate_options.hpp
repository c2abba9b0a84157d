// SPDX-License-Identifier: Apache-2.0
// What `vcattn generate` was asked to do, checked.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "examples/tiny_video_dit/config.hpp"
#include "vca/vca.h"

namespace vca::tools {

// As typed; empty and negative mean "not given".
struct GenerateArguments {
  std::string recipes;
  std::string class_name;
  uint64_t seed = 1;
  int seeds = 1;
  int steps = -1;
  double guidance = -1;
  std::string model;
  std::vector<std::string> policies;
  std::string grouping;
  std::string out;
  std::string json;
  std::string capture;
  std::string capture_steps;
  std::string lpips_weights;
  int threads = 0;
  bool demo = false;
  bool quiet = false;
};

// window=..,refresh=..,after=reuse|identity|decay,decay=..,share_cfg; what was not said is empty.
struct PolicyChoice {
  std::optional<int32_t> window;  // 0: none
  std::optional<int32_t> refresh;
  std::optional<int32_t> after;
  std::optional<float> decay;
  bool share_cfg = false;
};

struct GenerateOptions {
  // RECIPE or RECIPE@POLICY, as they are shown and as results name them; bf16, the reference, comes
  // first.
  std::vector<std::string> recipes;
  std::string class_name;
  int class_index = 0;
  std::vector<uint64_t> seeds;
  int steps = 1;
  double guidance = 1;
  std::map<std::string, PolicyChoice> policies;  // by name; "" for recipes that name none
  int32_t grouping = VCA_GROUPING_DEFAULT;
  std::filesystem::path model;
  std::filesystem::path out;
  std::filesystem::path json;     // empty: none beside the one in `out`
  std::filesystem::path capture;  // empty: none
  std::vector<int> capture_steps;
  std::filesystem::path lpips_weights;  // empty: none
  int threads = 1;
  bool quiet = false;
};

// Where the model is when --model is not given: beside an installed command, or in the source tree.
std::filesystem::path default_model();

// UserError for anything that is not allowed.
PolicyChoice parse_policy(const std::string& text);
// Of --policy [NAME:]SPEC, given any number of times; an empty name always exists.
std::map<std::string, PolicyChoice> parse_policies(const std::vector<std::string>& texts);
GenerateOptions resolve(const GenerateArguments& arguments, const std::filesystem::path& model_path,
                        const tiny_video_dit::ModelConfig& config);

// "vc8" of "vc8@NAME".
std::string library_recipe(const std::string& recipe);

// The policy that the library gets for a recipe: the published recipes reuse their last order.
vca_policy policy_for(const GenerateOptions& options, const std::string& recipe);

}  // namespace vca::tools
