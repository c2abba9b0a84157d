// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/grouping.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "spec/grouping/balanced.hpp"
#include "spec/grouping/cubes.hpp"
#include "spec/grouping/kdtree.hpp"
#include "spec/grouping/objective.hpp"
#include "spec/grouping/pair_exchange.hpp"
#include "spec/grouping/vsmooth.hpp"

namespace vca::spec {
namespace {

using namespace grouping;

constexpr std::pair<Grouping, const char*> kNames[] = {
    {Grouping::identity, "identity"}, {Grouping::cubes, "cubes"},
    {Grouping::kdtree, "kdtree"},     {Grouping::vsmooth, "vsmooth"},
    {Grouping::kmeans, "kmeans"},     {Grouping::balanced, "balanced"},
    {Grouping::automatic, "auto"},
};

struct Candidate {
  Grouping used = Grouping::identity;
  Order order;
  double f_g = 0.0, f_watched = 0.0;
};

Order identity_order(const Tokens& tokens) {
  Order order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

Candidate finished(const Tokens& tokens, Candidate c) {
  c.f_g = removed_energy(tokens, c.order);
  c.f_watched = removed_energy(tokens, c.order, true);
  return c;
}

Candidate cold(const GroupingInput& input, const Tokens& tokens, const GroupingParams& params,
               Grouping kind) {
  Candidate c;
  c.used = kind;
  const int passes = params.followed ? params.followed_pair_passes : params.pair_passes;
  switch (kind) {
    case Grouping::identity:
      c.order = identity_order(tokens);
      break;
    case Grouping::cubes:
      c.order = cubes_order(tokens, input);
      break;
    case Grouping::kmeans:
      c.order = kmeans_order(tokens, params);
      break;
    case Grouping::balanced:
      c.order = balanced_order(tokens, params);
      pair_exchange(tokens, params, passes, &c.order);
      break;
    case Grouping::kdtree:
      c.order = kdtree_order(tokens, params);
      pair_exchange(tokens, params, passes, &c.order);
      break;
    case Grouping::automatic:  // docs/decisions: never worse than the tree by a hundredth of f
      c.used = Grouping::vsmooth;
      [[fallthrough]];
    case Grouping::vsmooth:
      c.order = vsmooth_order(tokens, params);
      pair_exchange(tokens, params, passes, &c.order);
      break;
  }
  return finished(tokens, std::move(c));
}

// The old order in local numbers; false when it is not a permutation of today's valid tokens.
bool old_order(const Tokens& tokens, const HeadState& state, Order* out) {
  if (state.order_by_segment.size() != tokens.segments.size()) return false;
  out->clear();
  std::vector<char> seen(tokens.size(), 0);
  for (size_t s = 0; s < tokens.segments.size(); ++s) {
    const Range& segment = tokens.segments[s];
    if (state.order_by_segment[s].size() != static_cast<size_t>(segment.len)) return false;
    const auto first = tokens.original.begin() + segment.begin, last = first + segment.len;
    for (const int64_t token : state.order_by_segment[s]) {
      const auto at = std::lower_bound(first, last, token);
      if (at == last || *at != token) return false;
      const auto local = static_cast<int32_t>(at - tokens.original.begin());
      if (std::exchange(seen[local], 1) != 0) return false;
      out->push_back(local);
    }
  }
  return true;
}

// The order of last time holds all the exchanges made so far: with a few more passes it beats a new
// start, as long as the values have anything to do with those it was made for.
bool warm_start(const Tokens& tokens, const GroupingParams& params, const HeadState& state,
                Candidate* out) {
  const bool known = state.used == Grouping::kdtree || state.used == Grouping::vsmooth;
  const bool wanted = state.used == params.kind || params.kind == Grouping::automatic;
  Candidate old;
  if (!known || !wanted || !old_order(tokens, state, &old.order)) return false;
  old = finished(tokens, std::move(old));
  if (old.f_watched < params.warm_share * state.f_watched) return false;
  old.used = state.used;
  pair_exchange(tokens, params, params.warm_pair_passes, &old.order);
  *out = finished(tokens, std::move(old));
  return true;
}

GroupingResult to_result(const GroupingInput& input, const Tokens& tokens, const Candidate& c) {
  GroupingResult result;
  result.f_g = c.f_g;
  result.f_watched = c.f_watched;
  result.used = c.used;
  for (const Range& segment : tokens.segments) {
    auto& order = result.order_by_segment.emplace_back();
    for (int32_t i = 0; i < segment.len; ++i)
      order.push_back(tokens.original[c.order[segment.begin + i]]);
  }
  result.state.used = c.used;
  result.state.head_dim = input.head_dim;
  result.state.f_watched = c.f_watched;
  result.state.order_by_segment = result.order_by_segment;
  return result;
}

}  // namespace

const char* to_string(Grouping kind) {
  for (const auto& [value, name] : kNames)
    if (value == kind) return name;
  return "?";
}

bool from_string(std::string_view name, Grouping* out) {
  for (const auto& [value, known] : kNames)
    if (name == known) {
      *out = value;
      return true;
    }
  return false;
}

GroupingResult group_head(const GroupingInput& input, const GroupingParams& params,
                          const HeadState* warm) {
  const Tokens tokens = quantise_tokens(input, params);
  Candidate c;
  if (warm == nullptr || warm->head_dim != input.head_dim || !warm_start(tokens, params, *warm, &c))
    c = cold(input, tokens, params, params.kind);
  return to_result(input, tokens, c);
}

OrderShares shares_of_order(const GroupingInput& input, const GroupingParams& params,
                            const std::vector<std::vector<int64_t>>& order_by_segment) {
  const Tokens tokens = quantise_tokens(input, params);
  HeadState state;
  state.order_by_segment = order_by_segment;
  Order order;
  if (!old_order(tokens, state, &order))
    throw std::invalid_argument("shares_of_order: the order is no permutation of the valid tokens");
  return {removed_energy(tokens, order), removed_energy(tokens, order, true)};
}

double f_g_of_order(const GroupingInput& input, const GroupingParams& params,
                    const std::vector<std::vector<int64_t>>& order_by_segment) {
  return shares_of_order(input, params, order_by_segment).f_g;
}

}  // namespace vca::spec
