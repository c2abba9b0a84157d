// SPDX-License-Identifier: Apache-2.0
// The kernel body: barriers, then one branch a role. README.md in this folder holds the five
// tables.
#pragma once

#include "kernels/sm90/consumer.cuh"
#include "kernels/sm90/load.cuh"

namespace vca::kernels::sm90 {

template <Config C>
VCA_DEVICE void init_barriers(ptx::SmemAddr smem) {
  for (uint32_t s = 0; s < C.stages; ++s) {
    ptx::mbarrier_init(smem + C.full(s), 1);
    ptx::mbarrier_init(smem + C.empty(s), C.stage_arrivals());
  }
  for (uint32_t b = 0; b < 2; ++b) {
    ptx::mbarrier_init(smem + C.q_full(b), 1);
    ptx::mbarrier_init(smem + C.q_empty(b), Config::kTileArrivals);
    ptx::mbarrier_init(smem + C.mu_full(b), 1);
    ptx::mbarrier_init(smem + C.mu_empty(b), Config::kTileArrivals);
  }
  ptx::fence_mbarrier_init();
}

template <Config C>
VCA_DEVICE void attention_body(const AttentionParams& p) {
  static_assert(C.cluster == 1 || (C.cluster == 2 && !C.real_exp()));
  static_assert(C.smem_bytes() <= kMaxSmemBytes);
  const ptx::SmemAddr smem = ptx::dynamic_smem();
  if (ptx::thread_index() == 0) init_barriers<C>(smem);
  if (ptx::thread_index() < 128u)
    ptx::st_shared_f32(smem + C.exp2_offset() + 4u * ptx::thread_index(),
                       p.exp2_fraction[ptx::thread_index()]);
  if constexpr (C.cluster == 1) {
    ptx::bar_sync(0, Config::kThreads);
  } else {
    ptx::barrier_cluster_arrive();  // the peer's barriers exist
    ptx::barrier_cluster_wait();
  }
  const uint32_t warpgroup = ptx::warp_uniform(ptx::thread_index() / 128u);
  if (warpgroup == 0) {
    ptx::setmaxnreg_dec<Config::kProducerRegisters>();
    if (ptx::thread_index() == 0) Producer<C>(p, smem).run();
  } else {
    ptx::setmaxnreg_inc<Config::kConsumerRegisters>();
    Consumer<C>(p, smem, warpgroup - 1).run();
  }
}

}  // namespace vca::kernels::sm90
