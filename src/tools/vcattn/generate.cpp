// SPDX-License-Identifier: Apache-2.0
// `vcattn generate`: the bundled video DiT through each recipe, against its own BF16 clip.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>

#include "tools/vcattn/atomic_file.hpp"
#include "tools/vcattn/commands.hpp"
#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/generate_capture.hpp"
#include "tools/vcattn/generate_model.hpp"
#include "tools/vcattn/generate_output.hpp"
#include "tools/vcattn/generate_report.hpp"
#include "tools/vcattn/interrupt.hpp"
#include "tools/vcattn/progress.hpp"

namespace vca::tools {
namespace {

namespace fs = std::filesystem;

constexpr int kContactColumns = 7;
constexpr int kSheetColumns = 6;

// All recipes of one seed.
class SeedRun {
 public:
  SeedRun(tiny_video_dit::Dit& dit, const GenerateOptions& options, const Lpips* lpips,
          CaptureWriter* capture, Progress& progress)
      : dit_(dit), options_(options), lpips_(lpips), capture_(capture), progress_(progress) {}

  SeedOutput run(size_t seed_index) {
    SeedOutput output;
    output.seed = options_.seeds[seed_index];
    const std::string folder =
        options_.seeds.size() > 1 ? "seed-" + std::to_string(output.seed) + "/" : "";
    Trajectory trajectory;
    std::unique_ptr<PerceptualTools> tools;
    for (size_t r = 0; r < options_.recipes.size(); ++r) {
      ClipOutput clip;
      clip.run = generate(seed_index, r, trajectory);
      if (r > 0) clip.run.quality = measure(clip.run.clip, output.clips[0].run.clip, tools);
      clip.video = encode_video(clip.run.clip, dit_.config().fps);
      clip.video_name = folder + clip.run.recipe + "." + clip.video.extension;
      clip.frames_png = encode_png(contact_sheet(clip.run.clip, kContactColumns));
      clip.frames_name = folder + clip.run.recipe + "-frames.png";
      output.clips.push_back(std::move(clip));
      check_interrupt();
    }
    make_sheets(output);
    return output;
  }

 private:
  RecipeRun generate(size_t seed_index, size_t recipe_index, Trajectory& trajectory) {
    ClipRequest request;
    request.recipe = options_.recipes[recipe_index];
    request.seed = options_.seeds[seed_index];
    request.fill_trajectory = recipe_index == 0;
    request.progress = [&](int step) {
      progress_.update(++done_, request.recipe + ", step " + std::to_string(step + 1) + " of " +
                                    std::to_string(options_.steps));
    };
    if (capture_ != nullptr && recipe_index == 0 && seed_index == 0) {
      request.observer = [&](const tiny_video_dit::AttentionCall& call, int step, int branch) {
        capture_->observe(call, step, branch);
      };
    }
    return generate_clip(dit_, options_, request, trajectory);
  }

  // The tools want the reference's frames on disk once; `tools` is made at the first call.
  std::map<std::string, Measure> measure(const Clip& clip, const Clip& reference,
                                         std::unique_ptr<PerceptualTools>& tools) const {
    progress_.update(done_, "measuring");
    std::map<std::string, Measure> quality;
    try {
      if (!tools) {
        tools = std::make_unique<PerceptualTools>(reference, dit_.config().fps, options_.threads);
      }
      quality = tools->measure(clip);
    } catch (const std::runtime_error& error) {
      // A full or read-only temporary directory costs these measures, not the run.
      for (const char* name : kPerceptualMeasures) quality[name] = {std::nullopt, error.what()};
    }
    quality["psnr"] = {psnr_db(clip, reference), ""};
    quality["ssim"] = ssim(clip, reference);
    quality["lpips"] = lpips_ == nullptr
                           ? Measure{std::nullopt, "needs weights: --lpips-weights FILE"}
                           : lpips_->distance(clip, reference, options_.threads);
    return quality;
  }

  static std::string psnr_note(const RecipeRun& run) {
    const auto psnr = run.quality.find("psnr");
    if (psnr == run.quality.end()) return "reference";
    char text[32];
    std::snprintf(text, sizeof text, "%.2f dB", *psnr->second.value);
    return text;
  }

  static void make_sheets(SeedOutput& output) {
    std::vector<SheetRow> rows;
    for (const ClipOutput& clip : output.clips) {
      rows.push_back({&clip.run.clip, clip.run.recipe, psnr_note(clip.run)});
    }
    output.side_by_side_png = encode_png(side_by_side(rows, kSheetColumns, 1));
    if (output.clips.size() < 2) return;
    std::vector<Clip> differences;
    const Clip& reference = output.clips[0].run.clip;
    for (const ClipOutput& clip : output.clips) {
      differences.push_back(amplified_difference(clip.run.clip, reference, kDifferenceGain));
    }
    rows.erase(rows.begin());
    for (size_t r = 0; r < rows.size(); ++r) rows[r].clip = &differences[r + 1];
    output.difference_png = encode_png(side_by_side(rows, kSheetColumns, 1));
  }

  tiny_video_dit::Dit& dit_;
  const GenerateOptions& options_;
  const Lpips* lpips_;
  CaptureWriter* capture_;
  Progress& progress_;
  int64_t done_ = 0;  // layers
};

void collect(const GenerateOptions& options, const tiny_video_dit::ModelConfig& config,
             const std::vector<SeedOutput>& seeds, OutputSet& outputs) {
  for (const SeedOutput& seed : seeds) {
    const std::string folder =
        options.seeds.size() > 1 ? "seed-" + std::to_string(seed.seed) + "/" : "";
    for (const ClipOutput& clip : seed.clips) {
      outputs.add(options.out / clip.video_name, clip.video.bytes);
      outputs.add(options.out / clip.frames_name, clip.frames_png);
    }
    outputs.add(options.out / (folder + "side-by-side.png"), seed.side_by_side_png);
    if (!seed.difference_png.empty()) {
      outputs.add(options.out / (folder + "difference.png"), seed.difference_png);
    }
  }
  const std::string json = generate_json(options, config, seeds);
  outputs.add(options.out / "index.html", generate_page(options, config, seeds));
  outputs.add(options.out / "generate.json", json);
  if (!options.json.empty()) outputs.add(options.json, json);
}

int run_generate(const GenerateArguments& arguments) {
  const fs::path model_path = arguments.model.empty() ? default_model() : fs::path(arguments.model);
  Model model = load_model(model_path);
  const GenerateOptions options = resolve(arguments, model_path, model.config);
  std::unique_ptr<Lpips> lpips;
  if (!options.lpips_weights.empty()) lpips = std::make_unique<Lpips>(options.lpips_weights);

  // Before the long work, so that a typo in a path or a poor FFmpeg costs nothing.
  require_video_encoder();
  OutputSet outputs;
  outputs.make_directory(options.out);
  check_writable(options.out / "index.html");
  if (!options.json.empty()) check_writable(options.json);
  std::unique_ptr<CaptureWriter> capture;
  if (!options.capture.empty()) {
    outputs.make_directory(options.capture);
    check_writable(options.capture / "probe");
    capture = std::make_unique<CaptureWriter>(options, outputs);
  }

  tiny_video_dit::Dit dit(model.config, std::move(model.weights));
  const int64_t layers_per_step = model.config.layers * (options.guidance == 1 ? 1 : 2);
  Progress progress("generate",
                    static_cast<int64_t>(options.seeds.size() * options.recipes.size()) *
                        options.steps * layers_per_step,
                    options.quiet);
  std::vector<SeedOutput> seeds;
  try {
    SeedRun seed_run(dit, options, lpips.get(), capture.get(), progress);
    for (size_t i = 0; i < options.seeds.size(); ++i) seeds.push_back(seed_run.run(i));
  } catch (const tiny_video_dit::AttentionError& error) {
    throw UserError("attention refused the problem", error.what(), "", "");
  }
  collect(options, model.config, seeds, outputs);
  progress.finish();
  outputs.commit();
  if (!options.quiet) {
    std::printf("%s\npage: %s\n", generate_table(options, seeds).c_str(),
                (options.out / "index.html").string().c_str());
  }
  return kExitOk;
}

}  // namespace

void add_generate(CLI::App& app, Commands& commands) {
  CLI::App* sub = app.add_subcommand(
      "generate", "clips from the bundled video DiT: each recipe against the BF16 reference");
  auto arguments = std::make_shared<GenerateArguments>();
  GenerateArguments& a = *arguments;
  sub->add_option("--recipes,--recipe", a.recipes,
                  "recipes, separated by commas, each may name its policy: vc8@NAME (default "
                  "sage2,vc8)");
  sub->add_option("--class", a.class_name, "class of the clip (default: the model's first)");
  sub->add_option("--seed", a.seed, "seed of the noise")
      // The parser takes what is too large for 64 bits as the largest number, so that has to be out
      // of range; 63 bits also leave room for --seeds.
      ->check(CLI::Range(uint64_t{0}, static_cast<uint64_t>(INT64_MAX)))
      ->capture_default_str();
  sub->add_option("--seeds", a.seeds, "number of seeds, from --seed on")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  sub->add_option("--steps", a.steps, "denoising steps (default: the model's)")
      ->check(CLI::Range(1, 1000));
  sub->add_option("--guidance", a.guidance, "classifier-free guidance (default: the model's)")
      ->check(CLI::Range(0.0, 100.0));
  sub->add_option("--out", a.out, "directory for clips, sheets and the page")->required();
  sub->add_option("--model", a.model, "weight file (default: the bundled one)");
  sub->add_option("--policy", a.policies,
                  "when values are regrouped: window=N,refresh=N,after=reuse|identity|decay,"
                  "decay=X,share_cfg; with NAME: before it, only for recipes with @NAME behind "
                  "them (any number of names)")
      ->allow_extra_args(false);
  sub->add_option("--grouping", a.grouping,
                  "identity, cubes, kdtree, vsmooth, kmeans, balanced or auto (default: the "
                  "recipe's own)");
  sub->add_option("--capture", a.capture,
                  "directory for q, k and v of each layer (after QK norm and RoPE) as safetensors "
                  "for `vcattn compare`");
  sub->add_option("--capture-steps", a.capture_steps,
                  "steps to capture, from 0, separated by commas (default: the middle one)");
  sub->add_option("--threads", a.threads, "CPU threads (default: all)")->check(CLI::Range(1, 1024));
  sub->add_option("--json", a.json, "write the results here too");
  sub->add_option("--lpips-weights", a.lpips_weights, "your LPIPS weights, for the LPIPS measure");
  sub->add_flag("--demo", a.demo, "the demonstration: nine recipes, 8 and 4 bit");
  sub->add_flag("--quiet", a.quiet, "no progress and no table");
  commands.push_back({sub, [arguments] { return run_generate(*arguments); }});
}

}  // namespace vca::tools
