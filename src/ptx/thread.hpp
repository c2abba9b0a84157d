// SPDX-License-Identifier: Apache-2.0
// Who am I, shuffles, votes, barriers of threads, register budgets.
#pragma once

#include "ptx/types.hpp"

namespace vca::ptx {

VCA_DEVICE uint32_t thread_index();  // %tid.x             (PTX ISA 10.1)
VCA_DEVICE uint32_t cta_index();     // %ctaid.x           (10.6)
VCA_DEVICE uint32_t grid_size();     // %nctaid.x          (10.7)

VCA_DEVICE uint32_t cluster_rank();  // %cluster_ctarank    (10.16)

// Start of the CTA's dynamic shared memory; the launch aligns it to 1024 bytes, as swizzled tiles
// need.
VCA_DEVICE SmemAddr dynamic_smem();

// shfl.sync.bfly.b32 over the full warp (9.7.9.6).
VCA_DEVICE float shfl_sync_bfly(float value, uint32_t lane_mask);
VCA_DEVICE int32_t shfl_sync_bfly(int32_t value, uint32_t lane_mask);
VCA_DEVICE uint32_t shfl_sync_bfly(uint32_t value, uint32_t lane_mask);
// The value of lane 0, known to the compiler to be the same in the whole warp (shfl.sync.idx.b32):
// what is computed from it can live in uniform registers.
VCA_DEVICE uint32_t warp_uniform(uint32_t value);
// The value of `lane` (shfl.sync.idx.b32), which may differ from thread to thread.
VCA_DEVICE uint32_t shfl_sync_idx(uint32_t value, uint32_t lane);
// redux.sync.max.u32 over the full warp (9.7.13.12).
VCA_DEVICE uint32_t redux_sync_max(uint32_t value);
// vote.sync.any.pred over the full warp (9.7.13.9).
VCA_DEVICE bool vote_sync_any(bool predicate);

// bar.sync / bar.arrive (9.7.13.1): named barrier `id` of `threads` threads.
VCA_DEVICE void bar_sync(uint32_t id, uint32_t threads);
VCA_DEVICE void bar_arrive(uint32_t id, uint32_t threads);
// Barrier 0 with all `threads` threads of the CTA, as the compiler's own __syncthreads(): the one
// to take where threads of a warp have gone different ways before it.
VCA_DEVICE void cta_sync(uint32_t threads);

// griddepcontrol.launch_dependents, griddepcontrol.wait (9.7.13.13): the next kernel of the stream
// may take its place on the processors; wait until the kernels before this one are over.
VCA_DEVICE void griddepcontrol_launch_dependents();
VCA_DEVICE void griddepcontrol_wait();

// barrier.cluster.arrive.release, barrier.cluster.wait.acquire (9.7.13.3): all threads of the
// cluster that have not ended. What they did before they arrived is visible after the wait, in
// shared memory of all its CTAs.
VCA_DEVICE void barrier_cluster_arrive();
VCA_DEVICE void barrier_cluster_wait();

// setmaxnreg.{inc,dec}.sync.aligned.u32 (9.7.19.5): executed by every warp of a warpgroup.
template <int kRegisters>
VCA_DEVICE void setmaxnreg_inc();
template <int kRegisters>
VCA_DEVICE void setmaxnreg_dec();

}  // namespace vca::ptx
