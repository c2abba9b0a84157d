// SPDX-License-Identifier: Apache-2.0
// `vcattn compare`: its options, and the order of its work.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/names.hpp"
#include "spec/mma_fp4.hpp"
#include "tools/vcattn/atomic_file.hpp"
#include "tools/vcattn/commands.hpp"
#include "tools/vcattn/compare_input.hpp"
#include "tools/vcattn/compare_output.hpp"
#include "tools/vcattn/compare_run.hpp"
#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/generate_output.hpp"
#include "tools/vcattn/library_error.hpp"
#include "tools/vcattn/report/report.hpp"
#include "vca/vca.h"

namespace vca::tools {
namespace {

constexpr int64_t kMaxTokens = INT32_MAX;

struct Arguments {
  std::string file, layout = "HND", grouping = "default", target = "cpu", json, report;
  std::vector<std::string> recipes;
  std::vector<int64_t> grid;
  int64_t rows = 256;
  int threads = 0;
  bool quiet = false;
};

void check_name(vca_status status) {
  if (status != VCA_OK) throw library_error("");
}

RecipeChoice make_choice(const std::string& name, int32_t grouping) {
  int32_t number = 0, hadamard = 0;
  check_name(vca_recipe_parse(name.c_str(), &number, &hadamard));
  RecipeChoice choice;
  choice.recipe = &spec::recipe(core::resolve_recipe(number));
  choice.hadamard = choice.recipe->hadamard || hadamard == 1;
  choice.grouping = core::resolve_grouping(grouping, *choice.recipe);
  choice.label = choice.recipe->name;
  if (hadamard == 1) choice.label += "+had";
  return choice;
}

// Without --recipes: all that the target's chip can run.
std::vector<RecipeChoice> choose_recipes(const Arguments& args, spec::Target target) {
  int32_t grouping = VCA_GROUPING_DEFAULT;
  if (args.grouping != "default") check_name(vca_grouping_parse(args.grouping.c_str(), &grouping));
  std::vector<std::string> names = args.recipes;
  if (names.empty())
    for (const spec::Recipe& r : spec::kRecipes)
      if (!r.four_bit() || spec::has_nvfp4(target)) names.emplace_back(r.name);
  std::vector<RecipeChoice> choices;
  for (const std::string& name : names) {
    RecipeChoice choice = make_choice(name, grouping);
    if (choice.recipe->four_bit() && !spec::has_nvfp4(target)) {
      throw UserError("recipe " + choice.label + " needs NVFP4 matrix instructions",
                      "--target " + std::string(spec::to_string(target)) + ", which has none",
                      "cpu, sm100, sm103, sm120", "");
    }
    const bool known = std::any_of(choices.begin(), choices.end(),
                                   [&](const RecipeChoice& c) { return c.label == choice.label; });
    if (!known) choices.push_back(std::move(choice));
  }
  return choices;
}

void check_grid(const Arguments& args, const CompareInput& in, const CompareOptions& options) {
  if (!args.grid.empty()) {
    int64_t tokens = 1;
    bool overflow = false;
    for (int64_t extent : args.grid)
      overflow = overflow || __builtin_mul_overflow(tokens, extent, &tokens);
    if (overflow || tokens != in.tokens_kv) {
      throw UserError("--grid does not fit the keys",
                      std::to_string(args.grid[0]) + "," + std::to_string(args.grid[1]) + "," +
                          std::to_string(args.grid[2]),
                      "T,H,W with T*H*W = " + std::to_string(in.tokens_kv) + " tokens", "");
    }
    return;
  }
  for (const RecipeChoice& choice : options.recipes) {
    if (choice.grouping == spec::Grouping::cubes) {
      throw UserError("--grouping cubes needs the shape of the clip", "no --grid",
                      "--grid T,H,W with T*H*W = " + std::to_string(in.tokens_kv) + " tokens", "");
    }
  }
}

// Also of files that do not exist yet.
bool same_file(const std::filesystem::path& a, const std::filesystem::path& b) {
  std::error_code error;
  if (std::filesystem::equivalent(a, b, error)) return true;
  const auto real_a = std::filesystem::weakly_canonical(a, error);
  if (error) return false;
  const auto real_b = std::filesystem::weakly_canonical(b, error);
  return !error && real_a == real_b;
}

std::filesystem::path report_file(const Arguments& args) {
  return std::filesystem::path(args.report) / kReportFile;
}

void check_outputs(const Arguments& args, OutputSet& outputs) {
  if (!args.json.empty()) {
    if (same_file(args.json, args.file))
      throw UserError("--json would overwrite the input", args.json, "another file", "");
    if (!args.report.empty() && same_file(args.json, report_file(args)))
      throw UserError("--json and --report would write one file", args.json,
                      "a name of its own for each", "");
    check_writable(args.json);
  }
  if (!args.report.empty()) {
    if (same_file(report_file(args), args.file))
      throw UserError("--report would overwrite the input", report_file(args).string(),
                      "another directory", "");
    outputs.make_directory(args.report);
    check_writable(report_file(args));
  }
}

int run(const Arguments& args) {
  CompareOptions options;
  int32_t target = 0;
  check_name(vca_target_parse(args.target.c_str(), &target));
  options.target = core::resolve_target(target);
  options.recipes = choose_recipes(args, options.target);
  options.rows = args.rows;
  options.threads = args.threads;
  options.quiet = args.quiet;
  options.curves = !args.report.empty();
  const CompareInput in =
      load_compare_input(args.file, args.layout == "NHD" ? Layout::nhd : Layout::hnd);
  check_grid(args, in, options);
  for (size_t i = 0; i < args.grid.size(); ++i) options.grid[i] = args.grid[i];
  OutputSet outputs;  // takes away what this run made when it does not end well
  check_outputs(args, outputs);

  const CompareResult result = run_compare(in, options);

  if (!args.json.empty()) {
    outputs.adopt(args.json);
    write_file_atomically(args.json, compare_json(in, options, result, args.grouping));
  }
  if (!args.report.empty()) {
    outputs.adopt(report_file(args));
    write_file_atomically(report_file(args), report_page(in, options, result, args.grouping));
  }
  outputs.commit();
  if (!args.quiet) {
    std::fputs(compare_table(in, options, result).c_str(), stdout);
    if (!args.report.empty()) std::printf("report: %s\n", report_file(args).string().c_str());
  }
  return kExitOk;
}

}  // namespace

void add_compare(CLI::App& app, Commands& commands) {
  auto args = std::make_shared<Arguments>();
  CLI::App* sub = app.add_subcommand(
      "compare", "Error of every recipe on a dump of q, k and v, against FP64 attention");
  sub->add_option("file", args->file, "safetensors file with tensors q, k, v (BF16, F16 or F32)")
      ->required()
      ->type_name("FILE");
  sub->add_option("--recipes,--recipe", args->recipes,
                  "recipes, comma separated; +had adds a Hadamard rotation (default: all)")
      ->delimiter(',')
      ->type_name("a,b");
  sub->add_option("--rows", args->rows, "query rows of each (batch, head), evenly spread; 0 = all")
      ->check(CLI::Range(int64_t{0}, kMaxTokens))
      ->capture_default_str()
      ->type_name("N");
  sub->add_option("--grid", args->grid, "T,H,W of the clip (for --grouping cubes)")
      ->delimiter(',')
      ->expected(3)
      ->check(CLI::Range(int64_t{1}, kMaxTokens))
      ->type_name("T,H,W");
  sub->add_option("--layout", args->layout, "HND: [B, H, S, D]; NHD: [B, S, H, D]")
      ->check(CLI::IsMember({"HND", "NHD"}))
      ->capture_default_str()
      ->type_name("L");
  sub->add_option("--grouping", args->grouping,
                  "identity, cubes, kdtree, vsmooth, kmeans, balanced or auto, for every recipe "
                  "with block means (default: the recipe's own)")
      ->type_name("G");
  sub->add_option("--target", args->target, "chip whose arithmetic to follow: cpu, sm90, ...")
      ->capture_default_str()
      ->type_name("T");
  sub->add_option("--threads", args->threads, "CPU threads; 0 = all")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str()
      ->type_name("N");
  sub->add_option("--json", args->json, "write the figures to this file")->type_name("F");
  sub->add_option("--report", args->report, "write a page with charts to this directory")
      ->type_name("DIR");
  sub->add_flag("--quiet", args->quiet, "no progress and no table; errors are still told");
  commands.push_back({sub, [args] { return run(*args); }});
}

}  // namespace vca::tools
