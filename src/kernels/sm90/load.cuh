// SPDX-License-Identifier: Apache-2.0
// Producer: one thread streams Q, K, V and mean tiles into shared memory with 1-D bulk copies.
//
// The blocks of all tiles of a CTA form one stream b = 0, 1, 2, ... Stage b holds K(b) and V(b -
// 1), because scores run one block ahead of values; the first stage has no V, and the last one's K
// only keeps the last iteration from reading stale data.
//
//   stage    0      1          2          3         ...   n
//          K(0)   K(1) V(0)  K(2) V(1)  K(3) V(2)   ...  V(n-1) K(n-1)
//
// In a cluster both CTAs walk through the same blocks: rank 0 loads K for both, rank 1 V, each the
// rest for itself. A stage is free when the consumers of both CTAs have released it, which each
// producer sees on its own barrier; its full barrier expects the bytes of both producers, some of
// which may land before it has said so.
#pragma once

#include <bit>

#include "kernels/common/scheduler.hpp"
#include "kernels/sm90/config.hpp"

namespace vca::kernels::sm90 {

// Position in a ring of kSize buffers.
template <uint32_t kSize>
class Ring {
 public:
  VCA_DEVICE uint32_t index() const { return index_; }
  // Parity of the phase that completes when this use of the buffer has been filled.
  VCA_DEVICE uint32_t parity() const { return parity_; }
  VCA_DEVICE void advance() {
    ++index_;
    if (index_ == kSize) {
      index_ = 0;
      parity_ ^= 1u;
    }
  }

 private:
  uint32_t index_ = 0, parity_ = 0;
};
// Of a power of two both are bit fields of one counter.
template <uint32_t kSize>
requires(std::has_single_bit(kSize)) class Ring<kSize> {
 public:
  VCA_DEVICE uint32_t index() const { return count_ % kSize; }
  VCA_DEVICE uint32_t parity() const { return count_ / kSize % 2u; }
  VCA_DEVICE void advance() { ++count_; }

 private:
  uint32_t count_ = 0;
};

template <Config C>
class Producer {
 public:
  VCA_DEVICE Producer(const AttentionParams& p, ptx::SmemAddr smem) : p_(p), smem_(smem) {}

  VCA_DEVICE void run() {
    TileScheduler<C.cluster> scheduler(p_, ptx::cta_index());
    int64_t v_block = -1;  // of the block before
    for (Tile tile = scheduler.next(); tile.valid; tile = scheduler.next()) {
      load_q(tile);
      for (int j = 0; j < tile.n_blocks; ++j) {
        load_stage(tile.kv_block + j, v_block, valid_columns(tile, j));
        v_block = tile.kv_block + j;
        if (C.means() && j % 8 == 0) load_mu(tile.mu_group + j / 8);
      }
    }
    if (v_block >= 0)
      load_stage(v_block, v_block, 0);  // K once more: its scores are computed and never read
    if constexpr (C.cluster > 1) wait_for_peer();
  }

 private:
  VCA_DEVICE void copy(uint32_t offset, const void* src, uint32_t bytes, uint32_t full) {
    ptx::cp_async_bulk_g2s(smem_ + offset, src, bytes, smem_ + full);
  }

  // What all CTAs of the cluster need, loaded by the one of that rank.
  VCA_DEVICE void copy_to_all(uint32_t offset, const void* src, uint32_t bytes, uint32_t full,
                              uint32_t rank) {
    if constexpr (C.cluster == 1)
      copy(offset, src, bytes, full);
    else if (ptx::cluster_rank() == rank)
      ptx::cp_async_bulk_g2s_multicast(smem_ + offset, src, bytes, smem_ + full,
                                       (1u << C.cluster) - 1u);
  }

  // Read before the wait for the stage, which hides its latency.
  VCA_DEVICE int32_t valid_columns(const Tile& tile, int j) const {
    if constexpr (C.real_exp()) return p_.block_valid[p_.subs[tile.sub].valid_base + j];
    return 0;
  }
  // Waits until the consumers have released a buffer. The phase before a fresh barrier's first
  // counts as complete, so the first round passes at once. v_block -1: no V tile.
  VCA_DEVICE void load_stage(int64_t k_block, int64_t v_block, int32_t valid) {
    const uint32_t s = stage_.index(), full = C.full(s);
    ptx::mbarrier_wait_parity(smem_ + C.empty(s), stage_.parity() ^ 1u);
    if constexpr (C.real_exp())
      ptx::st_shared_f32(smem_ + C.valid_offset(s), ptx::bits_float(static_cast<uint32_t>(valid)));
    ptx::mbarrier_arrive_expect_tx(
        smem_ + full, C.qk_tile_bytes() + 16u + (v_block >= 0 ? C.v_load_bytes() : 0u));
    copy_to_all(C.k_offset(s), p_.k_tiles + k_block * C.qk_tile_bytes(), C.qk_tile_bytes(), full,
                0);
    copy(C.k_scale_offset(s), p_.k_scale + k_block * 4, 16u, full);
    if (v_block >= 0)
      copy_to_all(C.v_offset(s), p_.v_tiles + v_block * C.v_tile_bytes(), C.v_load_bytes(), full,
                  1);
    stage_.advance();
  }
  // The CTA, and with it its barriers, must not end before the peer's last arrival at them.
  VCA_DEVICE void wait_for_peer() {
#pragma unroll 1
    for (uint32_t i = 0; i < C.stages; ++i) {
      ptx::mbarrier_wait_parity(smem_ + C.empty(stage_.index()), stage_.parity() ^ 1u);
      stage_.advance();
    }
  }
  VCA_DEVICE void load_q(const Tile& t) {
    const uint32_t b = q_.index();
    ptx::mbarrier_wait_parity(smem_ + C.q_empty(b), q_.parity() ^ 1u);
    ptx::mbarrier_arrive_expect_tx(smem_ + C.q_full(b), C.qk_tile_bytes());
    copy(C.q_offset(b), p_.q_tiles + t.q_tile * C.qk_tile_bytes(), C.qk_tile_bytes(), C.q_full(b));
    q_.advance();
  }
  VCA_DEVICE void load_mu(int64_t group) {
    const uint32_t b = mu_.index();
    ptx::mbarrier_wait_parity(smem_ + C.mu_empty(b), mu_.parity() ^ 1u);
    ptx::mbarrier_arrive_expect_tx(smem_ + C.mu_full(b), C.mu_tile_bytes());
    copy(C.mu_offset(b), p_.mu_tiles + group * C.mu_tile_bytes(), C.mu_tile_bytes(), C.mu_full(b));
    mu_.advance();
  }

  const AttentionParams& p_;
  ptx::SmemAddr smem_;
  Ring<2> q_, mu_;
  Ring<C.stages> stage_;
};

}  // namespace vca::kernels::sm90
