// SPDX-License-Identifier: Apache-2.0
// Emulator bodies of sync.hpp.
#pragma once

#include <bit>

#include "emu/ops.hpp"

namespace vca::ptx {

VCA_DEVICE void mbarrier_init(SmemAddr bar, uint32_t count) {
  emu::ops::mbarrier_init(bar.value, count);
}
VCA_DEVICE void fence_mbarrier_init() { emu::ops::fence_mbarrier_init(); }
VCA_DEVICE void fence_proxy_async_shared_cta() { emu::ops::fence_proxy_async(); }

VCA_DEVICE void mbarrier_arrive(SmemAddr bar) { emu::ops::mbarrier_arrive(bar.value); }
VCA_DEVICE void mbarrier_arrive_expect_tx(SmemAddr bar, uint32_t bytes) {
  emu::ops::mbarrier_arrive_expect_tx(bar.value, bytes);
}
VCA_DEVICE void mbarrier_wait_parity(SmemAddr bar, uint32_t parity) {
  emu::ops::mbarrier_wait_parity(bar.value, parity);
}
VCA_DEVICE bool mbarrier_test_parity(SmemAddr bar, uint32_t parity) {
  return emu::ops::mbarrier_test_parity(bar.value, parity);
}

VCA_DEVICE void cp_async_bulk_g2s(SmemAddr dst, const void* src, uint32_t bytes, SmemAddr bar) {
  emu::ops::bulk_copy(dst.value, src, bytes, bar.value);
}

VCA_DEVICE void cp_async_bulk_g2s_multicast(SmemAddr dst, const void* src, uint32_t bytes,
                                            SmemAddr bar, uint16_t mask) {
  emu::ops::bulk_copy_multicast(dst.value, src, bytes, bar.value, mask);
}
VCA_DEVICE ClusterAddr mapa(SmemAddr addr, uint32_t rank) {
  return {emu::ops::map_address(addr.value, rank)};
}
VCA_DEVICE void mbarrier_arrive_cluster(ClusterAddr bar) {
  emu::ops::mbarrier_arrive_cluster(bar.value);
}

VCA_DEVICE float ld_shared_f32(SmemAddr addr) {
  return std::bit_cast<float>(emu::ops::load_shared(addr.value));
}
VCA_DEVICE void st_shared_f32(SmemAddr addr, float value) {
  emu::ops::store_shared(addr.value, std::bit_cast<uint32_t>(value));
}

}  // namespace vca::ptx
