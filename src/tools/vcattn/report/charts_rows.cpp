// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>

#include "tools/vcattn/compare_output.hpp"
#include "tools/vcattn/report/charts.hpp"
#include "tools/vcattn/report/svg.hpp"

namespace vca::tools {
namespace {

constexpr double kSmallWidth = 300, kSmallHeight = 170;

std::string tile(const std::string& title, const std::string& note, const std::string& svg) {
  return "<figure class=\"tile\"><figcaption><b>" + html_escape(title) + "</b><span>" +
         html_escape(note) + "</span></figcaption>" + svg + "</figure>\n";
}

// Shares of the codes 1, 2, ... in 127 bins; the zero is told apart because it dwarfs the rest.
struct CodeShares {
  double zero = 0;
  std::vector<double> bins;
};

CodeShares code_shares(const RecipeResult& r) {
  const double total =
      static_cast<double>(std::accumulate(r.histogram.begin(), r.histogram.end(), int64_t{0}));
  CodeShares shares;
  if (total == 0) return shares;
  shares.zero = static_cast<double>(r.histogram[0]) / total;
  // 8-bit unsigned codes come in pairs, so that one axis serves both kinds.
  const size_t per_bin = r.choice.recipe->p == spec::PMap::cast_u8 ? 2 : 1;
  for (size_t code = 1; code < 128 * per_bin - (per_bin == 1 ? 1 : 0); code += per_bin) {
    double sum = 0;
    for (size_t i = 0; i < per_bin && code + i < 256; ++i)
      sum += static_cast<double>(r.histogram[code + i]);
    shares.bins.push_back(sum / total);
  }
  return shares;
}

// Means over logarithmically spaced ranks.
struct Ranked {
  std::vector<double> rank, own, mapped;
};

Ranked rank_keys(const spec::RowCurves& curves) {
  std::vector<size_t> order(curves.own.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return curves.own[a] > curves.own[b]; });
  Ranked out;
  size_t begin = 0;
  while (begin < order.size()) {
    const size_t end = std::min(
        order.size(),
        std::max(begin + 1, static_cast<size_t>(std::ceil(static_cast<double>(begin) * 1.1))));
    double own = 0, mapped = 0;
    for (size_t i = begin; i < end; ++i) {
      own += curves.own[order[i]];
      mapped += curves.mapped[order[i]];
    }
    const auto n = static_cast<double>(end - begin);
    out.rank.push_back(std::sqrt(static_cast<double>((begin + 1) * end)));
    out.own.push_back(own / n);
    out.mapped.push_back(mapped / n);
    begin = end;
  }
  return out;
}

std::string place_text(const WorstRow& worst, bool batches) {
  return (batches ? "batch " + std::to_string(worst.place.batch) + ", " : "") + "head " +
         std::to_string(worst.place.head) + ", row " + std::to_string(worst.place.row) + ": " +
         percent_text(worst.diagnosis.relative_error());
}

std::string tick_text(double share) {
  char text[16];
  std::snprintf(text, sizeof text, "%g %%", 100 * share);
  return text;
}

std::string power_text(double decade) {
  char text[16];
  std::snprintf(text, sizeof text, "1e%d", static_cast<int>(decade));
  return text;
}

}  // namespace

std::string code_charts(const CompareResult& result) {
  double max = 0;
  for (const RecipeResult& r : result.recipes)
    for (double share : code_shares(r).bins) max = std::max(max, share);
  if (!(max > 0)) return "";
  constexpr double kLeft = 42, kRight = 6, kBottom = 22, kTop = 8;
  const double base = kSmallHeight - kBottom;
  // Square roots: a scale that keeps both a spike and a flat distribution visible, and zero at
  // zero.
  const auto y_of = [&](double share) { return base - std::sqrt(share / max) * (base - kTop); };
  std::string html;
  for (const RecipeResult& r : result.recipes) {
    const CodeShares shares = code_shares(r);
    if (!r.choice.recipe->has_codes() || shares.bins.empty()) continue;
    Svg svg(kSmallWidth, kSmallHeight, "Codes of P of " + r.choice.label);
    for (double tick : {0.001, 0.01, 0.04, 0.1, 0.4}) {
      if (tick > max) continue;
      svg.line(kLeft, y_of(tick), kSmallWidth - kRight, y_of(tick), "grid");
      svg.text(kLeft - 5, y_of(tick) + 4, tick_text(tick), "end", "tiny soft");
    }
    const double w = (kSmallWidth - kLeft - kRight) / static_cast<double>(shares.bins.size());
    std::vector<std::pair<double, double>> points;
    for (size_t i = 0; i < shares.bins.size(); ++i) {
      const double y = y_of(shares.bins[i]);
      points.emplace_back(kLeft + w * static_cast<double>(i), y);
      points.emplace_back(kLeft + w * static_cast<double>(i + 1), y);
    }
    svg.area(points, base, "codes");
    svg.line(kLeft, base, kSmallWidth - kRight, base, "axis");
    const bool bytes = r.choice.recipe->p == spec::PMap::cast_u8;
    svg.text(kLeft, kSmallHeight - 6, "1", "start", "small soft");
    svg.text((kLeft + kSmallWidth - kRight) / 2, kSmallHeight - 6, bytes ? "128" : "64", "middle",
             "small soft");
    svg.text(kSmallWidth - kRight, kSmallHeight - 6, bytes ? "255" : "126", "end", "small soft");
    html += tile(r.choice.label, "code 0: " + percent_text(shares.zero), svg.finish());
  }
  return "<div class=\"tiles\">" + html + "</div>\n";
}

std::string worst_row_charts(const CompareResult& result) {
  constexpr double kLeft = 40, kRight = 8, kTop = 8, kBottom = 24;
  bool batches = false;
  for (const RecipeResult& r : result.recipes)
    for (const WorstRow& worst : r.worst) batches = batches || worst.place.batch > 0;
  std::string html;
  for (const RecipeResult& r : result.recipes) {
    if (!r.choice.recipe->quantised() || r.worst.empty() || r.curves.own.empty()) continue;
    const Ranked keys = rank_keys(r.curves);
    const double top = std::ceil(std::log10(std::max(keys.own.front(), 1e-300)) - 1e-9);
    // Eight decades below the largest probability, or less when the row ends before.
    double lowest = top;
    for (double x : keys.own)
      if (x > 0) lowest = std::min(lowest, std::floor(std::log10(x)));
    const double bottom = std::clamp(lowest, top - 8, top - 2);
    const double ranks = std::max(std::log10(static_cast<double>(r.curves.own.size())), 0.1);
    const auto x_of = [&](double rank) {
      return kLeft + std::log10(rank) / ranks * (kSmallWidth - kLeft - kRight);
    };
    const double base = kSmallHeight - kBottom;
    const auto y_of = [&](double p) {
      const double decade = p > 0 ? std::clamp(std::log10(p), bottom, top) : bottom;
      return kTop + (top - decade) / (top - bottom) * (base - kTop);
    };
    Svg svg(kSmallWidth, kSmallHeight, "Probabilities of the worst row of " + r.choice.label);
    const double decade_step = top - bottom > 5 ? 2 : 1;
    for (double decade = top; decade >= bottom; decade -= decade_step) {
      const double y = y_of(std::pow(10.0, decade));
      svg.line(kLeft, y, kSmallWidth - kRight, y, "grid");
      svg.text(kLeft - 6, y + 4, power_text(decade), "end", "tiny soft");
    }
    std::vector<std::pair<double, double>> own, mapped;
    for (size_t i = 0; i < keys.rank.size(); ++i) {
      own.emplace_back(x_of(keys.rank[i]), y_of(keys.own[i]));
      mapped.emplace_back(x_of(keys.rank[i]), y_of(keys.mapped[i]));
    }
    svg.area(own, base, "own");
    svg.polyline(mapped, "mapped");
    svg.line(kLeft, base, kSmallWidth - kRight, base, "axis");
    svg.text(kLeft, kSmallHeight - 7, "key 1", "start", "tiny soft");
    svg.text(kSmallWidth - kRight, kSmallHeight - 7,
             "key " + std::to_string(r.curves.own.size()) + " by rank", "end", "tiny soft");
    html += tile(r.choice.label, place_text(r.worst[0], batches), svg.finish());
  }
  return html.empty() ? "" : "<div class=\"tiles\">" + html + "</div>\n";
}

}  // namespace vca::tools
