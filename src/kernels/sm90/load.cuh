// SPDX-License-Identifier: Apache-2.0
// Producer: one thread streams Q, K, V and mean tiles into shared memory with 1-D bulk copies.
//
// The blocks of all tiles of a CTA form one stream b = 0, 1, 2, ... Stage b holds K(b) and V(b -
// 1), because scores run one block ahead of values; the first stage has no V, and the last one's K
// only keeps the last iteration from reading stale data.
//
//   stage    0      1          2          3         ...   n
//          K(0)   K(1) V(0)  K(2) V(1)  K(3) V(2)   ...  V(n-1) K(n-1)
#pragma once

#include "kernels/common/scheduler.hpp"
#include "kernels/sm90/config.hpp"

namespace vca::kernels::sm90 {

// Position in a ring of kSize (a power of two) buffers.
template <uint32_t kSize>
struct Ring {
  uint32_t count = 0;
  VCA_DEVICE uint32_t index() const { return count % kSize; }
  // Parity of the phase that completes when this use of the buffer has been filled.
  VCA_DEVICE uint32_t parity() const { return count / kSize % 2u; }
  VCA_DEVICE void advance() { ++count; }
};

template <Config C>
class Producer {
 public:
  VCA_DEVICE Producer(const AttentionParams& p, ptx::SmemAddr smem) : p_(p), smem_(smem) {}

  VCA_DEVICE void run() {
    TileScheduler scheduler(p_, ptx::cta_index());
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
  }

 private:
  VCA_DEVICE void copy(uint32_t offset, const void* src, uint32_t bytes, uint32_t full) {
    ptx::cp_async_bulk_g2s(smem_ + offset, src, bytes, smem_ + full);
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
    copy(C.k_offset(s), p_.k_tiles + k_block * C.qk_tile_bytes(), C.qk_tile_bytes(), full);
    copy(C.k_scale_offset(s), p_.k_scale + k_block * 4, 16u, full);
    if (v_block >= 0)
      copy(C.v_offset(s), p_.v_tiles + v_block * C.v_tile_bytes(), C.v_load_bytes(), full);
    stage_.advance();
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
  Ring<Config::kStages> stage_;
};

}  // namespace vca::kernels::sm90
