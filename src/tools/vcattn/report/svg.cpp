// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/report/svg.hpp"

#include <cmath>
#include <cstdio>

namespace vca::tools {
namespace {

// Length of the valid UTF-8 sequence at `at`, 0 when there is none.
size_t utf8_length(std::string_view s, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[at + i]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return 1;
  const size_t n = first >= 0xF0 && first <= 0xF4   ? 4
                   : first >= 0xE0 && first <= 0xEF ? 3
                   : first >= 0xC2 && first <= 0xDF ? 2
                                                    : 0;
  if (n == 0 || s.size() - at < n) return 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xC0) != 0x80) return 0;
  // Overlong forms, surrogates and what lies beyond U+10FFFF.
  if ((first == 0xE0 && byte(1) < 0xA0) || (first == 0xED && byte(1) > 0x9F) ||
      (first == 0xF0 && byte(1) < 0x90) || (first == 0xF4 && byte(1) > 0x8F)) {
    return 0;
  }
  return n;
}

std::string points_text(const std::vector<std::pair<double, double>>& points) {
  std::string text;
  for (const auto& [x, y] : points)
    text += (text.empty() ? "" : " ") + coordinate(x) + "," + coordinate(y);
  return text;
}

std::string attribute(const char* name, double x) {
  return std::string(" ") + name + "=\"" + coordinate(x) + "\"";
}

std::string css_class(std::string_view css) { return " class=\"" + std::string(css) + "\""; }

}  // namespace

std::string html_escape(std::string_view s) {
  std::string out;
  out.reserve(s.size());
  for (size_t at = 0; at < s.size();) {
    const size_t n = utf8_length(s, at);
    if (n == 0) {
      out += "\xEF\xBF\xBD";
      ++at;
      continue;
    }
    const char c = s[at];
    if (n > 1)
      out += s.substr(at, n);
    else if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '"')
      out += "&quot;";
    else if (c == '\'')
      out += "&#39;";
    else
      out += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
    at += n;
  }
  return out;
}

std::string coordinate(double x) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", x);
  std::string s = text;
  while (s.back() == '0') s.pop_back();
  if (s.back() == '.') s.pop_back();
  return s == "-0" ? "0" : s;
}

Svg::Svg(double width, double height, std::string_view label) {
  out_ = "<svg viewBox=\"0 0 " + coordinate(width) + " " + coordinate(height) +
         "\" role=\"img\" aria-label=\"" + html_escape(label) + "\">\n";
}

void Svg::rect(double x, double y, double w, double h, std::string_view css, double radius) {
  out_ += "<rect" + attribute("x", x) + attribute("y", y) + attribute("width", w) +
          attribute("height", h) + (radius > 0 ? attribute("rx", radius) : "") + css_class(css) +
          "/>\n";
}

void Svg::cell(double x, double y, double w, double h, double opacity, std::string_view tooltip) {
  out_ += "<rect" + attribute("x", x) + attribute("y", y) + attribute("width", w) +
          attribute("height", h) + " class=\"heat\" fill-opacity=\"" + coordinate(opacity) +
          "\"><title>" + html_escape(tooltip) + "</title></rect>\n";
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view css) {
  out_ += "<line" + attribute("x1", x1) + attribute("y1", y1) + attribute("x2", x2) +
          attribute("y2", y2) + css_class(css) + "/>\n";
}

void Svg::circle(double x, double y, double r, std::string_view css) {
  out_ += "<circle" + attribute("cx", x) + attribute("cy", y) + attribute("r", r) + css_class(css) +
          "/>\n";
}

void Svg::polyline(const std::vector<std::pair<double, double>>& points, std::string_view css) {
  out_ += "<polyline points=\"" + points_text(points) + "\"" + css_class(css) + "/>\n";
}

void Svg::area(const std::vector<std::pair<double, double>>& points, double base,
               std::string_view css) {
  if (points.empty()) return;
  std::vector<std::pair<double, double>> closed = points;
  closed.emplace_back(points.back().first, base);
  closed.emplace_back(points.front().first, base);
  out_ += "<polygon points=\"" + points_text(closed) + "\"" + css_class(css) + "/>\n";
}

void Svg::text(double x, double y, std::string_view text, std::string_view anchor,
               std::string_view css) {
  out_ += "<text" + attribute("x", x) + attribute("y", y) + " text-anchor=\"" +
          std::string(anchor) + "\"" + css_class(css) + ">" + html_escape(text) + "</text>\n";
}

void Svg::begin_group(std::string_view tooltip) {
  out_ += "<g><title>" + html_escape(tooltip) + "</title>\n";
}

void Svg::end_group() { out_ += "</g>\n"; }

std::string Svg::finish() { return std::move(out_) + "</svg>\n"; }

std::vector<double> axis_ticks(double max, int count) {
  if (!(max > 0) || !std::isfinite(max)) return {0, 1};
  const double rough = max / count;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * power;
  for (double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> ticks;
  for (int i = 0; ticks.empty() || ticks.back() < max * (1 - 1e-9); ++i) ticks.push_back(i * step);
  return ticks;
}

}  // namespace vca::tools
