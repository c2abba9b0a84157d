// SPDX-License-Identifier: Apache-2.0
#include "core/break_even.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "core/status.hpp"

namespace vca::core {
namespace {

struct Length {
  int64_t queries = 0, keys = 0;
};

bool auto_always_runs() {
  const char* value = std::getenv(kAutoVariable);
  if (value == nullptr || *value == '\0') return false;
  if (std::string_view(value) == "always") return true;
  invalid(std::string("the environment variable ") + kAutoVariable + " has an unknown value",
          "\"" + std::string(value) + "\"", "always",
          "unset the variable to let recipe auto decline short calls on a device");
}

Length longest(const Request& request) {
  Length out;
  for (const DeviceSub& sub : request.device_subs) {
    int64_t keys = 0;
    for (int64_t i = 0; i < sub.n_ranges; ++i)
      keys += request.key_ranges[static_cast<size_t>(sub.first_range + i)].len;
    out.queries = std::max(out.queries, sub.q_len);
    out.keys = std::max(out.keys, keys);
  }
  return out;
}

}  // namespace

std::string auto_declines(const Request& request) {
  if (!request.on_device() || request.desc.recipe != VCA_RECIPE_AUTO) return "";
  const Length length = longest(request);
  if (auto_always_runs()) return "";
  if (length.queries == 0 || length.keys == 0) return "";
  for (const BreakEven& row : kBreakEven) {
    if (row.target != request.target || row.head_dim != request.problem.d_pad) continue;
    if (length.queries >= row.min_tokens && length.keys >= row.min_tokens) return "";
    return "recipe auto declines " + std::to_string(length.queries) + " queries and " +
           std::to_string(length.keys) + " keys: below " + std::to_string(row.min_tokens) +
           " of either, BF16 attention is taken to be faster than a whole call (" +
           (row.measured != nullptr ? row.measured : "assumed, not measured") +
           "); a named recipe runs at any length";
  }
  return "";
}

}  // namespace vca::core
