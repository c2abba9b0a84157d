// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "tools/vcattn/compare_output.hpp"
#include "tools/vcattn/report/charts.hpp"
#include "tools/vcattn/report/svg.hpp"

namespace vca::tools {
namespace {

constexpr double kWidth = 900, kLabel = 150, kRight = 90;

double finite_or_zero(double x) { return std::isfinite(x) ? x : 0.0; }

// A quantile of ascending values.
double quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

std::string tick_text(double fraction) {
  char text[32];
  std::snprintf(text, sizeof text, "%g %%", 100 * fraction);
  return text;
}

}  // namespace

std::vector<const RecipeResult*> charted(const CompareResult& result) {
  std::vector<const RecipeResult*> all, quantised;
  for (const RecipeResult& r : result.recipes) {
    all.push_back(&r);
    if (r.choice.recipe->quantised()) quantised.push_back(&r);
  }
  return quantised.empty() ? all : quantised;
}

std::string stage_chart(const CompareResult& result) {
  struct Bar {
    const char* name;
    const char* css;
    double spec::Diagnosis::*value;
    double height;
  };
  constexpr std::array<Bar, 4> kBars = {{{"whole output", "total", &spec::Diagnosis::rel_l2, 13},
                                         {"QK only", "qk", &spec::Diagnosis::qk_only, 6},
                                         {"P only", "p", &spec::Diagnosis::p_only, 6},
                                         {"V only", "v", &spec::Diagnosis::v_only, 6}}};
  const std::vector<const RecipeResult*> recipes = charted(result);
  double max = 0;
  for (const RecipeResult* r : recipes)
    for (const Bar& bar : kBars) max = std::max(max, finite_or_zero(r->figures.*bar.value));
  const std::vector<double> ticks = axis_ticks(max, 6);
  constexpr double kRow = 52, kTop = 34;
  const double height = kTop + kRow * static_cast<double>(recipes.size()) + 26;
  const double scale = (kWidth - kLabel - kRight) / ticks.back();

  Svg svg(kWidth, height, "Relative error of the output by recipe, whole and by stage");
  double legend = kLabel;
  for (const Bar& bar : kBars) {
    svg.rect(legend, 6, 11, 11, bar.css, 2);
    svg.text(legend + 16, 16, bar.name, "start", "small");
    legend += 116;
  }
  for (double tick : ticks) {
    const double x = kLabel + tick * scale;
    svg.line(x, kTop - 6, x, height - 22, "grid");
    svg.text(x, height - 6, tick_text(tick), "middle", "small soft");
  }
  double y = kTop;
  for (const RecipeResult* recipe : recipes) {
    const RecipeResult& r = *recipe;
    svg.text(kLabel - 12, y + 17, r.choice.label, "end", "name");
    double at = y + 4;
    for (const Bar& bar : kBars) {
      const double value = r.figures.*bar.value;
      svg.begin_group(r.choice.label + ", " + bar.name + ": " + percent_text(value));
      // A sliver stands for "not zero, too small for this scale".
      const double w = finite_or_zero(value) * scale;
      svg.rect(kLabel, at, finite_or_zero(value) > 0 ? std::max(w, 1.0) : 0, bar.height, bar.css,
               2);
      svg.end_group();
      if (bar.value == &spec::Diagnosis::rel_l2)
        svg.text(kLabel + w + 8, at + 11, percent_text(value), "start", "value");
      at += bar.height + 2;
    }
    y += kRow;
  }
  svg.line(kLabel, kTop - 6, kLabel, height - 22, "axis");
  return svg.finish();
}

std::string row_chart(const CompareResult& result) {
  const std::vector<const RecipeResult*> recipes = charted(result);
  double low = HUGE_VAL, high = 0;
  for (const RecipeResult* r : recipes) {
    for (double e : r->row_errors) {
      if (!(e > 0) || !std::isfinite(e)) continue;
      low = std::min(low, e);
      high = std::max(high, e);
    }
  }
  if (!(high > 0)) return "";
  // Whole decades, at most six of them: what lies below is noise of the FP32 output.
  const double last = std::ceil(std::log10(high) - 1e-9);
  const double first = std::max(std::min(std::floor(std::log10(low)), last - 1), last - 6);
  constexpr double kRow = 30, kTop = 34;
  const double height = kTop + kRow * static_cast<double>(recipes.size()) + 26;
  const double scale = (kWidth - kLabel - kRight) / (last - first);
  const auto x_of = [&](double e) {
    return kLabel + std::clamp(std::log10(std::max(e, 1e-300)) - first, 0.0, last - first) * scale;
  };

  Svg svg(kWidth, height, "Relative error of single rows by recipe, logarithmic");
  svg.line(kLabel, 12, kLabel + 26, 12, "whisker");
  svg.text(kLabel + 32, 16, "all rows", "start", "small");
  svg.rect(kLabel + 116, 7, 26, 10, "middle", 5);
  svg.text(kLabel + 148, 16, "middle 80 %", "start", "small");
  svg.circle(kLabel + 254, 12, 5, "dot");
  svg.text(kLabel + 266, 16, "median", "start", "small");
  for (double decade = first; decade <= last + 0.5; ++decade) {
    const double x = kLabel + (decade - first) * scale;
    svg.line(x, kTop - 6, x, height - 22, "grid");
    svg.text(x, height - 6, tick_text(std::pow(10.0, decade)), "middle", "small soft");
  }
  double y = kTop;
  for (const RecipeResult* recipe : recipes) {
    const RecipeResult& r = *recipe;
    const double middle = y + kRow / 2;
    svg.text(kLabel - 12, middle + 4, r.choice.label, "end", "name");
    if (!r.row_errors.empty() && r.row_errors.back() > 0) {
      const double p10 = quantile(r.row_errors, 0.1), p50 = quantile(r.row_errors, 0.5),
                   p90 = quantile(r.row_errors, 0.9);
      svg.begin_group(r.choice.label + ": best " + percent_text(r.row_errors.front()) +
                      ", median " + percent_text(p50) + ", 90th percentile " + percent_text(p90) +
                      ", worst " + percent_text(r.row_errors.back()));
      svg.line(x_of(r.row_errors.front()), middle, x_of(r.row_errors.back()), middle, "whisker");
      svg.rect(x_of(p10), middle - 5, std::max(x_of(p90) - x_of(p10), 2.0), 10, "middle", 5);
      svg.circle(x_of(p50), middle, 5, "dot");
      svg.end_group();
      svg.text(x_of(r.row_errors.back()) + 8, middle + 4, percent_text(r.row_errors.back()),
               "start", "small soft");
    } else {
      svg.text(kLabel + 8, middle + 4, "no error", "start", "small soft");
    }
    y += kRow;
  }
  return svg.finish();
}

}  // namespace vca::tools
