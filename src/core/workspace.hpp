// SPDX-License-Identifier: Apache-2.0
// The workspace: one flat buffer that holds the operands of every (sub-problem, head),
// self-contained, so that attention can run after q, k and v are gone. Formula:
// docs/architecture.md.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/request.hpp"
#include "core/tensor_check.hpp"
#include "spec/operands.hpp"

namespace vca::core {

inline constexpr int64_t kWorkspaceAlign = 64;

struct WorkspaceHeader {
  uint64_t magic;
  int32_t spec_version;
  int32_t recipe;
  uint64_t problem_hash;
  uint64_t bytes;
  uint8_t zeros[32];
};
static_assert(sizeof(WorkspaceHeader) == 64);

// Of everything that prepared operands depend on, except the tensor data.
uint64_t problem_hash(const Request& request);

// Where the operands of every sub-problem and head lie, for all recipes but `exact`.
class Layout {
 public:
  // Units [first, last) of the request's (sub-problem, kv head) list, heads innermost.
  Layout(const Request& request, int64_t first_unit, int64_t last_unit);

  int64_t bytes() const { return bytes_; }
  int64_t unit_bytes(int64_t unit) const;
  spec::KvOperands kv(uint8_t* base, int64_t unit) const;
  // q_head reads the unit's kv head.
  spec::QOperands q(uint8_t* base, int64_t unit, int64_t q_head) const;

 private:
  struct Sub {
    spec::KvSizes kv;
    spec::QSizes q;
    int64_t kv_bytes, q_bytes, n_valid, n_blocks, rows;
  };
  const Sub& sub_of(int64_t unit) const;

  const Request& request_;
  int64_t first_unit_, first_sub_;
  std::vector<Sub> subs_;         // from first_sub_
  std::vector<int64_t> offsets_;  // by unit
  int64_t bytes_ = 0;
};

// Units of a request, and what a unit is.
int64_t unit_count(const Request& request);
// With a GQA group of `h_q / h_kv` query heads each.
inline int64_t unit_sub(const Request& r, int64_t unit) { return unit / r.problem.h_kv; }
inline int64_t unit_kv_head(const Request& r, int64_t unit) { return unit % r.problem.h_kv; }

// The whole request, header included.
int64_t workspace_bytes(const Request& request);

// Writes, and checks, the header at the start of a workspace.
void mark_prepared(const Request& request, void* workspace);
void mark_unprepared(void* workspace);
void require_prepared(const Request& request, const void* workspace, size_t bytes);
void require_room(const Request& request, const void* workspace, size_t bytes);
// `need` bytes at a multiple of `align`; `advice` says how to get such an address.
void require_room(int64_t need, int64_t align, const char* advice, const void* workspace,
                  size_t bytes);
// Refuses a workspace over what prepare reads or writes beside q, k and v: lengths, masks, tables,
// step, a group state of `state_bytes`, reports.
void require_apart_from_arrays(const Request& request, const Region& workspace,
                               int64_t state_bytes);

}  // namespace vca::core
