// SPDX-License-Identifier: Apache-2.0
// The group state: what every (sub-problem, kv head) carries from step to step, in a buffer of the
// caller.
//
//   Header | offsets[slots + 1] | slot 0 | slot 1 | ...      slot: SlotHeader |
//   spec::HeadState::serialise()
//
// Slots have a fixed size, computed from shapes and segments. The buffer is in host order and stays
// on this machine; the portable form is the blob of save().
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/policy.hpp"
#include "core/request.hpp"
#include "spec/grouping/grouping.hpp"

namespace vca::core {

class GroupState {
 public:
  static int64_t bytes_needed(const Request& request);
  static void init(const Request& request, void* state, size_t bytes);

  // Makes `state` hold what save() wrote. Nothing is written when the blob is damaged or foreign.
  static void load_blob(const Request& request, void* state, size_t bytes, const uint8_t* blob,
                        size_t blob_bytes);

  // Opens a buffer that init() made. `request` NULL: only the buffer's own consistency is checked.
  // VCA_ERR_STATE when `bytes`, where the caller says how long the buffer is, do not hold the
  // state; nothing beyond them is read.
  GroupState(const Request* request, void* state, size_t bytes = SIZE_MAX);

  int64_t slots() const;
  void reset();

  // VCA_ERR_STATE when a slot is damaged. `head` may be null.
  HeadHistory load(int64_t slot, spec::HeadState* head) const;
  // Keeps the order of `head`.
  void store(int64_t slot, const spec::HeadState& head, const HeadHistory& history);
  // Only the history changes.
  void touch(int64_t slot, const HeadHistory& history);

  std::vector<uint8_t> save() const;

 private:
  struct Header;
  struct SlotHeader;
  Header header() const;
  uint8_t* slot_at(int64_t slot) const;
  int64_t slot_bytes(int64_t slot) const;
  void write_slot(int64_t slot, SlotHeader header, const uint8_t* blob);

  uint8_t* base_;
};

}  // namespace vca::core
