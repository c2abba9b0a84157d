// SPDX-License-Identifier: Apache-2.0
#include "tools/vcattn/compare_output.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "vca/vca.h"

namespace vca::tools {
namespace {

std::string seconds_text(double x) { return formatted(x < 100 ? "%.3g" : "%.0f", x); }

std::string cosine_text(double x) { return std::isnan(x) ? "–" : formatted("%.6f", x); }

nlohmann::ordered_json number(double x) {
  // NaN and Inf are not JSON; both mean that the figure is undefined for this input.
  if (!std::isfinite(x)) return nullptr;
  return x;
}

}  // namespace

std::string compare_table(const CompareInput& in, const CompareOptions& options,
                          const CompareResult& result) {
  std::vector<TableRow> rows = {{"recipe", "rel_l2", "worst row", "cosine", "QK only", "P only",
                                 "V only", "f", "TV mean", "TV max", "τ mean", "τ max", "seconds"}};
  for (const RecipeResult& r : result.recipes) {
    const spec::Diagnosis& d = r.figures;
    rows.push_back({r.choice.label, percent_text(d.rel_l2), percent_text(d.worst_row),
                    cosine_text(d.cosine), percent_text(d.qk_only), percent_text(d.p_only),
                    percent_text(d.v_only), percent_text(r.energy_removed), percent_text(d.tv_mean),
                    percent_text(d.tv_max), percent_text(d.tau_mean), percent_text(d.tau_max),
                    seconds_text(r.seconds)});
  }
  std::string text = in.file.path().filename().string() + ": " + std::to_string(in.batches) +
                     " x " + std::to_string(in.heads_q) + " heads";
  if (in.heads_kv != in.heads_q) text += " (" + std::to_string(in.heads_kv) + " of k and v)";
  text += ", " + std::to_string(in.tokens_q) + " queries, " + std::to_string(in.tokens_kv) +
          " keys, head_dim " + std::to_string(in.head_dim) + ", " + in.file.find("q")->dtype +
          "; " + std::to_string(result.rows.size()) + " rows a head, arithmetic of " +
          std::string(spec::to_string(options.target)) + "\n\n";
  return text + aligned(rows) +
         "\nerrors against FP64 on the stored inputs; f: share of V's energy that block means "
         "take out;\nTV, τ: what the map to 8-bit probabilities moved and lost; seconds: " +
         result.timed + "\n";
}

std::string compare_json(const CompareInput& in, const CompareOptions& options,
                         const CompareResult& result, const std::string& grouping) {
  nlohmann::ordered_json root;
  root["version"] = vca_version();
  root["spec_version"] = vca_spec_version();
  nlohmann::ordered_json& input = root["input"];
  input["file"] = in.file.path().string();
  input["dtype"] = in.file.find("q")->dtype;
  input["layout"] = in.layout == Layout::hnd ? "HND" : "NHD";
  input["batch"] = in.batches;
  input["heads_q"] = in.heads_q;
  input["heads_kv"] = in.heads_kv;
  input["tokens_q"] = in.tokens_q;
  input["tokens_kv"] = in.tokens_kv;
  input["head_dim"] = in.head_dim;
  input["scale"] = 1.0 / std::sqrt(static_cast<double>(in.head_dim));
  input["rows"] = result.rows.size();
  input["grouping"] = grouping;
  if (options.grid[0] > 0)
    input["grid"] = options.grid;
  else
    input["grid"] = nullptr;
  input["target"] = std::string(spec::to_string(options.target));
  input["threads"] = result.threads;
  input["timed"] = result.timed;
  nlohmann::ordered_json& recipes = root["recipes"];
  recipes = nlohmann::ordered_json::object();
  for (const RecipeResult& r : result.recipes) {
    const spec::Diagnosis& d = r.figures;
    recipes[r.choice.label] = {{"rel_l2", number(d.rel_l2)},
                               {"worst_row", number(d.worst_row)},
                               {"cosine", number(d.cosine)},
                               {"qk_only", number(d.qk_only)},
                               {"p_only", number(d.p_only)},
                               {"v_only", number(d.v_only)},
                               {"energy_removed", number(r.energy_removed)},
                               {"tv_mean", number(d.tv_mean)},
                               {"tv_max", number(d.tv_max)},
                               {"tau_mean", number(d.tau_mean)},
                               {"tau_max", number(d.tau_max)},
                               {"seconds", number(r.seconds)}};
  }
  // A file name need not be UTF-8.
  return root.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace vca::tools
