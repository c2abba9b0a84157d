// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/generate_chart.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

namespace vca::tools {
namespace {

// Told apart by people with any kind of colour vision, on light and on dark paper.
constexpr std::array<const char*, 8> kColours = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                 "#56b4e9", "#d55e00", "#8a8a8a", "#b8a800"};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// Coordinates of an SVG element, one decimal.
std::string at(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

std::string text_element(double x, double y, const std::string& anchor, const std::string& text) {
  return "<text x=\"" + at(x) + "\" y=\"" + at(y) + "\" text-anchor=\"" + anchor + "\">" +
         escape_html(text) + "</text>";
}

std::string line_element(double x1, double y1, double x2, double y2, const char* css) {
  return "<line x1=\"" + at(x1) + "\" y1=\"" + at(y1) + "\" x2=\"" + at(x2) + "\" y2=\"" + at(y2) +
         "\" class=\"" + css + "\"/>";
}

// The value axis: range and marks.
struct Axis {
  bool log_scale = false;
  double low = 0;
  double high = 1;
  std::vector<double> marks;

  double position(double value) const {  // 0 at the bottom, 1 at the top
    if (log_scale) return std::log(value / low) / std::log(high / low);
    return (value - low) / (high - low);
  }
};

Axis make_axis(const std::vector<Series>& series, bool log_scale) {
  double smallest = HUGE_VAL;
  double largest = 0;
  for (const Series& one : series) {
    for (const std::optional<double>& value : one.values) {
      if (!value || (log_scale && !(*value > 0))) continue;
      smallest = std::min(smallest, *value);
      largest = std::max(largest, *value);
    }
  }
  Axis axis;
  axis.log_scale = log_scale;
  if (!(largest > 0)) {
    axis.log_scale = false;
    axis.marks = {0, 1};
    return axis;
  }
  if (log_scale) {
    const int first = static_cast<int>(std::floor(std::log10(smallest)));
    const int last = std::max(first + 1, static_cast<int>(std::ceil(std::log10(largest))));
    for (int power = first; power <= last; ++power) axis.marks.push_back(std::pow(10.0, power));
  } else {
    const double raw = largest / 4;
    const double power = std::pow(10.0, std::floor(std::log10(raw)));
    double step = 10 * power;
    for (const double factor : {1.0, 2.0, 5.0}) {
      if (factor * power >= raw) {
        step = factor * power;
        break;
      }
    }
    for (double mark = 0; mark < largest + step; mark += step) axis.marks.push_back(mark);
  }
  axis.low = axis.marks.front();
  axis.high = axis.marks.back();
  return axis;
}

}  // namespace

std::string escape_html(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

std::string line_chart(const std::vector<Series>& series, const ChartOptions& options) {
  constexpr double kWidth = 560, kHeight = 300, kLeft = 64, kRight = 120, kTop = 34, kBottom = 44;
  const Axis axis = make_axis(series, options.log_scale);
  size_t steps = 1;
  for (const Series& one : series) steps = std::max(steps, one.values.size());
  const double plot_width = kWidth - kLeft - kRight;
  const double plot_height = kHeight - kTop - kBottom;
  const auto x_of = [&](size_t step) {
    const double share =
        steps == 1 ? 0.5 : static_cast<double>(step) / static_cast<double>(steps - 1);
    return kLeft + plot_width * share;
  };
  const auto y_of = [&](double value) { return kTop + plot_height * (1 - axis.position(value)); };

  std::string svg = "<svg class=\"chart\" viewBox=\"0 0 " + at(kWidth) + " " + at(kHeight) +
                    "\" role=\"img\"><title>" + escape_html(options.title) + "</title>";
  svg += text_element(kLeft, 18, "start", options.title);
  for (const double mark : axis.marks) {
    svg += line_element(kLeft, y_of(mark), kLeft + plot_width, y_of(mark), "grid");
    svg += text_element(kLeft - 6, y_of(mark) + 4, "end", number(mark));
  }
  const size_t every = std::max<size_t>(1, steps / 10);
  for (size_t step = 0; step < steps; step += every) {
    svg += text_element(x_of(step), kTop + plot_height + 16, "middle", std::to_string(step + 1));
  }
  svg += text_element(kLeft + plot_width / 2, kHeight - 8, "middle", options.x_label);
  svg += "<text transform=\"translate(12 " + at(kTop + plot_height / 2) +
         ") rotate(-90)\" text-anchor=\"middle\">" + escape_html(options.y_label) + "</text>";
  for (size_t i = 0; i < series.size(); ++i) {
    const char* colour = kColours[series[i].colour % kColours.size()];
    std::string points;
    for (size_t step = 0; step < series[i].values.size(); ++step) {
      const std::optional<double>& value = series[i].values[step];
      if (!value || (axis.log_scale && !(*value > 0))) continue;
      points += at(x_of(step)) + "," + at(y_of(*value)) + " ";
      svg += "<circle r=\"2.5\" fill=\"" + std::string(colour) + "\" cx=\"" + at(x_of(step)) +
             "\" cy=\"" + at(y_of(*value)) + "\"/>";
    }
    svg += "<polyline fill=\"none\" stroke-width=\"2\" stroke=\"" + std::string(colour) +
           "\" points=\"" + points + "\"/>";
    const double y = kTop + 8 + 18 * static_cast<double>(i);
    svg += "<rect width=\"12\" height=\"4\" fill=\"" + std::string(colour) + "\" x=\"" +
           at(kWidth - kRight + 10) + "\" y=\"" + at(y - 5) + "\"/>";
    svg += text_element(kWidth - kRight + 27, y, "start", series[i].name);
  }
  return svg + "</svg>";
}

std::string bar_chart(const std::vector<Bar>& bars, const std::string& title) {
  constexpr double kWidth = 560, kLeft = 110, kRight = 80, kTop = 34, kStep = 26;
  const double height = kTop + kStep * static_cast<double>(bars.size()) + 8;
  double largest = 0;
  for (const Bar& bar : bars) largest = std::max(largest, bar.value);
  std::string svg = "<svg class=\"chart\" viewBox=\"0 0 " + at(kWidth) + " " + at(height) +
                    "\" role=\"img\"><title>" + escape_html(title) + "</title>";
  svg += text_element(8, 18, "start", title);
  for (size_t i = 0; i < bars.size(); ++i) {
    const double y = kTop + kStep * static_cast<double>(i);
    const double width = largest > 0 ? (kWidth - kLeft - kRight) * bars[i].value / largest : 0;
    svg += text_element(kLeft - 8, y + 14, "end", bars[i].name);
    svg += "<rect height=\"18\" rx=\"2\" fill=\"" +
           std::string(kColours[bars[i].colour % kColours.size()]) + "\" x=\"" + at(kLeft) +
           "\" y=\"" + at(y) + "\" width=\"" + at(width) + "\"/>";
    svg += text_element(kLeft + width + 8, y + 14, "start", bars[i].text);
  }
  return svg + "</svg>";
}

}  // namespace vca::tools
