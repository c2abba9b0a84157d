// SPDX-License-Identifier: Apache-2.0
// Persistent static schedule, head-major: all query tiles of a head run together, so that its K and
// V stay in L2.
#pragma once

#include "kernels/common/params.hpp"
#include "ptx/ptx.hpp"

namespace vca::kernels {

struct Tile {
  int64_t q_tile;    // in the Q operand
  int64_t kv_block;  // first block in the K and V operands
  int64_t mu_group;
  int32_t n_blocks;
  int32_t sub, head, row0;  // row0: first query row of the tile within the sub-problem
  bool valid;
};

class TileScheduler {
 public:
  VCA_DEVICE TileScheduler(const AttentionParams& p, uint32_t first) : p_(p), next_(first) {}

  // The CTA's next tile with something to do; valid = false after the last.
  VCA_DEVICE Tile next() {
    const int64_t total = int64_t{p_.n_subs} * p_.h_q * p_.max_q_tiles;
    for (; next_ < total; next_ += ptx::grid_size()) {
      const int64_t head_index = next_ / p_.max_q_tiles;
      const auto q = static_cast<int32_t>(next_ - head_index * p_.max_q_tiles);
      const auto sub = static_cast<int32_t>(head_index / p_.h_q);
      const auto head = static_cast<int32_t>(head_index - int64_t{sub} * p_.h_q);
      const SubInfo& s = p_.subs[sub];
      if (q >= s.n_q_tiles || s.n_blocks == 0) continue;
      const int64_t kv_head = head / (p_.h_q / p_.h_kv);
      next_ += ptx::grid_size();
      return {s.q_tile_base + int64_t{head} * s.n_q_tiles + q,
              s.kv_block_base + kv_head * s.kv_block_stride,
              s.mu_group_base + kv_head * s.mu_group_stride,
              s.n_blocks,
              sub,
              head,
              q * 128,
              true};
    }
    return {0, 0, 0, 0, 0, 0, 0, false};
  }

 private:
  const AttentionParams& p_;
  int64_t next_;
};

}  // namespace vca::kernels
