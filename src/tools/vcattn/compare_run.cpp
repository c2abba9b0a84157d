// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/compare_run.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>

#include "core/parallel.hpp"
#include "spec/attention.hpp"
#include "spec/operands.hpp"
#include "tools/vcattn/compare_library.hpp"
#include "tools/vcattn/errors.hpp"
#include "tools/vcattn/interrupt.hpp"
#include "tools/vcattn/progress.hpp"

namespace vca::tools {
namespace {

using spec::RowDiagnosis;

constexpr int64_t kChunkRows = 8;  // rows that share the decoding of a block
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// What one recipe collects over the heads.
struct Collected {
  RecipeChoice choice;
  spec::Problem problem;
  std::vector<RowDiagnosis> rows;  // [batch][head][sample]
  std::vector<double> energy;      // [batch][kv head]
  std::vector<spec::Grouping> grouping;

  std::mutex mutex;  // for what follows
  double thread_seconds = 0;
  std::array<int64_t, 256> histogram{};
  double worst = -1;
  int64_t worst_index = 0;
  spec::RowCurves curves;

  bool exact() const { return choice.recipe->id == spec::RecipeId::exact; }
};

// The prepared operands of one kv head under one recipe, and of the query heads that read it.
struct HeadOperands {
  spec::OwnedKv kv;
  std::vector<std::unique_ptr<spec::OwnedQ>> q;
};

class Evaluation {
 public:
  Evaluation(const CompareInput& in, const CompareOptions& options)
      : in_(in),
        options_(options),
        threads_(core::thread_count(options.threads)),
        samples_(spec::evenly_spread(in.tokens_q, options.rows)),
        group_(in.heads_q / in.heads_kv),
        chunks_((static_cast<int64_t>(samples_.size()) + kChunkRows - 1) / kChunkRows),
        progress_("compare", in.batches * in.heads_kv * steps_of_head(), options.quiet) {
    const auto rows = static_cast<size_t>(in.batches * in.heads_q) * samples_.size();
    const auto kv_heads = static_cast<size_t>(in.batches * in.heads_kv);
    for (const RecipeChoice& choice : options.recipes) {
      auto c = std::make_unique<Collected>();
      c->choice = choice;
      c->problem = make_problem(choice);
      c->rows.resize(rows);
      c->energy.assign(kv_heads, kNaN);
      c->grouping.assign(kv_heads, choice.grouping);
      recipes_.push_back(std::move(c));
    }
  }

  CompareResult run() {
    for (int64_t b = 0; b < in_.batches; ++b)
      for (int64_t head = 0; head < in_.heads_kv; ++head) run_head(b, head);
    CompareResult result = collect();
    progress_.finish();
    return result;
  }

 private:
  int64_t steps_of_head() const {
    const auto recipes = static_cast<int64_t>(options_.recipes.size());
    return recipes * (1 + group_) + group_ * chunks_;
  }

  spec::Problem make_problem(const RecipeChoice& choice) const {
    spec::Problem p;
    p.set_tensors(in_.q, in_.k, in_.v);
    p.recipe = choice.recipe;
    p.grouping = choice.grouping;
    p.hadamard = choice.hadamard;
    p.grid = options_.grid;
    for (int64_t b = 0; b < p.batches; ++b) {
      spec::SubProblem sub;
      sub.batch = b;
      sub.q_len = p.s_q;
      if (p.s_kv > 0) {
        sub.segments.emplace_back(static_cast<size_t>(p.s_kv));
        std::iota(sub.segments[0].begin(), sub.segments[0].end(), int64_t{0});
        sub.segment_info.push_back({0, p.s_kv, 0});
      }
      p.subs.push_back(std::move(sub));
    }
    return p;
  }

  void step(int thread, const char* what) {
    const int64_t done = ++done_;
    if (thread == 0) progress_.update(done, what);
  }

  struct Grouped {
    spec::GroupingResult result;
    double seconds;
  };

  // One order for each kind of grouping that some recipe wants; they depend on V alone.
  std::map<spec::Grouping, Grouped> group_values(int64_t b, int64_t head) {
    std::map<spec::Grouping, Grouped> grouped;
    for (const auto& c : recipes_)
      if (!c->exact()) grouped[c->choice.grouping] = {};
    std::vector<spec::Grouping> kinds;
    for (const auto& entry : grouped) kinds.push_back(entry.first);
    const spec::SubProblem& sub = recipes_[0]->problem.subs[static_cast<size_t>(b)];
    core::parallel_for(static_cast<int64_t>(kinds.size()), threads_, [&](int64_t i, int) {
      if (interrupted()) return;
      const auto start = std::chrono::steady_clock::now();
      spec::GroupingInput input;
      input.n_tokens = in_.tokens_kv;
      input.head_dim = in_.head_dim;
      input.row = [&](int64_t token, float* out) { in_.v.load_row(b, head, token, out); };
      input.valid_by_segment = sub.segments;
      input.grid = options_.grid;
      input.segments = sub.segment_info;
      spec::GroupingParams params;
      params.kind = kinds[static_cast<size_t>(i)];
      Grouped& out = grouped[params.kind];
      out.result = spec::group_head(input, params, nullptr);
      out.seconds = seconds_since(start);
    });
    check_interrupt();
    return grouped;
  }

  void run_head(int64_t b, int64_t head) {
    check_interrupt();
    const auto grouped = group_values(b, head);
    const auto n_recipes = static_cast<int64_t>(recipes_.size());
    std::vector<HeadOperands> operands(recipes_.size());
    core::parallel_for(n_recipes, threads_, [&](int64_t i, int thread) {
      Collected& c = *recipes_[static_cast<size_t>(i)];
      if (!interrupted() && !c.exact())
        prepare_values(b, head, grouped.at(c.choice.grouping), c, operands[static_cast<size_t>(i)]);
      step(thread, "preparing");
    });
    core::parallel_for(n_recipes * group_, threads_, [&](int64_t i, int thread) {
      Collected& c = *recipes_[static_cast<size_t>(i / group_)];
      if (!interrupted() && !c.exact())
        prepare_queries(b, head, i % group_, c, operands[static_cast<size_t>(i / group_)]);
      step(thread, "preparing");
    });
    check_interrupt();
    const std::vector<float> values = spec::value_rows(
        recipes_[0]->problem, recipes_[0]->problem.subs[static_cast<size_t>(b)], head);
    core::parallel_for(group_ * chunks_, threads_, [&](int64_t i, int thread) {
      run_chunk(b, head * group_ + i / chunks_, i % chunks_, values.data(), operands);
      step(thread, "rows");
    });
    check_interrupt();
  }

  void prepare_values(int64_t b, int64_t head, const Grouped& grouped, Collected& c,
                      HeadOperands& out) const {
    const auto start = std::chrono::steady_clock::now();
    const spec::Problem& p = c.problem;
    const spec::SubProblem& sub = p.subs[static_cast<size_t>(b)];
    spec::allocate(*p.recipe, sub.n_valid(), sub.n_blocks(), p.d_pad, out.kv);
    spec::prepare_kv(p, sub, head, grouped.result.order_by_segment, out.kv.view);
    const auto at = static_cast<size_t>(b * in_.heads_kv + head);
    if (p.recipe->v_smooth()) c.energy[at] = out.kv.view.stats->energy_removed;
    c.grouping[at] = grouped.result.used;
    out.q.resize(static_cast<size_t>(group_));
    const std::lock_guard<std::mutex> lock(c.mutex);
    c.thread_seconds += seconds_since(start) + grouped.seconds;
  }

  void prepare_queries(int64_t b, int64_t kv_head, int64_t member, Collected& c,
                       HeadOperands& out) const {
    const auto start = std::chrono::steady_clock::now();
    const spec::Problem& p = c.problem;
    spec::OwnedQ all;
    spec::allocate(*p.recipe, p.s_q, p.d_pad, false, all);
    spec::prepare_q(p, p.subs[static_cast<size_t>(b)], kv_head * group_ + member,
                    out.kv.view.k_offset, all.view);
    auto sampled = std::make_unique<spec::OwnedQ>();
    spec::sample_queries(p, all.view, samples_, *sampled);
    out.q[static_cast<size_t>(member)] = std::move(sampled);
    const std::lock_guard<std::mutex> lock(c.mutex);
    c.thread_seconds += seconds_since(start);
  }

  // Up to eight sampled rows of one query head: the reference once, then every recipe.
  void run_chunk(int64_t b, int64_t q_head, int64_t chunk, const float* values,
                 const std::vector<HeadOperands>& operands) {
    if (interrupted()) return;
    const int64_t c0 = chunk * kChunkRows;
    const int64_t n = std::min(kChunkRows, static_cast<int64_t>(samples_.size()) - c0);
    const spec::Problem& any = recipes_[0]->problem;
    const auto start = std::chrono::steady_clock::now();
    const spec::ExactRows exact = spec::exact_rows(
        any, any.subs[static_cast<size_t>(b)], q_head,
        std::span(samples_).subspan(static_cast<size_t>(c0), static_cast<size_t>(n)));
    const double exact_seconds = seconds_since(start);
    const int64_t first = (b * in_.heads_q + q_head) * static_cast<int64_t>(samples_.size()) + c0;
    for (size_t i = 0; i < recipes_.size(); ++i) {
      if (interrupted()) return;
      if (recipes_[i]->exact())
        store_exact(exact, n, first, exact_seconds, *recipes_[i]);
      else
        run_rows(operands[i], q_head, c0, n, first, exact, values, *recipes_[i]);
    }
  }

  static void store_exact(const spec::ExactRows& exact, int64_t n, int64_t first, double seconds,
                          Collected& c) {
    const auto d = static_cast<size_t>(c.problem.d);
    for (int64_t i = 0; i < n; ++i) {
      RowDiagnosis row;
      for (size_t j = 0; j < d; ++j) {
        const double x = exact.o[static_cast<size_t>(i) * d + j];
        row.exact_sq += x * x;
      }
      row.output_sq = row.dot = row.own_sq = row.exact_sq;
      row.tv = row.tau = kNaN;
      c.rows[static_cast<size_t>(first + i)] = row;
    }
    const std::lock_guard<std::mutex> lock(c.mutex);
    c.thread_seconds += seconds;
  }

  void run_rows(const HeadOperands& operands, int64_t q_head, int64_t c0, int64_t n, int64_t first,
                const spec::ExactRows& exact, const float* values, Collected& c) const {
    const spec::KvOperands& kv = operands.kv.view;
    const spec::QOperands& q = operands.q[static_cast<size_t>(q_head % group_)]->view;
    const auto start = std::chrono::steady_clock::now();
    spec::RowTraces traces(c.problem, kv, n);
    spec::attention_rows(c.problem, kv, q, options_.target, spec::sample_slot(c0), n, nullptr,
                         traces.outputs());
    const double seconds = seconds_since(start);
    std::array<int64_t, 256> histogram{};
    const auto diagnose = [&](int64_t i, spec::RowCurves* curves, int64_t* counts) {
      return spec::diagnose_row(c.problem, kv, q, spec::sample_slot(c0 + i), traces, i, exact, i,
                                values, curves, counts);
    };
    int64_t worst = -1;
    double worst_error = -1;
    for (int64_t i = 0; i < n; ++i) {
      const RowDiagnosis row = diagnose(i, nullptr, options_.curves ? histogram.data() : nullptr);
      c.rows[static_cast<size_t>(first + i)] = row;
      const double error = row.relative_error();
      if (error > worst_error) {
        worst = i;
        worst_error = error;
      }
    }
    // Ties go to the first row of the tensor, whichever thread comes first.
    const auto beats = [&] {
      return worst_error > c.worst || (worst_error == c.worst && first + worst < c.worst_index);
    };
    {
      const std::lock_guard<std::mutex> lock(c.mutex);
      c.thread_seconds += seconds;
      for (size_t i = 0; i < histogram.size(); ++i) c.histogram[i] += histogram[i];
      if (!options_.curves || worst < 0 || !beats()) return;
    }
    spec::RowCurves curves;
    diagnose(worst, &curves, nullptr);
    const std::lock_guard<std::mutex> lock(c.mutex);
    if (!beats()) return;
    c.worst = worst_error;
    c.worst_index = first + worst;
    c.curves = std::move(curves);
  }

  CompareResult collect() {
    CompareResult result;
    result.rows = samples_;
    result.threads = threads_;
    // The library itself is timed where the whole problem was asked for on the backend it has.
    const bool whole = options_.rows <= 0 && options_.target == spec::Target::cpu;
    result.timed = whole ? "whole call of the library, wall clock"
                         : "sampled rows of the specification, thread time / threads";
    for (const auto& c : recipes_) {
      if (whole) progress_.update(done_, "timing " + c->choice.label);
      RecipeResult r = summarise_recipe(*c);
      r.seconds = whole ? time_library_call(in_, c->choice, options_.grid, threads_)
                        : c->thread_seconds / threads_;
      result.recipes.push_back(std::move(r));
    }
    return result;
  }

  RecipeResult summarise_recipe(Collected& c) const {
    RecipeResult r{};
    r.choice = c.choice;
    r.figures = spec::summarise(c.rows);
    r.head_energy = c.energy;
    r.head_grouping = c.grouping;
    r.histogram = c.histogram;
    r.curves = std::move(c.curves);
    double sum = 0;
    int64_t defined = 0;
    for (double f : c.energy) {
      if (std::isnan(f)) continue;
      sum += f;
      ++defined;
    }
    r.energy_removed = defined > 0 ? sum / static_cast<double>(defined) : kNaN;

    const size_t per_head = samples_.size();
    for (size_t at = 0; per_head > 0 && at < c.rows.size(); at += per_head)
      r.head_error.push_back(spec::summarise(std::span(c.rows).subspan(at, per_head)).rel_l2);
    std::vector<size_t> order;
    for (size_t i = 0; i < c.rows.size(); ++i)
      if (!std::isnan(c.rows[i].relative_error())) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return c.rows[a].relative_error() > c.rows[b].relative_error();
    });
    for (size_t i : order) {
      r.row_errors.push_back(c.rows[i].relative_error());
      if (r.worst.size() >= kWorstRows) continue;
      const auto head = static_cast<int64_t>(i / per_head);
      r.worst.push_back(
          {{head / in_.heads_q, head % in_.heads_q, samples_[i % per_head]}, c.rows[i]});
    }
    std::reverse(r.row_errors.begin(), r.row_errors.end());
    return r;
  }

  const CompareInput& in_;
  const CompareOptions& options_;
  int threads_;
  std::vector<int64_t> samples_;
  int64_t group_, chunks_;
  std::vector<std::unique_ptr<Collected>> recipes_;
  std::atomic<int64_t> done_{0};
  Progress progress_;
};

}  // namespace

CompareResult run_compare(const CompareInput& in, const CompareOptions& options) {
  // Nothing is written while this runs, so the first signal may end it.
  const ImmediateExit immediate;
  return Evaluation(in, options).run();
}

}  // namespace vca::tools
