// SPDX-License-Identifier: Apache-2.0
// `vcattn bench`: its options, and the order of its work.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/names.hpp"
#include "core/parallel.hpp"
#include "tools/vcattn/atomic_file.hpp"
#include "tools/vcattn/bench_output.hpp"
#include "tools/vcattn/bench_run.hpp"
#include "tools/vcattn/commands.hpp"
#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/library_error.hpp"
#include "tools/vcattn/text_table.hpp"
#include "vca/vca.h"

namespace vca::tools {
namespace {

// What a CPU does in seconds; more than that on a CPU has to be asked for.
constexpr double kCpuTeraOperations = 0.25;

struct Arguments {
  std::vector<std::string> problems, recipes, groupings;
  std::string device, json;
  int iterations = 30, warmup = 5, threads = 0;
  double seconds = -1;
  bool whole = false, list = false, quiet = false;
};

BenchRecipe make_recipe(const std::string& name) {
  BenchRecipe r = {};
  if (vca_recipe_parse(name.c_str(), &r.recipe, &r.hadamard) != VCA_OK) throw library_error("");
  r.recipe = static_cast<int32_t>(core::resolve_recipe(r.recipe));
  r.impl = vca_recipe_str(r.recipe);
  // The names of other people's methods belong to their own implementations in a result file.
  const auto theirs = {"exact", "bf16", "fp8", "sage2", "fp4", "sage3"};
  if (std::find(theirs.begin(), theirs.end(), r.impl) != theirs.end()) r.impl += "-ours";
  if (r.hadamard == 1) r.impl += "+had";
  return r;
}

std::vector<BenchRecipe> choose_recipes(const Arguments& args, bool on_gpu) {
  std::vector<std::string> names = args.recipes;
  if (names.empty() && on_gpu) names = {"vc8", "vc8-turbo", "vc8-paper", "vc8-exp", "sage2", "fp8"};
  if (names.empty()) names = {"vc8", "vc8-turbo", "sage2"};
  std::vector<BenchRecipe> recipes;
  for (const std::string& name : names) {
    const BenchRecipe r = make_recipe(name);
    const bool known = std::any_of(recipes.begin(), recipes.end(),
                                   [&](const BenchRecipe& other) { return other.impl == r.impl; });
    if (!known) recipes.push_back(r);
  }
  return recipes;
}

std::vector<BenchGrouping> choose_groupings(const Arguments& args) {
  if (args.groupings.empty())
    return {BenchGrouping::none, BenchGrouping::warm, BenchGrouping::cold};
  std::vector<BenchGrouping> groupings;
  for (const BenchGrouping g : {BenchGrouping::none, BenchGrouping::warm, BenchGrouping::cold})
    if (std::find(args.groupings.begin(), args.groupings.end(), to_string(g)) !=
        args.groupings.end())
      groupings.push_back(g);
  return groupings;
}

struct ChosenPlace {
  std::unique_ptr<Place> place;
  std::string why_cpu;  // when nobody asked for it
};

ChosenPlace choose_place(const Arguments& args) {
  const int threads = core::thread_count(args.threads);
  if (args.device == "cpu") return {cpu_place(threads), ""};
  if (!args.device.empty()) {
    const size_t colon = args.device.find(':');
    return {cuda_place(colon == std::string::npos ? 0 : std::stoi(args.device.substr(colon + 1))),
            ""};
  }
  const std::string refusal = cuda_place_refusal(0);
  if (refusal.empty()) return {cuda_place(0), ""};
  return {cpu_place(threads), refusal};
}

void check_cpu_sizes(const std::vector<NamedProblem>& problems, const std::string& why_cpu) {
  for (const NamedProblem& p : problems) {
    const double tera = p.problem.flops() * 1e-12;
    if (tera <= kCpuTeraOperations) continue;
    throw UserError(p.name + " is too much for a CPU, and there is no GPU: " + why_cpu,
                    formatted("%.4g TFLOP a call", tera),
                    formatted("up to %g TFLOP a call", kCpuTeraOperations),
                    "--device cpu does it all the same");
  }
}

// A name for a full run, which has our rows and those of peers (bench/schema.py).
void check_json_name(const std::string& path) {
  const std::filesystem::path file(path);
  const std::string name = file.filename().string();
  if (name.rfind("h200-", 0) != 0) return;
  if (std::filesystem::absolute(file).parent_path().filename() == "parts") return;
  throw UserError("--json: files called h200-... hold full runs, with peers", path,
                  "bench/results/parts/" + name + ", or another name",
                  "bench/peers.py makes a full run");
}

int run(const Arguments& args) {
  if (args.list) {
    std::vector<std::string> wanted = args.problems;
    if (wanted.empty())
      for (const NamedProblem& p : problem_catalogue().problems) wanted.push_back(p.name);
    std::fputs(problem_list(select_problems(wanted)).c_str(), stdout);
    if (args.problems.empty())
      for (const auto& set : problem_catalogue().sets) {
        std::printf("\n%s:", set.name.c_str());
        for (const std::string& member : set.members) std::printf(" %s", member.c_str());
      }
    if (args.problems.empty()) std::printf("\n");
    return kExitOk;
  }
  if (!args.groupings.empty() && !args.whole)
    throw UserError("--groupings is about preparing", "no --whole", "--whole --groupings ...",
                    "the kernel does the same work for every order");
  BenchOptions options;
  options.problems = select_problems(args.problems);  // before a device is asked for
  if (!args.json.empty()) {
    check_json_name(args.json);
    check_writable(args.json);
  }
  const ChosenPlace chosen = choose_place(args);
  const bool on_gpu = chosen.place->device() >= 0;
  if (options.problems.empty()) options.problems = select_problems({on_gpu ? "models" : "cpu"});
  if (!chosen.why_cpu.empty()) check_cpu_sizes(options.problems, chosen.why_cpu);
  options.recipes = choose_recipes(args, on_gpu);
  options.recipes_given = !args.recipes.empty();
  options.whole = args.whole;
  options.groupings = choose_groupings(args);
  options.timing = {args.warmup, args.iterations,
                    args.seconds >= 0 ? args.seconds : (on_gpu ? 1.0 : 0.0)};
  options.threads = args.threads;
  options.quiet = args.quiet;

  BenchResult result = run_bench(*chosen.place, options);
  const BenchSetting setting = bench_setting(*chosen.place, options);
  if (!chosen.why_cpu.empty()) result.notes.push_back("the CPU was measured: " + chosen.why_cpu);
  if (!args.quiet) std::fputs(bench_table(setting, options, result).c_str(), stdout);
  for (const std::string& wrong : result.wrong)
    std::fprintf(stderr, "vcattn: wrong output: %s\n", wrong.c_str());
  if (!result.wrong.empty()) return kExitCheckFailed;  // and no file: speed of what?
  if (!args.json.empty())
    write_file_atomically(args.json, bench_json(setting, options, result, utc_now()));
  return kExitOk;
}

std::string check_device(const std::string& text) {
  if (text == "cpu" || text == "cuda") return "";
  if (text.rfind("cuda:", 0) == 0 && text.size() > 5 && text.size() <= 8 &&
      text.find_first_not_of("0123456789", 5) == std::string::npos)
    return "";
  return "\"" + text + "\" is none of: cpu, cuda, cuda:N";
}

}  // namespace

void add_bench(CLI::App& app, Commands& commands) {
  auto args = std::make_shared<Arguments>();
  CLI::App* sub = app.add_subcommand(
      "bench", "Speed of our implementations on model shapes, with a check of the output");
  sub->add_option("--problems", args->problems,
                  "names, sets or texts like \"b1 hq40 hkv40 sq75600 skv75600 d128 bf16\", comma "
                  "separated (default: models on a GPU, cpu on a CPU)")
      ->delimiter(',')
      ->type_name("P,Q");
  sub->add_option("--recipes,--recipe", args->recipes,
                  "recipes, comma separated (default: what runs here)")
      ->delimiter(',')
      ->type_name("a,b");
  sub->add_flag("--whole", args->whole, "time preparation and the whole call, too");
  sub->add_option("--groupings", args->groupings,
                  "with --whole: none (token order), warm (the order of the step before), cold (a "
                  "new order); default: all three")
      ->delimiter(',')
      ->check(CLI::IsMember({"none", "warm", "cold"}))
      ->type_name("G,H");
  sub->add_option("--iterations", args->iterations, "timed calls, at least")
      ->check(CLI::Range(1, kMaxIterations))
      ->capture_default_str()
      ->type_name("N");
  sub->add_option("--warmup", args->warmup, "calls before the first timed one")
      ->check(CLI::Range(0, kMaxIterations))
      ->capture_default_str()
      ->type_name("N");
  sub->add_option("--seconds", args->seconds,
                  "and as many calls as fill this time (default: 1 on a GPU, 0 on a CPU)")
      ->check(CLI::Range(0.0, 600.0))
      ->type_name("S");
  sub->add_option("--device", args->device,
                  "cpu, cuda or cuda:N (default: cuda where there is one)")
      ->check(check_device)
      ->type_name("D");
  sub->add_option("--threads", args->threads, "CPU threads; 0 = all")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str()
      ->type_name("N");
  sub->add_option("--json", args->json, "write a result file (bench/schema.py)")->type_name("F");
  sub->add_flag("--list", args->list, "show the problems and measure nothing");
  sub->add_flag("--quiet", args->quiet, "no progress and no table; errors are still told");
  commands.push_back({sub, [args] { return run(*args); }});
}

}  // namespace vca::tools
