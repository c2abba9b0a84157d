// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/generate_options.hpp"

#include <omp.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tools/vcattn/errors.hpp"

namespace vca::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kReference = "bf16";
constexpr const char* kDemoRecipes =
    "fp8,sage2,vc8-paper,vc8,vc8-turbo,vc8-hq,sage3,vc4,vc4-int8qk";
constexpr const char* kDefaultRecipes = "sage2,vc8";
constexpr const char* kModelFile = "tiny_video_dit/model/tiny_video_dit.safetensors";
constexpr const char* kPolicyForm =
    "window=STEPS, refresh=STEPS, after=reuse|identity|decay, decay=SHARE, share_cfg, separated by "
    "commas";
constexpr const char* kPolicyNameForm =
    "letters, digits, - and _, each name once, at most one policy without a name";

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

template <class T>
T parse_value(const std::string& what, const std::string& text, T low, T high) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  // The negated comparison also refuses NaN.
  if (error != std::errc() || rest != end || !(value >= low && value <= high)) {
    throw UserError("bad " + what, "\"" + text + "\"",
                    "a number from " + std::to_string(low) + " to " + std::to_string(high), "");
  }
  return value;
}

std::string known_recipes() {
  std::string names;
  for (int32_t recipe = VCA_RECIPE_AUTO; vca_recipe_str(recipe) != nullptr; ++recipe) {
    names += (names.empty() ? "" : ", ") + std::string(vca_recipe_str(recipe));
  }
  return names + "; each also with +had, then with @NAME of a --policy NAME:...";
}

// The part behind @; empty without one.
std::string policy_name(const std::string& recipe) {
  const size_t at = recipe.find('@');
  return at == std::string::npos ? "" : recipe.substr(at + 1);
}

std::vector<std::string> resolve_recipes(const std::string& text,
                                         const std::map<std::string, PolicyChoice>& policies) {
  std::vector<std::string> recipes = {kReference};
  for (const std::string& name : split(text)) {
    int32_t recipe = 0;
    int32_t hadamard = 0;
    if (vca_recipe_parse(library_recipe(name).c_str(), &recipe, &hadamard) != VCA_OK) {
      throw UserError("unknown recipe", "\"" + name + "\"", known_recipes(), "");
    }
    const bool named = name.find('@') != std::string::npos;
    const std::string policy = policy_name(name);
    if (named && (policy.empty() || policies.count(policy) == 0)) {
      throw UserError("a recipe names an unknown policy", "\"" + name + "\"", "",
                      "define it with --policy " + (policy.empty() ? "NAME" : policy) + ":...");
    }
    if (std::find(recipes.begin(), recipes.end(), name) == recipes.end()) recipes.push_back(name);
  }
  return recipes;
}

int resolve_class(const std::string& name, const tiny_video_dit::ModelConfig& config) {
  if (name.empty()) return 0;
  const auto found = std::find(config.classes.begin(), config.classes.end(), name);
  if (found == config.classes.end()) {
    std::string allowed;
    for (const std::string& known : config.classes)
      allowed += (allowed.empty() ? "" : ", ") + known;
    throw UserError("unknown class", "\"" + name + "\"", allowed, "");
  }
  return static_cast<int>(found - config.classes.begin());
}

std::vector<int> resolve_capture_steps(const std::string& text, int steps) {
  if (text.empty()) return {steps / 2};
  std::vector<int> chosen;
  for (const std::string& part : split(text)) {
    chosen.push_back(parse_value("--capture-steps", part, 0, steps - 1));
  }
  return chosen;
}

}  // namespace

fs::path default_model() {
  std::error_code ignored;
  const fs::path command = fs::read_symlink("/proc/self/exe", ignored);
  const fs::path installed =
      command.parent_path().parent_path() / VCA_DATA_SUBDIR / "examples" / kModelFile;
  if (!ignored && fs::exists(installed, ignored)) return installed;
  const fs::path source = fs::path(VCA_SOURCE_DIR) / "examples" / kModelFile;
  if (fs::exists(source, ignored)) return source;
  throw UserError("the bundled model was not found",
                  "looked for " + installed.string() + " and " + source.string(), "",
                  "give the weight file with --model FILE");
}

PolicyChoice parse_policy(const std::string& text) {
  PolicyChoice choice;
  if (text.empty()) return choice;
  for (const std::string& part : split(text)) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : part.substr(equals + 1);
    if (key == "window") {
      choice.window = parse_value("--policy window", value, 0, 1000);
    } else if (key == "refresh") {
      choice.refresh = parse_value("--policy refresh", value, 1, 1000);
    } else if (key == "decay") {
      choice.decay = static_cast<float>(parse_value("--policy decay", value, 0.001, 1.0));
    } else if (key == "after" && value == "reuse") {
      choice.after = VCA_AFTER_REUSE;
    } else if (key == "after" && value == "identity") {
      choice.after = VCA_AFTER_IDENTITY;
    } else if (key == "after" && value == "decay") {
      choice.after = VCA_AFTER_REFRESH_ON_DECAY;
    } else if (part == "share_cfg") {
      choice.share_cfg = true;
    } else {
      throw UserError("bad --policy", "\"" + part + "\"", kPolicyForm, "");
    }
  }
  return choice;
}

std::map<std::string, PolicyChoice> parse_policies(const std::vector<std::string>& texts) {
  std::map<std::string, PolicyChoice> policies;
  for (const std::string& text : texts) {
    const size_t colon = text.find(':');
    const bool named = colon != std::string::npos;
    const std::string name = named ? text.substr(0, colon) : "";
    // A name becomes part of file names.
    const bool plain = std::all_of(name.begin(), name.end(), [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '-' || c == '_';
    });
    if ((named && name.empty()) || !plain || policies.count(name) != 0) {
      throw UserError("bad name of a --policy", "\"" + text + "\"", kPolicyNameForm, "");
    }
    policies[name] = parse_policy(named ? text.substr(colon + 1) : text);
  }
  policies.try_emplace("");
  return policies;
}

std::string library_recipe(const std::string& recipe) { return recipe.substr(0, recipe.find('@')); }

GenerateOptions resolve(const GenerateArguments& arguments, const fs::path& model_path,
                        const tiny_video_dit::ModelConfig& config) {
  GenerateOptions options;
  const char* recipes = arguments.demo ? kDemoRecipes : kDefaultRecipes;
  options.policies = parse_policies(arguments.policies);
  options.recipes =
      resolve_recipes(arguments.recipes.empty() ? recipes : arguments.recipes, options.policies);
  options.class_index = resolve_class(arguments.class_name, config);
  options.class_name = config.classes[options.class_index];
  for (int i = 0; i < arguments.seeds; ++i) {
    options.seeds.push_back(arguments.seed + static_cast<uint64_t>(i));
  }
  options.steps = arguments.steps < 0 ? config.steps : arguments.steps;
  if (std::isnan(arguments.guidance)) {  // the parser's range lets it pass
    throw UserError("bad --guidance", "nan", "a number from 0 to 100", "");
  }
  options.guidance = arguments.guidance < 0 ? config.guidance : arguments.guidance;
  if (!arguments.grouping.empty() &&
      vca_grouping_parse(arguments.grouping.c_str(), &options.grouping) != VCA_OK) {
    throw UserError("bad --grouping", "\"" + arguments.grouping + "\"",
                    "identity, cubes, kdtree, vsmooth, kmeans, balanced, auto", "");
  }
  options.model = model_path;
  options.out = arguments.out;
  options.json = arguments.json;
  options.capture = arguments.capture;
  if (options.capture.empty() && !arguments.capture_steps.empty()) {
    throw UserError("--capture-steps without --capture", arguments.capture_steps, "",
                    "say where the tensors go with --capture DIR");
  }
  options.capture_steps = resolve_capture_steps(arguments.capture_steps, options.steps);
  options.lpips_weights = arguments.lpips_weights;
  options.threads = arguments.threads > 0 ? arguments.threads : omp_get_max_threads();
  options.quiet = arguments.quiet;
  return options;
}

vca_policy policy_for(const GenerateOptions& options, const std::string& recipe) {
  const PolicyChoice& choice = options.policies.at(policy_name(recipe));
  vca_policy policy = {};
  policy.struct_size = sizeof(policy);
  policy.steps = options.steps;
  policy.window = choice.window.value_or(0);
  if (choice.window == 0) policy.window = -1;  // the library's word for none
  policy.refresh = choice.refresh.value_or(0);
  const bool published = library_recipe(recipe).find("-paper") != std::string::npos;
  policy.after = choice.after.value_or(published ? VCA_AFTER_REUSE : VCA_AFTER_REFRESH_ON_DECAY);
  policy.decay = choice.decay.value_or(0.0F);
  policy.share_cfg = choice.share_cfg ? 1 : 0;
  return policy;
}

}  // namespace vca::tools
