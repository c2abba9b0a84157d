// SPDX-License-Identifier: Apache-2.0
// Device bodies of thread.hpp.
#pragma once

namespace vca::ptx {

VCA_DEVICE uint32_t thread_index() { return threadIdx.x; }
VCA_DEVICE uint32_t cta_index() { return blockIdx.x; }
VCA_DEVICE uint32_t grid_size() { return gridDim.x; }

VCA_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}

VCA_DEVICE SmemAddr dynamic_smem() {
  extern __shared__ __align__(1024) unsigned char vca_dynamic_smem[];
  return {static_cast<uint32_t>(__cvta_generic_to_shared(vca_dynamic_smem))};
}

VCA_DEVICE float shfl_sync_bfly(float value, uint32_t lane_mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, static_cast<int>(lane_mask));
}
VCA_DEVICE int32_t shfl_sync_bfly(int32_t value, uint32_t lane_mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, static_cast<int>(lane_mask));
}
VCA_DEVICE uint32_t shfl_sync_bfly(uint32_t value, uint32_t lane_mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, value, static_cast<int>(lane_mask));
}
VCA_DEVICE uint32_t shfl_sync_idx(uint32_t value, uint32_t lane) {
  return __shfl_sync(0xFFFFFFFFu, value, static_cast<int>(lane));
}
VCA_DEVICE uint32_t redux_sync_max(uint32_t value) { return __reduce_max_sync(0xFFFFFFFFu, value); }
VCA_DEVICE uint32_t warp_uniform(uint32_t value) { return __shfl_sync(0xFFFFFFFFu, value, 0); }
VCA_DEVICE bool vote_sync_any(bool predicate) { return __any_sync(0xFFFFFFFFu, predicate) != 0; }

VCA_DEVICE void bar_sync(uint32_t id, uint32_t threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
VCA_DEVICE void bar_arrive(uint32_t id, uint32_t threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

VCA_DEVICE void cta_sync(uint32_t) { __syncthreads(); }

VCA_DEVICE void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;");
}
VCA_DEVICE void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

VCA_DEVICE void barrier_cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
VCA_DEVICE void barrier_cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}

template <int kRegisters>
VCA_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
VCA_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace vca::ptx
