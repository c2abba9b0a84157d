// SPDX-License-Identifier: Apache-2.0
// Calls of which only sizes are asked.
#pragma once

#include <cstdint>

#include "kernels/prep/workspace.hpp"

namespace vca::tests {

struct Shape {
  int64_t b, h_q, h_kv, s_q, s_kv, d;
};

// What the formulas need of a call: one segment of keys, tensors without data.
inline kernels::prep::PrepParams request_of(const Shape& s, const char* recipe,
                                            spec::Grouping kind) {
  kernels::prep::PrepParams r;
  r.q.shape = {s.b, s.h_q, s.s_q, s.d};
  r.k.shape = r.v.shape = {s.b, s.h_kv, s.s_kv, s.d};
  r.recipe = spec::find_recipe(recipe);
  r.segments = {{0, s.s_kv}};
  for (int64_t b = 0; b < s.b; ++b) r.subs.push_back({b, 0, s.s_q, 0, 1});
  r.grouping.kind = kind;
  r.grouping.video = {true};
  return r;
}

}  // namespace vca::tests
