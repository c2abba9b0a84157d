// SPDX-License-Identifier: Apache-2.0
// Persistent static schedule, head-major: all query tiles of a head run together, so that its K and
// V stay in L2. The CTAs of a cluster get neighbouring tiles of one head: the same blocks of keys.
#pragma once

#include <algorithm>

#include "kernels/common/params.hpp"
#include "ptx/ptx.hpp"

namespace vca::kernels {

struct Tile {
  int64_t q_tile;    // in the Q operand; of a dummy (below): the head's last
  int64_t kv_block;  // first block in the K and V operands
  int64_t mu_group;
  int32_t n_blocks;
  // row0: first query row of the tile within the sub-problem. A dummy, the partner of an odd head's
  // last tile, begins behind the last row: it is computed and nothing of it stored.
  int32_t sub, head, row0;
  bool valid;
};

// Tiles are numbered through all heads, of which each has as many numbers as the longest, rounded
// up to a multiple of kCluster; CTA i takes every number i + n * grid. The grid is a multiple of
// kCluster too, so that the CTAs of a cluster are always at neighbouring numbers of one head.
template <uint32_t kCluster>
class TileScheduler {
 public:
  VCA_DEVICE TileScheduler(const AttentionParams& p, uint32_t cta) : p_(p), next_(cta) {}

  // CTAs to launch, one a multiprocessor at most: 0 where there is nothing to do.
  static constexpr uint32_t grid(const AttentionParams& p, int multiprocessors) {
    constexpr auto kSize = static_cast<int>(kCluster);
    const int64_t at_once = std::max(multiprocessors / kSize * kSize, kSize);
    return static_cast<uint32_t>(std::min(total(p), at_once));
  }

  // The CTA's next tile with something to do; valid = false after the last.
  VCA_DEVICE Tile next() {
    const int64_t end = total(p_);
    const int32_t per_head = numbers_of_head(p_);
    for (; next_ < end; next_ += ptx::grid_size()) {
      const int64_t head_index = next_ / per_head;
      const auto q = static_cast<int32_t>(next_ - head_index * per_head);
      const auto sub = static_cast<int32_t>(head_index / p_.h_q);
      const auto head = static_cast<int32_t>(head_index - int64_t{sub} * p_.h_q);
      const SubInfo& s = p_.subs[sub];
      const int32_t first = q - q % static_cast<int32_t>(kCluster);  // of the cluster
      if (first >= s.n_q_tiles || s.n_blocks == 0) continue;
      const int32_t loaded = kCluster == 1 || q < s.n_q_tiles ? q : s.n_q_tiles - 1;
      const int64_t kv_head = head / (p_.h_q / p_.h_kv);
      next_ += ptx::grid_size();
      return {s.q_tile_base + int64_t{head} * s.n_q_tiles + loaded,
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
  static constexpr int32_t numbers_of_head(const AttentionParams& p) {
    constexpr auto kSize = static_cast<int32_t>(kCluster);
    return (p.max_q_tiles + kSize - 1) / kSize * kSize;
  }
  static constexpr int64_t total(const AttentionParams& p) {
    return int64_t{p.n_subs} * p.h_q * numbers_of_head(p);
  }

  const AttentionParams& p_;
  int64_t next_;
};

}  // namespace vca::kernels
