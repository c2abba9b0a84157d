// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/text_table.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace vca::tools {
namespace {

// Columns of a terminal, for the few characters outside ASCII that the table has.
size_t width(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(),
                                           [](unsigned char c) { return (c & 0xC0u) != 0x80u; }));
}

std::string padded(const std::string& text, size_t columns, bool left) {
  const std::string blanks(columns - std::min(columns, width(text)), ' ');
  return left ? text + blanks : blanks + text;
}

}  // namespace

std::string formatted(const char* format, double x) {
  char text[64];
  std::snprintf(text, sizeof text, format, x);
  return text;
}

std::string percent_text(double fraction) {
  if (!std::isfinite(fraction)) return "–";
  const double percent = 100 * fraction;
  if (percent == 0) return "0 %";
  const double size = std::fabs(percent);
  if (size < 0.001) return formatted("%.1e %%", percent);
  return formatted(size < 1 ? "%.3f %%" : size < 10 ? "%.2f %%" : "%.1f %%", percent);
}

std::string aligned(const std::vector<TableRow>& rows) {
  std::vector<size_t> widths(rows[0].size(), 0);
  for (const TableRow& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  std::string text;
  for (size_t line = 0; line < rows.size(); ++line) {
    for (size_t i = 0; i < rows[line].size(); ++i)
      text += (i == 0 ? "" : "  ") + padded(rows[line][i], widths[i], i == 0);
    text += "\n";
    if (line == 0) {
      for (size_t i = 0; i < widths.size(); ++i) {
        text += i == 0 ? "" : "  ";
        for (size_t c = 0; c < widths[i]; ++c) text += "─";
      }
      text += "\n";
    }
  }
  return text;
}

}  // namespace vca::tools
