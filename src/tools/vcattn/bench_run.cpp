// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/bench_run.hpp"

#include <algorithm>
#include <memory>
#include <set>

#include "core/parallel.hpp"
#include "tools/vcattn/bench_inputs.hpp"
#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/interrupt.hpp"
#include "tools/vcattn/library_error.hpp"
#include "tools/vcattn/progress.hpp"

namespace vca::tools {
namespace {

using core::ProblemText;

// Warm rows: the order is formed at step 0 and the calls that count are at a step inside the window
// of regrouping (the first quarter): each improves the order of the call before. What keeps an
// order behind the window costs less.
constexpr int32_t kSteps = 40, kWarmStep = 5;

enum Scope { kKernel, kPrep, kWhole };
constexpr const char* kScopeNames[] = {"kernel", "prep", "whole"};

int64_t element_bytes(const ProblemText& p) { return p.dtype == VCA_FP32 ? 4 : 2; }

vca_tensor tensor(const ProblemText& p, const std::array<int64_t, 4>& shape,
                  const std::array<int64_t, 4>& stride, void* data) {
  vca_tensor t = {};
  t.data = data;
  t.dtype = p.dtype;
  std::copy(shape.begin(), shape.end(), t.shape);
  std::copy(stride.begin(), stride.end(), t.stride);
  return t;
}

// The tensors of one problem on the place, and rows to check outputs with.
class Inputs {
 public:
  Inputs(Place& place, const ProblemText& p, int threads) : place_(place), problem_(p) {
    const int buffers = p.memory == core::ProblemMemory::fused ? 1 : 3;
    for (int i = 0; i < buffers; ++i) {
      const std::vector<uint8_t> data = normal_buffer(p, i, threads);
      buffers_.push_back(std::make_unique<PlaceMemory>(place, data.size()));
      place.upload(buffers_.back()->data(), data.data(), data.size());
    }
    output_ = std::make_unique<PlaceMemory>(
        place, static_cast<size_t>(p.b * p.h_q * p.s_q * p.d * element_bytes(p)));
    if (p.kv_len) {
      const std::vector<int32_t> lens(static_cast<size_t>(p.b), static_cast<int32_t>(*p.kv_len));
      kv_lens_ = std::make_unique<PlaceMemory>(place, lens.size() * sizeof(int32_t));
      place.upload(kv_lens_->data(), lens.data(), kv_lens_->bytes());
    }
    exact_ = exact_sample(p, threads);
  }

  vca_attn_desc desc(const BenchRecipe& recipe, int threads) const {
    vca_attn_desc d = vca_attn_desc_init();
    const auto input = [&](int which) {
      const core::ProblemView view = core::view_of(problem_, which);
      auto* base = static_cast<uint8_t*>(buffers_[static_cast<size_t>(view.buffer)]->data());
      return tensor(problem_, view.shape, view.stride,
                    base + view.offset * element_bytes(problem_));
    };
    d.q = input(0);
    d.k = input(1);
    d.v = input(2);
    const core::ProblemView o = output_view();
    d.o = tensor(problem_, o.shape, o.stride, output_->data());
    d.device = place_.device();
    d.recipe = recipe.recipe;
    d.hadamard = recipe.hadamard;
    d.num_threads = d.device == VCA_DEVICE_CPU ? threads : 0;
    if (kv_lens_) d.kv_lens = static_cast<const int32_t*>(kv_lens_->data());
    return d;
  }

  // Makes the rows that will be looked at NaN, so that what a call leaves out counts as wrong.
  void poison_output() {
    const std::vector<uint8_t> nan(row_bytes(), 0xFF);
    for (const SampledRows::Place& at : exact_.places)
      place_.upload(row_at(at), nan.data(), nan.size());
  }

  SampledError output_error() const {
    std::vector<uint8_t> rows(exact_.places.size() * row_bytes());
    for (size_t i = 0; i < exact_.places.size(); ++i)
      place_.download(rows.data() + i * row_bytes(), row_at(exact_.places[i]), row_bytes());
    return relative_error(problem_, exact_, rows);
  }

 private:
  // As frameworks write it: the layout of q, contiguous.
  core::ProblemView output_view() const {
    ProblemText p = problem_;
    if (p.memory == core::ProblemMemory::fused) p.memory = core::ProblemMemory::nhd;
    return core::view_of(p, 0);
  }

  size_t row_bytes() const { return static_cast<size_t>(problem_.d * element_bytes(problem_)); }
  uint8_t* row_at(const SampledRows::Place& at) const {
    const core::ProblemView view = output_view();
    const int64_t element = at.b * view.stride[0] + at.h * view.stride[1] + at.s * view.stride[2];
    return static_cast<uint8_t*>(output_->data()) + element * element_bytes(problem_);
  }

  Place& place_;
  ProblemText problem_;
  std::vector<std::unique_ptr<PlaceMemory>> buffers_;
  std::unique_ptr<PlaceMemory> output_, kv_lens_;
  SampledRows exact_;
};

class Bench {
 public:
  Bench(Place& place, const BenchOptions& options)
      : place_(place),
        options_(options),
        threads_(core::thread_count(options.threads)),
        progress_("bench", kFine * measurements(), options.quiet) {}

  BenchResult run() {
    for (problem_ = 0; problem_ < options_.problems.size(); ++problem_) {
      progress_.update(done_, name() + " inputs");
      Inputs inputs(place_, options_.problems[problem_].problem, threads_);
      for (const BenchRecipe& recipe : options_.recipes) run_recipe(inputs, recipe);
    }
    progress_.finish();
    if (result_.rows.empty()) {
      throw UserError("nothing can be measured on " + place_.name(),
                      result_.notes.empty() ? "" : result_.notes[0], "",
                      "vcattn info says what runs here");
    }
    return std::move(result_);
  }

 private:
  static constexpr int64_t kFine = 1000;  // parts of one measurement on the progress line

  int64_t measurements() const {
    const auto groupings = static_cast<int64_t>(options_.groupings.size());
    return static_cast<int64_t>(options_.problems.size() * options_.recipes.size()) *
           (1 + (options_.whole ? 2 * groupings : 0));
  }
  const std::string& name() const { return options_.problems[problem_].name; }

  void note(const std::string& text) {
    if (noted_.insert(text).second) result_.notes.push_back(text);
  }

  void run_recipe(Inputs& inputs, const BenchRecipe& recipe) {
    // Not all of them may come to be: the line goes on where the recipe ends.
    const int64_t end =
        done_ + kFine * (measurements() /
                         static_cast<int64_t>(options_.problems.size() * options_.recipes.size()));
    vca_attn_desc desc = inputs.desc(recipe, options_.threads);
    desc.grouping = VCA_GROUPING_IDENTITY;
    if (query(desc, recipe)) {
      inputs.poison_output();
      measure(inputs, recipe, desc, BenchGrouping::none, {kKernel});
      if (options_.whole)
        for (const BenchGrouping grouping : options_.groupings) run_whole(inputs, recipe, grouping);
    }
    done_ = end;
  }

  // Whether the recipe runs here.
  bool query(const vca_attn_desc& desc, const BenchRecipe& recipe) {
    vca_attn_info info = {};
    info.struct_size = sizeof info;
    const vca_status status = vca_attn_query(&desc, &info);
    if (status == VCA_OK) return true;
    if (status != VCA_ERR_UNSUPPORTED || options_.recipes_given)
      throw library_error(recipe.impl + " on " + name() + ": ");
    note(recipe.impl + " is left out: " + vca_last_error());
    return false;
  }

  void run_whole(Inputs& inputs, const BenchRecipe& recipe, BenchGrouping grouping) {
    vca_attn_desc desc = inputs.desc(recipe, options_.threads);
    desc.grouping = VCA_GROUPING_IDENTITY;
    if (grouping == BenchGrouping::none) {
      inputs.poison_output();
      return measure(inputs, recipe, desc, grouping, {kPrep, kWhole});
    }
    desc.grouping = VCA_GROUPING_DEFAULT;
    vca_attn_info info = {};
    info.struct_size = sizeof info;
    check(vca_attn_query(&desc, &info), recipe);
    if (info.grouping == VCA_GROUPING_IDENTITY)
      return note(recipe.impl + " keeps token order here: no warm and cold rows");
    inputs.poison_output();
    if (grouping == BenchGrouping::cold)
      return measure(inputs, recipe, desc, grouping, {kPrep, kWhole});
    run_warm(inputs, recipe, desc);
  }

  void run_warm(Inputs& inputs, const BenchRecipe& recipe, vca_attn_desc desc) {
    size_t bytes = 0;
    if (!supported(vca_group_state_bytes(&desc, &bytes), recipe)) return;
    PlaceMemory state(place_, bytes), step(place_, sizeof(int32_t));
    place_.run([&](void* stream) {
      check(vca_group_state_init(&desc, state.data(), bytes, stream), recipe);
    });
    vca_policy policy = {};
    policy.struct_size = sizeof policy;
    policy.steps = kSteps;
    desc.policy = &policy;
    desc.state = state.data();
    desc.step = static_cast<const int32_t*>(step.data());
    vca_attn_info info = {};
    info.struct_size = sizeof info;
    if (!supported(vca_attn_query(&desc, &info), recipe)) return;
    const auto set_step = [&](int32_t value) { place_.upload(step.data(), &value, sizeof value); };
    set_step(0);
    {
      const PlaceMemory workspace(place_, workspace_bytes(desc, recipe));
      place_.run([&](void* stream) {
        check(vca_attn_run(&desc, workspace.data(), workspace.bytes(), stream), recipe);
      });
    }
    set_step(kWarmStep);
    measure(inputs, recipe, desc, BenchGrouping::warm, {kPrep, kWhole});
  }

  bool supported(vca_status status, const BenchRecipe& recipe) {
    if (status == VCA_ERR_UNSUPPORTED) {
      note(recipe.impl + " has no warm rows here: " + vca_last_error());
      return false;
    }
    check(status, recipe);
    return true;
  }

  void check(vca_status status, const BenchRecipe& recipe) const {
    if (status != VCA_OK) throw library_error(recipe.impl + " on " + name() + ": ");
  }

  size_t workspace_bytes(const vca_attn_desc& desc, const BenchRecipe& recipe) const {
    size_t bytes = 0;
    check(vca_attn_workspace(&desc, &bytes), recipe);
    return bytes;
  }

  void measure(Inputs& inputs, const BenchRecipe& recipe, const vca_attn_desc& desc,
               BenchGrouping grouping, const std::vector<Scope>& scopes) {
    const PlaceMemory workspace(place_, workspace_bytes(desc, recipe));
    void* const memory = workspace.data();
    const size_t bytes = workspace.bytes();
    for (const Scope scope : scopes) {
      const auto call = [&](void* stream) {
        if (scope == kKernel) check(vca_attn_attend(&desc, memory, bytes, stream), recipe);
        if (scope == kPrep) check(vca_attn_prepare(&desc, memory, bytes, stream), recipe);
        if (scope == kWhole) check(vca_attn_run(&desc, memory, bytes, stream), recipe);
      };
      if (scope == kKernel) {
        place_.run(
            [&](void* stream) { check(vca_attn_prepare(&desc, memory, bytes, stream), recipe); });
      }
      int64_t calls = 0;
      const int64_t expected = options_.timing.warmup + options_.timing.iterations;
      const Timing timing = place_.time(options_.timing, call, [&] {
        const int64_t part = std::min(kFine - 1, ++calls * kFine / std::max<int64_t>(expected, 1));
        progress_.update(done_ + part, name() + " " + recipe.impl + " " + kScopeNames[scope]);
      });
      add_row(inputs, recipe, grouping, scope, timing);
      done_ += kFine;
    }
  }

  void add_row(const Inputs& inputs, const BenchRecipe& recipe, BenchGrouping grouping, Scope scope,
               const Timing& timing) {
    BenchRow row;
    row.problem = problem_;
    row.impl = recipe.impl;
    row.scope = kScopeNames[scope];
    row.grouping = grouping;
    row.ms_median = median(timing.ms);
    const auto [low, high] = std::minmax_element(timing.ms.begin(), timing.ms.end());
    row.ms_min = *low;
    row.ms_max = *high;
    row.clock_mhz = timing.clock_mhz;
    row.power_w = timing.power_w;
    if (scope != kPrep) {
      const SampledError error = inputs.output_error();
      row.rel_error = error.all;
      // Also what is no number.
      if (!(error.worst_head <= kWrongOutput))
        result_.wrong.push_back(recipe.impl + " on " + name() + " (" + row.scope +
                                "): relative error of a head " + std::to_string(error.worst_head));
    }
    result_.rows.push_back(std::move(row));
  }

  Place& place_;
  const BenchOptions& options_;
  int threads_;
  BenchResult result_;
  std::set<std::string> noted_;
  size_t problem_ = 0;
  int64_t done_ = 0;
  Progress progress_;
};

}  // namespace

const char* to_string(BenchGrouping grouping) {
  switch (grouping) {
    case BenchGrouping::none:
      return "none";
    case BenchGrouping::warm:
      return "warm";
    case BenchGrouping::cold:
      return "cold";
  }
  return "none";
}

double bench_tflops(const ProblemText& problem, double ms) { return problem.flops() / ms * 1e-9; }

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n == 0 ? 0.0 : 0.5 * (values[(n - 1) / 2] + values[n / 2]);
}

BenchResult run_bench(Place& place, const BenchOptions& options) {
  for (const NamedProblem& p : options.problems) {
    if (p.problem.flops() > 0) continue;
    throw UserError("a problem without work has no speed", core::to_text(p.problem),
                    "queries and keys", "");
  }
  // Nothing is written while this runs, so the first signal may end it.
  const ImmediateExit immediate;
  return Bench(place, options).run();
}

}  // namespace vca::tools
