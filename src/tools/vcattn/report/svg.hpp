// SPDX-License-Identifier: Apache-2.0
// The few shapes that the charts are made of. Colours are CSS classes of the page, so that one
// drawing serves light and dark.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vca::tools {

// For text and attribute values; bytes that are not UTF-8 become U+FFFD, control characters blanks.
std::string html_escape(std::string_view text);

// At most two decimals, no trailing zeros, never "-0".
std::string coordinate(double x);

class Svg {
 public:
  // `label`: what a screen reader says.
  Svg(double width, double height, std::string_view label);

  void rect(double x, double y, double w, double h, std::string_view css, double radius = 0);
  // With an opacity of its own: cells of a heat map.
  void cell(double x, double y, double w, double h, double opacity, std::string_view tooltip);
  void line(double x1, double y1, double x2, double y2, std::string_view css);
  void circle(double x, double y, double r, std::string_view css);
  void polyline(const std::vector<std::pair<double, double>>& points, std::string_view css);
  // The polygon between the points and the horizontal y = base.
  void area(const std::vector<std::pair<double, double>>& points, double base,
            std::string_view css);
  // anchor: "start", "middle", "end".
  void text(double x, double y, std::string_view text, std::string_view anchor,
            std::string_view css);
  // What follows until end_group shows the tooltip.
  void begin_group(std::string_view tooltip);
  void end_group();

  std::string finish();

 private:
  std::string out_;
};

// About `count` round numbers that cover [0, max]; the last one is >= max.
std::vector<double> axis_ticks(double max, int count);

}  // namespace vca::tools
