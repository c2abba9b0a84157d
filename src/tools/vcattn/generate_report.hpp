// SPDX-License-Identifier: Apache-2.0
// What `vcattn generate` found, as JSON, as a table for the terminal and as one self-contained
// page.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/vcattn/generate_options.hpp"
#include "tools/vcattn/generate_run.hpp"
#include "tools/vcattn/media.hpp"

namespace vca::tools {

// Everything about one recipe's clip that is written.
struct ClipOutput {
  RecipeRun run;
  Video video;
  Bytes frames_png;
  std::string video_name;  // relative to the output directory
  std::string frames_name;
};

struct SeedOutput {
  uint64_t seed = 0;
  std::vector<ClipOutput> clips;  // the reference first
  Bytes side_by_side_png;
  Bytes difference_png;
};

// The measures in the order of tables: key in the JSON, heading, digits.
struct MeasureColumn {
  const char* key;
  const char* heading;
  int digits;
};
const std::vector<MeasureColumn>& measure_columns();

// Mean of a measure over the seeds that have it.
std::optional<double> mean_measure(const std::vector<SeedOutput>& seeds, size_t recipe,
                                   const std::string& key);

// Those that somebody has a value for; the JSON says why the others have none.
std::vector<MeasureColumn> available_columns(const GenerateOptions& options,
                                             const std::vector<SeedOutput>& seeds);

std::string generate_json(const GenerateOptions& options, const tiny_video_dit::ModelConfig& config,
                          const std::vector<SeedOutput>& seeds);

std::string generate_table(const GenerateOptions& options, const std::vector<SeedOutput>& seeds);

// Pictures and clips of the first seed, numbers of all.
std::string generate_page(const GenerateOptions& options, const tiny_video_dit::ModelConfig& config,
                          const std::vector<SeedOutput>& seeds);

// Factor of the difference sheet.
inline constexpr int kDifferenceGain = 8;

}  // namespace vca::tools
