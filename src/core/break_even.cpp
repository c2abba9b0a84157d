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

const char* text_of(Ordering ordering) {
  if (ordering == Ordering::token) return "token order";
  return ordering == Ordering::kept ? "a group state" : "a new order every call";
}

}  // namespace

Ordering ordering_of(const Request& request) {
  if (!request.problem.recipe->v_smooth() || request.problem.grouping == spec::Grouping::identity)
    return Ordering::token;
  return request.uses_state() ? Ordering::kept : Ordering::anew;
}

const BreakEven* break_even_of(const Request& request) {
  const Ordering ordering = ordering_of(request);
  for (const BreakEven& row : kBreakEven)
    if (row.target == request.target && row.head_dim == request.problem.d_pad &&
        row.ordering == ordering)
      return &row;
  return nullptr;
}

std::string auto_declines(const Request& request) {
  if (!request.on_device() || request.desc.recipe != VCA_RECIPE_AUTO) return "";
  const Length length = longest(request);
  if (auto_always_runs()) return "";
  if (length.queries == 0 || length.keys == 0) return "";
  const BreakEven* row = break_even_of(request);
  if (row == nullptr || std::min(length.queries, length.keys) >= row->min_tokens) return "";
  return "recipe auto declines " + std::to_string(length.queries) + " queries and " +
         std::to_string(length.keys) + " keys: below " + std::to_string(row->min_tokens) +
         " of either, BF16 attention is taken to be faster than a whole call with " +
         text_of(row->ordering) + " (" +
         (row->measured != nullptr ? row->measured : "assumed, not measured") +
         "); a named recipe runs at any length";
}

}  // namespace vca::core
