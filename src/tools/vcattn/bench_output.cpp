// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/bench_output.hpp"

#include <cstdlib>
#include <ctime>
#include <nlohmann/json.hpp>

#include "tools/vcattn/text_table.hpp"
#include "vca_commit.hpp"  // written by CMake at every build

namespace vca::tools {
namespace {

using Json = nlohmann::ordered_json;

// As many digits as a measurement has.
double rounded(double x, const char* format) {
  return std::strtod(formatted(format, x).c_str(), nullptr);
}

Json optional_number(const std::optional<double>& x, const char* format) {
  if (!x) return nullptr;
  return rounded(*x, format);
}

std::string optional_text(const std::optional<double>& x, const char* format) {
  return x ? formatted(format, *x) : "–";
}

Json row_json(const core::ProblemText& p, const BenchRow& row) {
  const double ms = rounded(row.ms_median, "%.6g");
  return {{"problem",
           {{"b", p.b},
            {"h_q", p.h_q},
            {"h_kv", p.h_kv},
            {"s_q", p.s_q},
            {"s_kv", p.keys()},
            {"d", p.d}}},
          {"impl", row.impl},
          {"scope", row.scope},
          {"grouping", to_string(row.grouping)},
          {"ms_median", ms},
          {"ms_min", rounded(row.ms_min, "%.6g")},
          {"ms_max", rounded(row.ms_max, "%.6g")},
          {"tflops", rounded(bench_tflops(p, ms), "%.6g")},
          {"rel_error", optional_number(row.rel_error, "%.4g")},
          {"clock_mhz", optional_number(row.clock_mhz, "%.0f")},
          {"power_w", optional_number(row.power_w, "%.1f")}};
}

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string build_note() {
  std::string text;
#ifndef NDEBUG
  text += "; assertions are on: not a build to measure with";
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  text += "; sanitizers are on: not a build to measure with";
#endif
  return text;
}

}  // namespace

std::string build_commit() { return VCA_COMMIT; }

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm utc = {};
  gmtime_r(&now, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

BenchSetting bench_setting(const Place& place, const BenchOptions& options) {
  BenchSetting s;
  s.on_gpu = place.device() >= 0;
  s.name = place.name();
  s.driver = place.driver();
  s.clock_source = place.clock_source();
  s.note = "vcattn bench, ours alone";
  if (!s.on_gpu) s.note += "; CPU run on " + s.name + ", no claim about any GPU";
  s.note += "; standard normal inputs, warm-up " + std::to_string(options.timing.warmup) +
            ", timed calls at least " + std::to_string(options.timing.iterations);
  if (options.timing.seconds > 0)
    s.note += " and " + formatted("%g", options.timing.seconds) + " s of them";
  if (s.clock_source != "NVML") s.note += "; no clock and power: " + s.clock_source;
  s.note += build_note();
  return s;
}

std::string bench_table(const BenchSetting& setting, const BenchOptions& options,
                        const BenchResult& result) {
  std::string text = setting.name;
  if (setting.on_gpu) text += ", driver " + setting.driver;
  text += ", commit " + build_commit() + "\n" + setting.note + "\n";
  for (size_t i = 0; i < options.problems.size(); ++i) {
    const NamedProblem& p = options.problems[i];
    std::vector<TableRow> rows = {{"implementation", "scope", "grouping", "ms", "min", "max",
                                   "TFLOP/s", "error", "MHz", "W"}};
    for (const BenchRow& row : result.rows) {
      if (row.problem != i) continue;
      const bool attention = std::string(row.scope) != "prep";
      rows.push_back({row.impl, row.scope, to_string(row.grouping),
                      formatted("%.4g", row.ms_median), formatted("%.4g", row.ms_min),
                      formatted("%.4g", row.ms_max),
                      attention ? formatted("%.4g", bench_tflops(p.problem, row.ms_median)) : "–",
                      row.rel_error ? percent_text(*row.rel_error) : "–",
                      optional_text(row.clock_mhz, "%.0f"), optional_text(row.power_w, "%.0f")});
    }
    if (rows.size() == 1) continue;
    text += "\n" + p.name;
    const std::string full = core::to_text(p.problem);
    if (full != p.name) text += ": " + full;
    text +=
        ", " + formatted("%.4g", p.problem.flops() * 1e-12) + " TFLOP a call\n\n" + aligned(rows);
  }
  text +=
      "\nms: median of single calls; error: relative, of sampled rows against FP64 on the "
      "stored inputs\n";
  for (const std::string& note : result.notes) text += "note: " + note + "\n";
  return text;
}

std::string bench_json(const BenchSetting& setting, const BenchOptions& options,
                       const BenchResult& result, const std::string& date) {
  Json problems = Json::object();
  for (const NamedProblem& p : options.problems) problems[p.name] = core::to_text(p.problem);
  const Json gpu = setting.on_gpu ? Json(setting.name) : Json(nullptr);
  const Json driver = setting.on_gpu ? Json(setting.driver) : Json(nullptr);
  // One row a line, as bench/schema.py writes them.
  std::string text = "{\n  \"gpu\": " + dump(gpu) + ",\n  \"driver\": " + dump(driver) +
                     ",\n  \"date\": " + dump(date) + ",\n  \"commit\": " + dump(build_commit()) +
                     ",\n  \"note\": " + dump(setting.note) +
                     ",\n  \"problems\": " + dump(problems) + ",\n  \"rows\": [\n";
  for (size_t i = 0; i < result.rows.size(); ++i) {
    const BenchRow& row = result.rows[i];
    text += "    " + dump(row_json(options.problems[row.problem].problem, row)) +
            (i + 1 < result.rows.size() ? ",\n" : "\n");
  }
  return text + "  ]\n}\n";
}

std::string problem_list(const std::vector<NamedProblem>& problems) {
  std::vector<TableRow> rows = {{"name", "problem", "TFLOP"}};
  for (const NamedProblem& p : problems)
    rows.push_back(
        {p.name, core::to_text(p.problem), formatted("%.4g", p.problem.flops() * 1e-12)});
  return aligned(rows);
}

}  // namespace vca::tools
