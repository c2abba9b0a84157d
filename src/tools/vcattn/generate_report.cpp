// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/generate_report.hpp"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

namespace vca::tools {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN and no infinity.
Json number(const std::optional<double>& value) {
  if (!value || !std::isfinite(*value)) return nullptr;
  return *value;
}

const char* after_name(int32_t after) {
  switch (after) {
    case VCA_AFTER_REUSE:
      return "reuse";
    case VCA_AFTER_IDENTITY:
      return "identity";
    default:
      return "decay";
  }
}

// As the library resolves it (include/vca/vca.h).
Json policy_json(const GenerateOptions& options, const std::string& recipe) {
  const vca_policy policy = policy_for(options, recipe);
  const int quarter = std::max(1, (options.steps + 3) / 4);
  return {{"window", policy.window == 0 ? quarter : std::max(policy.window, 0)},
          {"refresh", policy.refresh == 0 ? 1 : policy.refresh},
          {"after", after_name(policy.after)},
          {"decay", policy.decay == 0 ? 0.9 : std::round(policy.decay * 1e6) / 1e6},
          {"share_cfg", policy.share_cfg != 0}};
}

Json steps_json(const RecipeRun& run) {
  Json steps = Json::array();
  for (const StepRecord& record : run.steps) {
    steps.push_back({{"step", record.step},
                     {"t", record.t},
                     {"energy_removed", number(record.energy_removed)},
                     {"regroupings", record.regroupings},
                     {"seconds", record.seconds},
                     {"attention_seconds", record.attention_seconds},
                     {"latent_error", number(record.latent_error)}});
  }
  return steps;
}

Json clip_json(const GenerateOptions& options, const ClipOutput& clip) {
  const RecipeRun& run = clip.run;
  Json json;
  Json reasons = Json::object();
  bool identical = false;
  for (const MeasureColumn& column : measure_columns()) {
    const auto found = run.quality.find(column.key);
    if (found == run.quality.end()) {
      json[column.key] = nullptr;
      continue;
    }
    json[column.key] = number(found->second.value);
    if (!found->second.value) reasons[column.key] = found->second.reason;
    identical = identical || (found->second.value && std::isinf(*found->second.value));
  }
  if (identical) reasons["psnr"] = "infinite: every pixel equals the reference's";
  if (run.quality.empty()) reasons["all"] = "this is the reference";
  json["identical"] = identical;
  json["unavailable"] = reasons;
  json["energy_removed"] = number(run.mean_energy_removed());
  json["regroupings"] = run.regroupings();
  json["latent_error"] = run.steps.empty() ? Json() : number(run.steps.back().latent_error);
  json["seconds"] = run.seconds;
  json["attention_seconds"] = run.attention_seconds;
  json["grouping"] = run.attention.grouping;
  json["kernel"] = run.attention.kernel;
  json["policy"] = policy_json(options, run.recipe);
  json["files"] = {{"clip", clip.video_name}, {"frames", clip.frames_name}};
  json["encoder"] = clip.video.encoder;
  json["steps"] = steps_json(run);
  return json;
}

Json means_json(const std::vector<SeedOutput>& seeds) {
  Json means = Json::object();
  for (size_t r = 1; r < seeds.front().clips.size(); ++r) {
    Json& entry = means[seeds.front().clips[r].run.recipe];
    for (const MeasureColumn& column : measure_columns()) {
      entry[column.key] = number(mean_measure(seeds, r, column.key));
    }
  }
  return means;
}

// Columns of equal width, the first one flush left.
std::string align(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) {
      const std::string space(widths[c] - row[c].size() + (c == 0 ? 0 : 2), ' ');
      text += c == 0 ? row[c] + space : space + row[c];
    }
    while (!text.empty() && text.back() == ' ') text.pop_back();
    text += '\n';
  }
  return text;
}

std::string fixed(const std::optional<double>& value, int digits) {
  if (!value) return "-";
  if (std::isinf(*value)) return "equal";
  char text[32];
  std::snprintf(text, sizeof text, "%.*f", digits, *value);
  return text;
}

template <class Field>
double mean_over_seeds(const std::vector<SeedOutput>& seeds, const Field& field) {
  double sum = 0;
  for (const SeedOutput& seed : seeds) sum += field(seed);
  return sum / static_cast<double>(seeds.size());
}

}  // namespace

const std::vector<MeasureColumn>& measure_columns() {
  static const std::vector<MeasureColumn> kColumns = {{"psnr", "PSNR dB", 2},
                                                      {"ssim", "SSIM", 4},
                                                      {"ssimulacra2", "SSIMU2", 1},
                                                      {"ssimulacra", "SSIMULACRA", 4},
                                                      {"butteraugli", "Butteraugli", 3},
                                                      {"vif", "VIF", 4},
                                                      {"lpips", "LPIPS", 4}};
  return kColumns;
}

std::vector<MeasureColumn> available_columns(const GenerateOptions& options,
                                             const std::vector<SeedOutput>& seeds) {
  std::vector<MeasureColumn> columns;
  for (const MeasureColumn& column : measure_columns()) {
    bool any = false;
    for (size_t r = 1; r < options.recipes.size(); ++r) {
      any = any || mean_measure(seeds, r, column.key).has_value();
    }
    if (any) columns.push_back(column);
  }
  return columns;
}

std::optional<double> mean_measure(const std::vector<SeedOutput>& seeds, size_t recipe,
                                   const std::string& key) {
  double sum = 0;
  int count = 0;
  for (const SeedOutput& seed : seeds) {
    const auto& quality = seed.clips[recipe].run.quality;
    const auto found = quality.find(key);
    if (found == quality.end() || !found->second.value) continue;
    sum += *found->second.value;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

std::string generate_json(const GenerateOptions& options, const tiny_video_dit::ModelConfig& config,
                          const std::vector<SeedOutput>& seeds) {
  Json json;
  json["version"] = vca_version();
  json["spec_version"] = vca_spec_version();
  json["model"] = {{"file", options.model.filename().string()},
                   {"grid", {config.grid.t, config.grid.h, config.grid.w}},
                   {"tokens", config.grid.tokens()},
                   {"layers", config.layers},
                   {"heads", config.heads},
                   {"head_dim", config.head_dim},
                   {"frames", config.frames},
                   {"height", config.height},
                   {"width", config.width}};
  json["class"] = options.class_name;
  json["denoising_steps"] = options.steps;
  json["guidance"] = options.guidance;
  json["threads"] = options.threads;
  json["reference"] = options.recipes.front();
  json["runs"] = Json::array();
  for (const SeedOutput& seed : seeds) {
    Json recipes = Json::object();
    for (const ClipOutput& clip : seed.clips) recipes[clip.run.recipe] = clip_json(options, clip);
    json["runs"].push_back({{"seed", seed.seed}, {"recipes", recipes}});
  }
  json["mean"] = means_json(seeds);
  return json.dump(2) + "\n";
}

std::string generate_table(const GenerateOptions& options, const std::vector<SeedOutput>& seeds) {
  std::vector<std::vector<std::string>> rows(1);
  rows[0].push_back("recipe");
  const std::vector<MeasureColumn> columns = available_columns(options, seeds);
  for (const MeasureColumn& column : columns) rows[0].push_back(column.heading);
  for (const char* heading : {"removed %", "regroupings", "attention s", "total s"}) {
    rows[0].push_back(heading);
  }
  for (size_t r = 0; r < options.recipes.size(); ++r) {
    std::vector<std::string> row = {options.recipes[r] + (r == 0 ? " (reference)" : "")};
    for (const MeasureColumn& column : columns) {
      row.push_back(fixed(mean_measure(seeds, r, column.key), column.digits));
    }
    const std::optional<double> energy = seeds.front().clips[r].run.mean_energy_removed();
    row.push_back(energy ? fixed(100 * *energy, 1) : "-");
    const auto mean = [&](auto field) {
      return mean_over_seeds(seeds, [&](const SeedOutput& s) { return field(s.clips[r].run); });
    };
    row.push_back(fixed(mean([](const RecipeRun& run) { return double(run.regroupings()); }), 0));
    row.push_back(fixed(mean([](const RecipeRun& run) { return run.attention_seconds; }), 1));
    row.push_back(fixed(mean([](const RecipeRun& run) { return run.seconds; }), 1));
    rows.push_back(row);
  }
  return align(rows);
}

}  // namespace vca::tools
