// SPDX-License-Identifier: Apache-2.0
// Small charts as SVG text for the page of `vcattn generate`.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace vca::tools {

struct Series {
  std::string name;
  std::vector<std::optional<double>> values;  // one per step; a gap where there is none
  size_t colour = 0;                          // a recipe keeps its colour in every chart
};

struct ChartOptions {
  std::string title;
  std::string x_label;
  std::string y_label;
  bool log_scale = false;
};

// Lines over step numbers 1, 2, ...
std::string line_chart(const std::vector<Series>& series, const ChartOptions& options);

struct Bar {
  std::string name;
  double value = 0;
  std::string text;  // printed behind the bar
  size_t colour = 0;
};

// Horizontal bars from zero.
std::string bar_chart(const std::vector<Bar>& bars, const std::string& title);

std::string escape_html(const std::string& text);

}  // namespace vca::tools
