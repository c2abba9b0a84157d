// SPDX-License-Identifier: Apache-2.0
#include "core/names.hpp"

#include <array>
#include <string_view>

#include "core/status.hpp"

namespace vca::core {
namespace {

using spec::Grouping;

struct GroupingName {
  int32_t number;
  const char* name;
  Grouping kind;
};

constexpr std::array<GroupingName, 7> kGroupings = {{
    {VCA_GROUPING_IDENTITY, "identity", Grouping::identity},
    {VCA_GROUPING_CUBES, "cubes", Grouping::cubes},
    {VCA_GROUPING_KDTREE, "kdtree", Grouping::kdtree},
    {VCA_GROUPING_VSMOOTH, "vsmooth", Grouping::vsmooth},
    {VCA_GROUPING_KMEANS, "kmeans", Grouping::kmeans},
    {VCA_GROUPING_BALANCED, "balanced", Grouping::balanced},
    {VCA_GROUPING_AUTO, "auto", Grouping::automatic},
}};

struct TargetName {
  int32_t number;
  const char* name;
  spec::Target target;
};

constexpr std::array<TargetName, 6> kTargets = {{
    {VCA_TARGET_CPU, "cpu", spec::Target::cpu},
    {VCA_TARGET_SM89, "sm89", spec::Target::sm89},
    {VCA_TARGET_SM90, "sm90", spec::Target::sm90},
    {VCA_TARGET_SM100, "sm100", spec::Target::sm100},
    {VCA_TARGET_SM103, "sm103", spec::Target::sm103},
    {VCA_TARGET_SM120, "sm120", spec::Target::sm120},
}};

constexpr std::string_view kHadamardSuffix = "+had";

// Whatever bytes the caller gave, in a message: cut, and without control characters.
std::string quoted(const char* name) {
  constexpr size_t kShown = 60;
  std::string text(name);
  const bool cut = text.size() > kShown;
  if (cut) text.resize(kShown);
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F) c = '?';
  return "\"" + text + (cut ? "...\"" : "\"");
}

void require_pointers(const char* function, bool present) {
  if (!present) {
    invalid(std::string(function) + ": a pointer is NULL", "NULL", "",
            "pass a name and somewhere to put the result");
  }
}

}  // namespace

const char* recipe_name(int32_t recipe) {
  if (recipe == VCA_RECIPE_AUTO) return "auto";
  for (const spec::Recipe& r : spec::kRecipes)
    if (static_cast<int32_t>(r.id) == recipe) return r.name.data();  // literals: terminated
  return nullptr;
}

const char* grouping_name(int32_t grouping) {
  if (grouping == VCA_GROUPING_DEFAULT) return "default";
  for (const auto& g : kGroupings)
    if (g.number == grouping) return g.name;
  return nullptr;
}

const char* target_name(int32_t target) {
  if (target == VCA_TARGET_AUTO) return "auto";
  for (const auto& t : kTargets)
    if (t.number == target) return t.name;
  return nullptr;
}

const char* dtype_name(int32_t dtype) {
  switch (dtype) {
    case VCA_BF16:
      return "BF16";
    case VCA_FP16:
      return "FP16";
    case VCA_FP32:
      return "FP32";
    default:
      return nullptr;
  }
}

std::string recipe_names() {
  std::string text = "auto";
  for (const spec::Recipe& r : spec::kRecipes) text += ", " + std::string(r.name);
  return text + "; each also with +had";
}

std::string grouping_names() {
  std::string text = "default";
  for (const auto& g : kGroupings) text += std::string(", ") + g.name;
  return text;
}

std::string target_names() {
  std::string text = "auto";
  for (const auto& t : kTargets) text += std::string(", ") + t.name;
  return text;
}

spec::RecipeId resolve_recipe(int32_t recipe) {
  if (recipe == VCA_RECIPE_AUTO) return spec::RecipeId::vc8;
  if (recipe_name(recipe) == nullptr) {
    invalid("recipe is unknown", to_text(int64_t{recipe}), recipe_names(),
            "use a value of vca_recipe");
  }
  return static_cast<spec::RecipeId>(recipe);
}

spec::Grouping resolve_grouping(int32_t grouping, const spec::Recipe& recipe) {
  if (grouping_name(grouping) == nullptr) {
    invalid("grouping is unknown", to_text(int64_t{grouping}), grouping_names(),
            "use a value of vca_grouping");
  }
  if (!recipe.v_smooth()) return Grouping::identity;
  if (grouping == VCA_GROUPING_DEFAULT) return recipe.grouping;
  for (const auto& g : kGroupings)
    if (g.number == grouping) return g.kind;
  return recipe.grouping;
}

int32_t grouping_number(spec::Grouping grouping) {
  for (const auto& g : kGroupings)
    if (g.kind == grouping) return g.number;
  return VCA_GROUPING_IDENTITY;
}

spec::Target resolve_target(int32_t target) {
  if (target == VCA_TARGET_AUTO) return spec::Target::cpu;
  for (const auto& t : kTargets)
    if (t.number == target) return t.target;
  invalid("target is unknown", to_text(int64_t{target}), target_names(),
          "use a value of vca_target");
}

void parse_recipe(const char* name, int32_t* recipe, int32_t* hadamard) {
  require_pointers("vca_recipe_parse", name != nullptr && recipe != nullptr && hadamard != nullptr);
  std::string_view base = name;
  const bool rotated = base.ends_with(kHadamardSuffix);
  if (rotated) base.remove_suffix(kHadamardSuffix.size());
  int32_t number = -1;
  if (base == "auto") number = VCA_RECIPE_AUTO;
  if (const spec::Recipe* r = spec::find_recipe(base)) number = static_cast<int32_t>(r->id);
  if (number < 0) {
    invalid("recipe name is unknown", quoted(name), recipe_names(),
            "names are exact and lower case");
  }
  *recipe = number;
  *hadamard = rotated ? 1 : 0;
}

void parse_grouping(const char* name, int32_t* grouping) {
  require_pointers("vca_grouping_parse", name != nullptr && grouping != nullptr);
  if (std::string_view(name) == "default") {
    *grouping = VCA_GROUPING_DEFAULT;
    return;
  }
  for (const auto& g : kGroupings) {
    if (std::string_view(name) == g.name) {
      *grouping = g.number;
      return;
    }
  }
  invalid("grouping name is unknown", quoted(name), grouping_names(),
          "names are exact and lower case");
}

void parse_target(const char* name, int32_t* target) {
  require_pointers("vca_target_parse", name != nullptr && target != nullptr);
  if (std::string_view(name) == "auto") {
    *target = VCA_TARGET_AUTO;
    return;
  }
  for (const auto& t : kTargets) {
    if (std::string_view(name) == t.name) {
      *target = t.number;
      return;
    }
  }
  invalid("target name is unknown", quoted(name), target_names(), "names are exact and lower case");
}

}  // namespace vca::core
