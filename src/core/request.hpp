// SPDX-License-Identifier: Apache-2.0
// A validated call: the caller's descriptor with every default filled in.
#pragma once

#include <cstdint>
#include <vector>

#include "core/policy.hpp"
#include "spec/problem.hpp"
#include "spec/target.hpp"
#include "vca/vca.h"

namespace vca::core {

// Which pointers a function follows, and so which must be there.
enum class Use {
  query,    // shapes only
  explain,  // shapes only, and any device or target
  prepare,  // q, k, v
  attend,   // o, lse
  run,      // all
  ref,      // q, k, v; runs the specification, so any target is fine
};

// Room that the group state keeps for one sub-problem. It depends on the shape and the segments
// only, not on masks or lengths, so that one buffer serves every step.
struct StateRoom {
  int64_t tokens = 0;
  int64_t segments = 0;
  int64_t blocks = 0;
};

// How many keys of a sub-problem count, and their blocks: what sizes depend on.
struct KeyCount {
  int64_t valid = 0;
  int64_t blocks = 0;
};

// Batches times heads, and sequences of a ragged batch times heads: each has state of its own, a
// few hundred bytes on the host, also where it has no token.
inline constexpr int64_t kMaxHeads = int64_t{1} << 20;

// Keys [begin, begin + len) of a segment that is not padding, and a sub-problem's share of them. On
// a device these take the place of problem.subs: which keys are valid is known there only.
struct KeyRange {
  int64_t begin = 0, len = 0;
  bool video = true;  // not text
};
struct DeviceSub {
  int64_t batch = 0, q_begin = 0, q_len = 0;
  int64_t first_range = 0, n_ranges = 0;
};

struct Request {
  vca_attn_desc desc;  // zero-extended copy; pointers inside it are the caller's
  spec::Problem problem;
  std::vector<StateRoom> rooms;      // by sub-problem
  std::vector<KeyCount> key_counts;  // by sub-problem
  std::vector<KeyRange> key_ranges;
  std::vector<DeviceSub> device_subs;
  spec::Target target = spec::Target::cpu;
  Policy policy;
  int64_t step = 0;  // read from desc.step where the call follows it
  int threads = 1;

  bool on_device() const { return desc.device != VCA_DEVICE_CPU; }
  bool lse() const { return desc.lse != nullptr; }
  bool exact() const { return problem.recipe->id == spec::RecipeId::exact; }
  // A group state that matters: recipes without V-Smooth keep token order.
  bool uses_state() const { return desc.state != nullptr && problem.recipe->v_smooth(); }
};

// Checks every rule of vca.h and throws Failure at the first one broken. With Use::query and
// Use::explain problem.subs list no tokens and problem.rope has no table of angles: sizes need
// neither, and both grow with lengths that no tensor has to back there. Reads no tensor data
// except kv_lens, key_mask, step, and, with VCA_CHECK_FINITE where the call follows them, q, k and
// v; and of tensors on a device nothing at all.
Request validate(const vca_attn_desc* desc, Use use);

}  // namespace vca::core
