// SPDX-License-Identifier: Apache-2.0
// The two halves of a call on operands in a buffer, for a range of (sub-problem, kv head) units.
#pragma once

#include <cstdint>
#include <vector>

#include "core/group_state.hpp"
#include "core/request.hpp"
#include "core/workspace.hpp"
#include "cpu/backend.hpp"

namespace vca::core {

// What preparing a unit found out, for energy_removed and regrouped.
struct UnitReport {
  float energy_removed = 0.0f;
  bool regrouped = false;
};

// Order of the valid tokens by segment, and what to write back to the state.
struct UnitOrder {
  std::vector<std::vector<int64_t>> by_segment;
  double f_g = 0.0;
  spec::Grouping used = spec::Grouping::identity;
  bool regrouped = false;
};

// Groups one unit under the policy; `state` null: a new order every time. Reads and writes the
// unit's slot.
UnitOrder order_unit(const Request& request, int64_t unit, GroupState* state);

void prepare_units(const Request& request, const Layout& layout, uint8_t* base, int64_t first,
                   int64_t last, GroupState* state, std::vector<UnitReport>& reports);

void attend_units(const Request& request, cpu::Isa isa, const Layout& layout, uint8_t* base,
                  int64_t first, int64_t last);

// The exported functions on a valid request.
void prepare(const Request& request, void* workspace, size_t bytes);
void attend(const Request& request, void* workspace, size_t bytes);
void run(const Request& request, void* workspace, size_t bytes);

}  // namespace vca::core
