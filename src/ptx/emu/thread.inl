// SPDX-License-Identifier: Apache-2.0
// Emulator bodies of thread.hpp.
#pragma once

#include <bit>

#include "emu/ops.hpp"

namespace vca::ptx {

VCA_DEVICE uint32_t thread_index() { return emu::ops::thread_index(); }
VCA_DEVICE uint32_t cta_index() { return emu::ops::cta_index(); }
VCA_DEVICE uint32_t grid_size() { return emu::ops::grid_size(); }
VCA_DEVICE uint32_t cluster_rank() { return emu::ops::cluster_rank(); }
VCA_DEVICE SmemAddr dynamic_smem() { return {emu::ops::dynamic_smem()}; }

VCA_DEVICE float shfl_sync_bfly(float value, uint32_t lane_mask) {
  return std::bit_cast<float>(emu::ops::shuffle_xor(std::bit_cast<uint32_t>(value), lane_mask));
}
VCA_DEVICE int32_t shfl_sync_bfly(int32_t value, uint32_t lane_mask) {
  return static_cast<int32_t>(emu::ops::shuffle_xor(static_cast<uint32_t>(value), lane_mask));
}
VCA_DEVICE uint32_t shfl_sync_bfly(uint32_t value, uint32_t lane_mask) {
  return emu::ops::shuffle_xor(value, lane_mask);
}
VCA_DEVICE uint32_t shfl_sync_idx(uint32_t value, uint32_t lane) {
  return emu::ops::shuffle_index(value, lane);
}
VCA_DEVICE uint32_t redux_sync_max(uint32_t value) { return emu::ops::reduce_max(value); }
VCA_DEVICE uint32_t warp_uniform(uint32_t value) { return emu::ops::shuffle_first(value); }
VCA_DEVICE bool vote_sync_any(bool predicate) { return emu::ops::vote_any(predicate); }

VCA_DEVICE void bar_sync(uint32_t id, uint32_t threads) {
  emu::ops::named_barrier_sync(id, threads);
}
VCA_DEVICE void bar_arrive(uint32_t id, uint32_t threads) {
  emu::ops::named_barrier_arrive(id, threads);
}

VCA_DEVICE void cta_sync(uint32_t threads) { emu::ops::named_barrier_sync(0, threads); }

// A launch of the emulator is over before the next one begins.
VCA_DEVICE void griddepcontrol_launch_dependents() {}
VCA_DEVICE void griddepcontrol_wait() {}

VCA_DEVICE void barrier_cluster_arrive() { emu::ops::cluster_barrier_arrive(); }
VCA_DEVICE void barrier_cluster_wait() { emu::ops::cluster_barrier_wait(); }

template <int kRegisters>
VCA_DEVICE void setmaxnreg_inc() {
  emu::ops::set_registers(kRegisters, true);
}
template <int kRegisters>
VCA_DEVICE void setmaxnreg_dec() {
  emu::ops::set_registers(kRegisters, false);
}

}  // namespace vca::ptx
