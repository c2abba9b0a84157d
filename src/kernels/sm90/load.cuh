// SPDX-License-Identifier: Apache-2.0
// Producer: one thread streams Q, K, V and mean tiles into shared memory with 1-D bulk copies.
//
// Stream order of a CTA: for each tile Q, then K(0), V(0), mu(0), K(1), V(1), ..., and one K more
// at the very end: the consumers compute scores one block ahead, across tile borders.
#pragma once

#include "kernels/common/scheduler.hpp"
#include "kernels/sm90/config.hpp"

namespace vca::kernels::sm90 {

// Position in a ring of buffers: index and the parity of its current use.
template <int kSize>
struct Ring {
  int index = 0;
  uint32_t parity = 0;
  VCA_DEVICE void advance() {
    if (++index == kSize) {
      index = 0;
      parity ^= 1u;
    }
  }
};

template <Config C>
class Producer {
 public:
  VCA_DEVICE Producer(const AttentionParams& p, ptx::SmemAddr smem) : p_(p), smem_(smem) {}

  VCA_DEVICE void run() {
    TileScheduler scheduler(p_, ptx::cta_index());
    for (Tile tile = scheduler.next(); tile.valid; tile = scheduler.next()) {
      load_q(tile);
      for (int j = 0; j < tile.n_blocks; ++j) {
        load_k(tile.kv_block + j);
        load_v(tile.kv_block + j);
        if (j % 8 == 0) load_mu(tile.mu_group + j / 8);
      }
    }
  }

 private:
  // Waits until both consumers have released the buffer, then copies into it. A fresh barrier's
  // "previous" phase has parity 1 and counts as complete, so the first round passes at once.
  VCA_DEVICE void copy(uint32_t offset, const void* src, uint32_t bytes, uint32_t full) {
    ptx::cp_async_bulk_g2s(smem_ + offset, src, bytes, smem_ + full);
  }

  VCA_DEVICE void load_q(const Tile& t) {
    ptx::mbarrier_wait_parity(smem_ + C.q_empty(q_.index), q_.parity ^ 1u);
    ptx::mbarrier_arrive_expect_tx(smem_ + C.q_full(q_.index), C.qk_tile_bytes());
    copy(C.q_offset(q_.index), p_.q_tiles + t.q_tile * C.qk_tile_bytes(), C.qk_tile_bytes(),
         C.q_full(q_.index));
    q_.advance();
  }
  VCA_DEVICE void load_k(int64_t block) {
    ptx::mbarrier_wait_parity(smem_ + C.k_empty(k_.index), k_.parity ^ 1u);
    ptx::mbarrier_arrive_expect_tx(smem_ + C.k_full(k_.index), C.qk_tile_bytes() + 16u);
    copy(C.k_offset(k_.index), p_.k_tiles + block * C.qk_tile_bytes(), C.qk_tile_bytes(),
         C.k_full(k_.index));
    copy(C.k_scale_offset(k_.index), p_.k_scale + block * 4, 16u, C.k_full(k_.index));
    k_.advance();
  }
  VCA_DEVICE void load_v(int64_t block) {
    ptx::mbarrier_wait_parity(smem_ + C.v_empty(v_.index), v_.parity ^ 1u);
    ptx::mbarrier_arrive_expect_tx(smem_ + C.v_full(v_.index), C.v_tile_bytes());
    copy(C.v_offset(v_.index), p_.v_tiles + block * C.v_tile_bytes(), C.v_tile_bytes(),
         C.v_full(v_.index));
    v_.advance();
  }
  VCA_DEVICE void load_mu(int64_t group) {
    ptx::mbarrier_wait_parity(smem_ + C.mu_empty(mu_.index), mu_.parity ^ 1u);
    ptx::mbarrier_arrive_expect_tx(smem_ + C.mu_full(mu_.index), C.mu_tile_bytes());
    copy(C.mu_offset(mu_.index), p_.mu_tiles + group * C.mu_tile_bytes(), C.mu_tile_bytes(),
         C.mu_full(mu_.index));
    mu_.advance();
  }

  const AttentionParams& p_;
  ptx::SmemAddr smem_;
  Ring<2> q_, mu_;
  Ring<C.stages> k_, v_;
};

}  // namespace vca::kernels::sm90
