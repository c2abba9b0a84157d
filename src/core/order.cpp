// SPDX-License-Identifier: Apache-2.0
// The order of one unit's values: policy, group state, grouping.
#include <algorithm>

#include "core/execute.hpp"

namespace vca::core {
namespace {

using Order = std::vector<std::vector<int64_t>>;

// Masks and lengths may have changed since the order was formed.
bool fits(const Order& order, const Order& valid) {
  if (order.size() != valid.size()) return false;
  for (size_t s = 0; s < order.size(); ++s) {
    if (order[s].size() != valid[s].size()) return false;
    std::vector<int64_t> sorted = order[s];
    std::sort(sorted.begin(), sorted.end());
    if (sorted != valid[s]) return false;
  }
  return true;
}

spec::GroupingInput grouping_input(const spec::Problem& p, const spec::SubProblem& sub,
                                   int64_t kv_head) {
  spec::GroupingInput input;
  input.n_tokens = p.s_kv;
  input.head_dim = p.d;
  input.row = [&p, &sub, kv_head](int64_t token, float* out) {
    p.v.load_row(sub.batch, kv_head, token, out);
  };
  input.valid_by_segment = sub.segments;
  input.grid = p.grid;
  input.segments = sub.segment_info;
  return input;
}

}  // namespace

UnitOrder order_unit(const Request& request, int64_t unit, GroupState* state) {
  const spec::Problem& p = request.problem;
  const spec::SubProblem& sub = p.subs[static_cast<size_t>(unit_sub(request, unit))];
  UnitOrder out;
  out.by_segment = sub.segments;  // token order
  if (!p.recipe->v_smooth() || sub.segments.empty()) return out;
  const spec::GroupingInput input = grouping_input(p, sub, unit_kv_head(request, unit));
  spec::GroupingParams params;
  params.kind = p.grouping;

  if (state == nullptr) {
    if (p.grouping == spec::Grouping::identity) return out;
    spec::GroupingResult result = spec::group_head(input, params, nullptr);
    out = {std::move(result.order_by_segment), result.f_g, result.used, true};
    return out;
  }

  spec::HeadState head;
  HeadHistory history = state->load(unit, &head);
  Action action = decide(request.policy, request.step, history);
  if (action == Action::keep && !fits(head.order_by_segment, sub.segments))
    action = Action::regroup;
  if (action == Action::identity) {
    out.f_g = spec::f_g_of_order(input, params, out.by_segment);
    history.last_call_step = request.step;
    state->touch(unit, history);
    return out;
  }
  if (action == Action::regroup) {
    params.followed = regroups_next(request.policy, request.step);
    spec::GroupingResult result =
        spec::group_head(input, params, history.has_order ? &head : nullptr);
    out = {std::move(result.order_by_segment), result.f_g, result.used, true};
    result.state.step = request.step;
    history.has_order = true;
    history.f_at_grouping = history.f_last = result.f_watched;
    history.last_call_step = request.step;
    state->store(unit, result.state, history);
    return out;
  }
  out.by_segment = std::move(head.order_by_segment);
  out.used = head.used;
  const spec::OrderShares now = spec::shares_of_order(input, params, out.by_segment);
  out.f_g = now.f_g;
  // With two guidance branches a step, the first one is the measure: the order was formed on it.
  if (history.last_call_step != request.step) history.f_last = now.f_watched;
  history.last_call_step = request.step;
  state->touch(unit, history);
  return out;
}

}  // namespace vca::core
