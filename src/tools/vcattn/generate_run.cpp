// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/generate_run.hpp"

#include <chrono>
#include <cmath>

#include "examples/tiny_video_dit/noise.hpp"
#include "tools/vcattn/interrupt.hpp"

namespace vca::tools {
namespace {

using tiny_video_dit::AttentionCall;
using tiny_video_dit::AttentionReport;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double relative_l2(const std::vector<float>& x, const std::vector<float>& reference) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double d = double{x[i]} - double{reference[i]};
    difference += d * d;
    norm += double{reference[i]} * double{reference[i]};
  }
  return norm == 0 ? 0 : std::sqrt(difference / norm);
}

// Class and null branch of one prediction.
class Predictor {
 public:
  Predictor(tiny_video_dit::Dit& dit, const GenerateOptions& options, const ClipRequest& request)
      : dit_(dit),
        options_(options),
        request_(request),
        attention_({library_recipe(request.recipe), options.grouping,
                    policy_for(options, request.recipe), dit.config().layers,
                    options.guidance == 1 ? 1 : 2, options.threads}) {}

  AttentionReport predict(const std::vector<float>& x, double t, int step, std::vector<float>& x0) {
    AttentionReport report;
    branch(x, t, step, 0, x0, report);
    if (options_.guidance != 1) {
      x0_null_.resize(x0.size());
      branch(x, t, step, 1, x0_null_, report);
      tiny_video_dit::guide(x0, x0_null_, static_cast<float>(options_.guidance));
    }
    return report;
  }

  const tiny_video_dit::AttentionDescription& description() const {
    return attention_.description();
  }

 private:
  void branch(const std::vector<float>& x, double t, int step, int index, std::vector<float>& x0,
              AttentionReport& report) {
    const tiny_video_dit::ModelConfig& config = dit_.config();
    const auto attend = [&](const AttentionCall& call) {
      check_interrupt();
      if (request_.observer) request_.observer(call, step, index);
      report.add(attention_.run(call, step, index));
      if (request_.progress) request_.progress(step);
    };
    dit_.forward(config.grid, x, static_cast<float>(t),
                 index == 0 ? options_.class_index : config.null_class(),
                 tiny_video_dit::Operands::kBf16, attend, options_.threads, x0);
  }

  tiny_video_dit::Dit& dit_;
  const GenerateOptions& options_;
  const ClipRequest& request_;
  tiny_video_dit::VcaAttention attention_;
  std::vector<float> x0_null_;
};

}  // namespace

std::optional<double> RecipeRun::mean_energy_removed() const {
  double sum = 0;
  int count = 0;
  for (const StepRecord& record : steps) {
    if (!record.energy_removed) continue;
    sum += *record.energy_removed;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

int RecipeRun::regroupings() const {
  int sum = 0;
  for (const StepRecord& record : steps) sum += record.regroupings;
  return sum;
}

RecipeRun generate_clip(tiny_video_dit::Dit& dit, const GenerateOptions& options,
                        const ClipRequest& request, Trajectory& trajectory) {
  const tiny_video_dit::ModelConfig& config = dit.config();
  const std::vector<double> times = tiny_video_dit::time_grid(options.steps, config.shift);
  std::vector<float> x(static_cast<size_t>(config.grid.tokens() * config.patch_dim()));
  std::vector<float> x0(x.size());
  tiny_video_dit::fill_normals(request.seed, 0, x);
  if (request.fill_trajectory) trajectory.clear();

  RecipeRun run;
  run.recipe = request.recipe;
  Predictor predictor(dit, options, request);
  for (int step = 0; step < options.steps; ++step) {
    const auto start = Clock::now();
    const AttentionReport report = predictor.predict(x, times[step], step, x0);
    tiny_video_dit::euler_step(x, x0, times[step], times[step + 1]);

    StepRecord record;
    record.step = step;
    record.t = times[step];
    if (report.energy_heads > 0)
      record.energy_removed = report.energy_removed / report.energy_heads;
    record.regroupings = report.regroupings;
    record.seconds = seconds_since(start);
    record.attention_seconds = report.seconds;
    if (request.fill_trajectory) {
      trajectory.push_back(x);
    } else {
      record.latent_error = relative_l2(x, trajectory[step]);
    }
    run.seconds += record.seconds;
    run.attention_seconds += record.attention_seconds;
    run.steps.push_back(record);
  }
  run.attention = predictor.description();
  run.clip = tiny_video_dit::to_clip(config, x);
  return run;
}

}  // namespace vca::tools
