// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/report/report.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tools/vcattn/compare_output.hpp"
#include "tools/vcattn/report/charts.hpp"
#include "tools/vcattn/report/style.hpp"
#include "tools/vcattn/report/svg.hpp"
#include "vca/vca.h"

namespace vca::tools {
namespace {

std::string decimals(const char* format, double x) {
  char text[48];
  std::snprintf(text, sizeof text, format, x);
  return text;
}

const RecipeResult* find(const CompareResult& result, std::string_view label) {
  for (const RecipeResult& r : result.recipes)
    if (r.choice.label == label) return &r;
  return nullptr;
}

// The 8-bit recipe with the smallest error; NULL without one.
const RecipeResult* best_recipe(const CompareResult& result) {
  const RecipeResult* best = nullptr;
  for (const RecipeResult& r : result.recipes) {
    if (!r.choice.recipe->quantised() || !std::isfinite(r.figures.rel_l2)) continue;
    if (best == nullptr || r.figures.rel_l2 < best->figures.rel_l2) best = &r;
  }
  return best;
}

std::string card(const std::string& title, const std::string& figure, const std::string& text,
                 bool good) {
  return std::string("<div class=\"card") + (good ? " good" : "") + "\"><em>" + html_escape(title) +
         "</em><b>" + html_escape(figure) + "</b><small>" + html_escape(text) + "</small></div>\n";
}

std::string stage_card(const RecipeResult& r) {
  const spec::Diagnosis& d = r.figures;
  const double qk = d.qk_only * d.qk_only, p = d.p_only * d.p_only, v = d.v_only * d.v_only;
  const double sum = qk + p + v;
  if (!(sum > 0) || !std::isfinite(sum)) return "";
  const char* name = v >= qk && v >= p ? "V" : qk >= p ? "QK" : "P";
  const double largest = std::max({qk, p, v});
  return card("largest stage of " + r.choice.label, name,
              decimals("%.0f %% of the squared error of the three stages", 100 * largest / sum),
              false);
}

std::string cards(const CompareResult& result) {
  std::string html;
  if (const RecipeResult* best = best_recipe(result)) {
    html += card("smallest 8-bit error", percent_text(best->figures.rel_l2),
                 best->choice.label + ", worst row " + percent_text(best->figures.worst_row), true);
  }
  const RecipeResult *ours = find(result, "vc8"), *peer = find(result, "sage2");
  if (ours != nullptr && peer != nullptr && peer->figures.rel_l2 > 0 &&
      std::isfinite(ours->figures.rel_l2)) {
    const double ratio = ours->figures.rel_l2 / peer->figures.rel_l2;
    html += card("vc8 against sage2", decimals("%.2f ×", ratio),
                 percent_text(ours->figures.rel_l2) + " against " +
                     percent_text(peer->figures.rel_l2) + " output error",
                 ratio < 1);
  }
  const RecipeResult* shown = ours != nullptr ? ours : best_recipe(result);
  if (shown != nullptr) html += stage_card(*shown);
  const RecipeResult* most = nullptr;
  for (const RecipeResult& r : result.recipes) {
    if (std::isfinite(r.energy_removed) &&
        (most == nullptr || r.energy_removed > most->energy_removed))
      most = &r;
  }
  if (most != nullptr) {
    html += card("energy out of V by block means", percent_text(most->energy_removed),
                 std::string("grouping ") + spec::to_string(most->choice.grouping) + " of " +
                     most->choice.label + ", mean over heads",
                 false);
  }
  return html.empty() ? "" : "<div class=\"cards\">\n" + html + "</div>\n";
}

std::string section(const char* title, const char* how, const std::string& body) {
  if (body.empty()) return "";
  return std::string("<section><h2>") + title + "</h2>\n<p>" + how + "</p>\n" + body +
         "</section>\n";
}

std::string scroll(const std::string& svg) {
  return svg.empty() ? "" : "<div class=\"scroll\">" + svg + "</div>\n";
}

std::string total_table(const CompareResult& result) {
  std::string html =
      "<div class=\"scroll\"><table><thead><tr><th>recipe</th><th>rel. L2</th><th>worst row</th>"
      "<th>cosine</th><th>QK only</th><th>P only</th><th>V only</th><th>f</th><th>TV mean</th>"
      "<th>TV max</th><th>τ mean</th><th>τ max</th><th>seconds</th></tr></thead><tbody>\n";
  const RecipeResult* best = best_recipe(result);
  for (const RecipeResult& r : result.recipes) {
    const spec::Diagnosis& d = r.figures;
    html += std::string("<tr") + (&r == best ? " class=\"best\"" : "") + "><td>" +
            html_escape(r.choice.label) + "</td>";
    const auto cell = [&html](const std::string& text) {
      html += "<td>" + html_escape(text) + "</td>";
    };
    cell(percent_text(d.rel_l2));
    cell(percent_text(d.worst_row));
    cell(std::isfinite(d.cosine) ? decimals("%.6f", d.cosine) : "–");
    for (double x : {d.qk_only, d.p_only, d.v_only, r.energy_removed, d.tv_mean, d.tv_max,
                     d.tau_mean, d.tau_max})
      cell(percent_text(x));
    cell(decimals("%.3g", r.seconds));
    html += "</tr>\n";
  }
  return html + "</tbody></table></div>\n";
}

std::string worst_table(const CompareResult& result) {
  std::string rows;
  for (const RecipeResult& r : result.recipes) {
    if (!r.choice.recipe->quantised()) continue;
    for (const WorstRow& w : r.worst) {
      const spec::RowDiagnosis& d = w.diagnosis;
      rows += "<tr><td>" + html_escape(r.choice.label) + "</td>";
      for (int64_t x : {w.place.batch, w.place.head, w.place.row})
        rows += "<td>" + std::to_string(x) + "</td>";
      const double exact = std::sqrt(d.exact_sq), own = std::sqrt(d.own_sq);
      for (double x : {d.relative_error(), std::sqrt(d.qk_sq) / exact, std::sqrt(d.p_sq) / own,
                       std::sqrt(d.v_sq) / exact, d.tv, d.tau})
        rows += "<td>" + html_escape(percent_text(x)) + "</td>";
      rows += "</tr>\n";
    }
  }
  if (rows.empty()) return "";
  return "<details><summary>The five worst rows of every recipe</summary><div class=\"scroll\">"
         "<table><thead><tr><th>recipe</th><th>batch</th><th>head</th><th>row</th><th>error</th>"
         "<th>QK only</th><th>P only</th><th>V "
         "only</th><th>TV</th><th>τ</th></tr></thead><tbody>\n" +
         rows + "</tbody></table></div></details>\n";
}

std::string head(const CompareInput& in, const CompareOptions& options, const CompareResult& result,
                 const std::string& grouping) {
  const std::string file = in.file.path().filename().string();
  std::vector<std::string> chips = {
      std::to_string(in.batches) + " × " + std::to_string(in.heads_q) + " heads",
      std::to_string(in.tokens_q) + " queries",
      std::to_string(in.tokens_kv) + " keys",
      "head_dim " + std::to_string(in.head_dim),
      in.file.find("q")->dtype,
      std::to_string(result.rows.size()) + " rows a head",
      "arithmetic of " + std::string(spec::to_string(options.target))};
  if (in.heads_kv != in.heads_q)
    chips.insert(chips.begin() + 1, std::to_string(in.heads_kv) + " heads of k and v");
  if (grouping != "default") chips.push_back("grouping " + grouping);
  std::string html = "<header><h1>" + html_escape(file) +
                     "</h1>\n<p>Attention at 8 bits against FP64 on the same tensors</p>\n"
                     "<div class=\"chips\">";
  for (const std::string& chip : chips) html += "<span>" + html_escape(chip) + "</span>";
  return html + "</div></header>\n";
}

constexpr const char* kDefinitions = R"html(<dl>
<dt>rel. L2</dt><dd>√Σ‖o − o*‖² / √Σ‖o*‖² over all sampled rows and heads; o* is FP64 attention on the stored inputs, o the recipe's output before it is rounded to the output's format.</dd>
<dt>worst row</dt><dd>The largest ‖o − o*‖ / ‖o*‖ of a single row.</dd>
<dt>cosine</dt><dd>Cosine between all sampled outputs and their references, taken as one vector.</dd>
<dt>QK only</dt><dd>Softmax of the recipe's own quantised scores in FP64, exact V, against o*.</dd>
<dt>P only</dt><dd>The recipe's P and row sums with exact V, against the softmax of its own scores with exact V: the scores' error is in both and drops out.</dd>
<dt>V only</dt><dd>Exact softmax with the recipe's dequantised V (residual plus restored mean), against o*.</dd>
<dt>f</dt><dd>Share of V's energy that the means of 128-row blocks take out before V is quantised; mean over heads. Only recipes that remove means have it.</dd>
<dt>TV</dt><dd>½ Σ |P·W/L − softmax|: how much probability the map to 8-bit codes moved to other keys, per row.</dd>
<dt>τ</dt><dd>Softmax mass of the keys whose code is 0: what the map lost, per row.</dd>
</dl>)html";

}  // namespace

std::string report_page(const CompareInput& in, const CompareOptions& options,
                        const CompareResult& result, const std::string& grouping) {
  std::string page =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
      // The page proves by itself that it needs nothing from outside.
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
      "'unsafe-inline'\">\n<title>vcattn compare: " +
      html_escape(in.file.path().filename().string()) + "</title>\n<style>" + kReportStyle +
      "</style>\n</head>\n<body><main>\n";
  page += head(in, options, result, grouping);
  page += cards(result);
  page +=
      section("Error by recipe and stage",
              "The thick bar is the error of the output. The three thin bars let one stage at a "
              "time be 8-bit and keep the others exact: where a thin bar is nearly as long as "
              "the thick one, that stage is what to improve. Shorter is better.",
              scroll(stage_chart(result)));
  page += section("All figures", "Percentages are fractions of the reference; – is undefined.",
                  total_table(result));
  page += section("Error of single rows",
                  "Each sampled query row by itself, on a logarithmic axis: the line reaches from "
                  "the best row to the worst, the bar holds the middle 80 %. A long tail to the "
                  "right means that a few tokens are hit much harder than the average says.",
                  scroll(row_chart(result)));
  page +=
      section("Energy map of V by head",
              "How much of V's energy the block means remove in each head, by grouping. Strongly "
              "coloured heads profit most: what a mean carries is not quantised to 8 bits.",
              scroll(energy_map(in, result)));
  page += section("Output error by head",
                  "The same error for each head alone. A strong column is a head that is hard for "
                  "every recipe; a strong cell in a pale column is one recipe's own fault.",
                  scroll(head_error_map(in, result)));
  page += section(
      "Codes of P",
      "How often each 8-bit code of P occurs in the sampled rows, from the smallest "
      "probability (left) to the row or block maximum (right); all on one square-root scale. Keys "
      "with code 0 take no part in the output; their share stands above each chart. "
      "Recipes with unsigned bytes have two codes in a step.",
      code_charts(result));
  const std::string worst = worst_row_charts(result);
  page += section("Worst rows",
                  "The keys of each recipe's worst row, ordered by probability, both axes "
                  "logarithmic. <span class=\"key own\"></span>softmax of the recipe's own scores, "
                  "<span class=\"key mapped\"></span>P as it is multiplied with V. Where the line "
                  "falls off while the area goes on, the tail of the row is lost.",
                  worst.empty() ? "" : worst + worst_table(result));
  page += section("What the figures mean", "", kDefinitions);
  page += "<footer>vcattn " + html_escape(vca_version()) + ", specification " +
          std::to_string(vca_spec_version()) + ". Seconds: " + html_escape(result.timed) + ", " +
          std::to_string(result.threads) + (result.threads == 1 ? " thread" : " threads") +
          ".</footer>\n";
  return page + "</main></body>\n</html>\n";
}

}  // namespace vca::tools
