// SPDX-License-Identifier: Apache-2.0
// When a head is regrouped over the denoising steps (docs/numerics.md, section C). Pure: the same
// answer on every backend, from numbers that are known before the call touches V.
#pragma once

#include <algorithm>
#include <cstdint>

#include "vca/vca.h"

namespace vca::core {

struct Policy {
  int32_t steps = 1;
  int32_t window = 1;   // steps [0, window) regroup; 0 here means none
  int32_t refresh = 1;  // steps between regroupings inside the window
  int32_t after = VCA_AFTER_REFRESH_ON_DECAY;
  double decay = 0.9;
  bool share_cfg = false;
};

// max(1, ceil(steps / 4)).
constexpr int32_t default_window(int32_t steps) {
  return std::max<int32_t>(1, steps / 4 + (steps % 4 != 0 ? 1 : 0));
}

// What the group state knows about one head.
struct HeadHistory {
  bool has_order = false;
  int64_t last_call_step = -1;  // step of the last call that used this head
  double f_at_grouping = 0.0;   // deciding f when the order was formed
  double f_last = 0.0;          // deciding f of that order on the values of the last step
};

// Whether the next step groups again what is grouped in this one: a cold start then leaves some
// pair passes to it.
constexpr bool regroups_next(const Policy& policy, int64_t step) {
  return step + 1 < policy.window && (step + 1) % policy.refresh == 0;
}

enum class Action { regroup, keep, identity };

constexpr Action decide(const Policy& policy, int64_t step, const HeadHistory& head) {
  const bool inside = step < policy.window;
  if (!inside && policy.after == VCA_AFTER_IDENTITY) return Action::identity;
  if (!head.has_order) return Action::regroup;
  // The other guidance branch of a step that has been served.
  if (policy.share_cfg && head.last_call_step == step) return Action::keep;
  if (inside) return step % policy.refresh == 0 ? Action::regroup : Action::keep;
  if (policy.after == VCA_AFTER_REFRESH_ON_DECAY && head.f_last < policy.decay * head.f_at_grouping)
    return Action::regroup;
  return Action::keep;
}

}  // namespace vca::core
