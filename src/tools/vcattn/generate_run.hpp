// SPDX-License-Identifier: Apache-2.0
// One clip: the sampler, the network and one recipe, with a record of every denoising step.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "examples/tiny_video_dit/attention.hpp"
#include "examples/tiny_video_dit/dit.hpp"
#include "examples/tiny_video_dit/sampler.hpp"
#include "tools/vcattn/generate_options.hpp"
#include "tools/vcattn/quality.hpp"

namespace vca::tools {

struct StepRecord {
  int step = 0;
  double t = 0;
  std::optional<double> energy_removed;  // mean f over layers and heads that have one
  int regroupings = 0;                   // heads that got a new order, over layers and branches
  double seconds = 0;
  double attention_seconds = 0;
  // Relative L2 distance of the state after the step from the reference's state.
  std::optional<double> latent_error;
};

struct RecipeRun {
  std::string recipe;
  tiny_video_dit::AttentionDescription attention;
  std::vector<StepRecord> steps;
  Clip clip;
  std::map<std::string, Measure> quality;  // against the reference; empty for the reference
  double seconds = 0;
  double attention_seconds = 0;

  std::optional<double> mean_energy_removed() const;
  int regroupings() const;
};

// States after each step; the reference fills it, the others are compared with it.
using Trajectory = std::vector<std::vector<float>>;

// Sees the operands of a layer: (call, step, branch). Branch 0 has the class.
using OperandObserver = std::function<void(const tiny_video_dit::AttentionCall&, int, int)>;

struct ClipRequest {
  std::string recipe;
  uint64_t seed = 1;
  bool fill_trajectory = false;
  OperandObserver observer;                // may be empty
  std::function<void(int step)> progress;  // after each layer; may be empty
};

// Throws Interrupted between layers when a signal has arrived.
RecipeRun generate_clip(tiny_video_dit::Dit& dit, const GenerateOptions& options,
                        const ClipRequest& request, Trajectory& trajectory);

}  // namespace vca::tools
