// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>

#include "tools/vcattn/compare_output.hpp"
#include "tools/vcattn/report/charts.hpp"
#include "tools/vcattn/report/svg.hpp"

namespace vca::tools {
namespace {

struct MapRow {
  std::string name, detail;
  std::vector<double> values;
  std::vector<std::string> notes;  // one a cell, may be empty
};

// A heat map with one line a MapRow and one column a (batch, head). Dark means large.
std::string heat_map(const std::vector<MapRow>& rows, int64_t heads, const char* label) {
  if (rows.empty() || rows[0].values.empty()) return "";
  constexpr double kWidth = 900, kLabel = 190, kTop = 24, kRow = 40;
  const auto columns = static_cast<double>(rows[0].values.size());
  const double w = std::min((kWidth - kLabel) / columns, 96.0);
  const double gap = w > 12 ? 3 : w > 4 ? 1 : 0;
  double low = HUGE_VAL, high = -HUGE_VAL;
  for (const MapRow& row : rows) {
    for (double x : row.values) {
      if (!std::isfinite(x)) continue;
      low = std::min(low, x);
      high = std::max(high, x);
    }
  }
  if (!(low <= high)) return "";
  const double height = kTop + kRow * static_cast<double>(rows.size()) + 34;
  Svg svg(kWidth, height, label);
  const auto n = static_cast<int64_t>(rows[0].values.size());
  // Names of columns as far as they have room.
  const auto every = static_cast<int64_t>(std::ceil(30.0 / w));
  for (int64_t c = 0; c < n; c += every) {
    const std::string name = n == heads
                                 ? std::to_string(c)
                                 : std::to_string(c / heads) + "·" + std::to_string(c % heads);
    svg.text(kLabel + w * (static_cast<double>(c) + 0.5), kTop - 8, name, "middle", "small soft");
  }
  svg.text(kLabel - 12, kTop - 8, n == heads ? "head" : "batch·head", "end", "small soft");
  double y = kTop;
  for (const MapRow& row : rows) {
    const double middle = y + kRow / 2;
    svg.text(kLabel - 12, row.detail.empty() ? middle + 4 : middle - 2, row.name, "end", "name");
    if (!row.detail.empty()) svg.text(kLabel - 12, middle + 12, row.detail, "end", "tiny soft");
    for (int64_t c = 0; c < n; ++c) {
      const double x = row.values[static_cast<size_t>(c)];
      const double left = kLabel + w * static_cast<double>(c);
      const double share = high > low ? (x - low) / (high - low) : 0.5;
      const double opacity = std::isfinite(x) ? 0.12 + 0.88 * share : 0;
      std::string tip = row.name + ", batch " + std::to_string(c / heads) + ", head " +
                        std::to_string(c % heads) + ": " + percent_text(x);
      if (!row.notes.empty() && !row.notes[static_cast<size_t>(c)].empty())
        tip += " (" + row.notes[static_cast<size_t>(c)] + ")";
      svg.cell(left, y + 3, w - gap, kRow - 6, opacity, tip);
      if (w >= 48)
        svg.text(left + (w - gap) / 2, middle + 4, percent_text(x), "middle",
                 opacity > 0.62 ? "small on" : "small");
    }
    y += kRow;
  }
  // The scale.
  const double scale_y = y + 14;
  for (int i = 0; i < 40; ++i)
    svg.cell(kLabel + 4.0 * i, scale_y, 4.2, 8, 0.12 + 0.88 * (i + 0.5) / 40, "");
  svg.text(kLabel - 12, scale_y + 8, percent_text(low), "end", "small soft");
  svg.text(kLabel + 168, scale_y + 8, percent_text(high), "start", "small soft");
  return svg.finish();
}

}  // namespace

std::string energy_map(const CompareInput& in, const CompareResult& result) {
  std::vector<MapRow> rows;
  std::vector<std::vector<std::string>> members;
  for (const RecipeResult& r : result.recipes) {
    if (!r.choice.recipe->v_smooth()) continue;
    const auto same = [&](const MapRow& row) {
      // Bitwise, because NaN marks heads without energy.
      return std::equal(row.values.begin(), row.values.end(), r.head_energy.begin(),
                        [](double a, double b) { return a == b || (a != a && b != b); });
    };
    const auto known = std::find_if(rows.begin(), rows.end(), same);
    if (known != rows.end()) {
      members[static_cast<size_t>(known - rows.begin())].push_back(r.choice.label);
      continue;
    }
    MapRow row;
    row.values = r.head_energy;
    for (spec::Grouping used : r.head_grouping) row.notes.emplace_back(spec::to_string(used));
    row.name = spec::to_string(r.choice.grouping);
    rows.push_back(std::move(row));
    members.push_back({r.choice.label});
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    std::string& text = rows[i].detail;
    for (size_t m = 0; m < members[i].size(); ++m) {
      if (text.size() > 20 && m + 1 < members[i].size()) {
        text += " +" + std::to_string(members[i].size() - m);
        break;
      }
      text += (m == 0 ? "" : ", ") + members[i][m];
    }
  }
  return heat_map(rows, in.heads_kv, "Energy of V that block means remove, by head");
}

std::string head_error_map(const CompareInput& in, const CompareResult& result) {
  std::vector<MapRow> rows;
  for (const RecipeResult* r : charted(result))
    if (!r->head_error.empty()) rows.push_back({r->choice.label, "", r->head_error, {}});
  return heat_map(rows, in.heads_q, "Relative error of the output by head and recipe");
}

}  // namespace vca::tools
