// SPDX-License-Identifier: Apache-2.0
// mbarriers, proxy fences and bulk copies (asynchronous, complete on an mbarrier).
#pragma once

#include "ptx/types.hpp"

namespace vca::ptx {

// mbarrier.init.shared::cta.b64 (PTX ISA 9.7.13.15.9)
VCA_DEVICE void mbarrier_init(SmemAddr bar, uint32_t count);
// fence.mbarrier_init.release.cluster (9.7.13.4): makes initialised barriers visible to the async
// proxy.
VCA_DEVICE void fence_mbarrier_init();
// fence.proxy.async.shared::cta (9.7.13.4): generic-proxy writes before it, async-proxy accesses
// after it.
VCA_DEVICE void fence_proxy_async_shared_cta();

// mbarrier.arrive.shared::cta.b64 (9.7.13.15.13)
VCA_DEVICE void mbarrier_arrive(SmemAddr bar);
// mbarrier.arrive.expect_tx.shared::cta.b64: arrive and expect `bytes` more (9.7.13.15.13)
VCA_DEVICE void mbarrier_arrive_expect_tx(SmemAddr bar, uint32_t bytes);
// Spins on mbarrier.try_wait.parity.shared::cta.b64 until the phase of that parity has completed
// (9.7.13.15.16).
VCA_DEVICE void mbarrier_wait_parity(SmemAddr bar, uint32_t parity);
// mbarrier.test_wait.parity.shared::cta.b64: has that phase completed? If so, what its arrivals
// released and its copies wrote is visible, as after a wait (9.7.13.15.16).
VCA_DEVICE bool mbarrier_test_parity(SmemAddr bar, uint32_t parity);

// cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes (9.7.9.25.4.1): `bytes` and
// both addresses are multiples of 16.
VCA_DEVICE void cp_async_bulk_g2s(SmemAddr dst, const void* src, uint32_t bytes, SmemAddr bar);

// The same with .multicast::cluster: to every CTA of the cluster whose rank's bit of `mask` is set,
// at the same CTA-relative addresses of data and mbarrier; each CTA's mbarrier counts its own
// bytes.
VCA_DEVICE void cp_async_bulk_g2s_multicast(SmemAddr dst, const void* src, uint32_t bytes,
                                            SmemAddr bar, uint16_t mask);

// mapa.shared::cluster.u32 (9.7.9.23): where `addr` lies in the CTA of that rank.
VCA_DEVICE ClusterAddr mapa(SmemAddr addr, uint32_t rank);
// mbarrier.arrive.shared::cluster.b64 (9.7.13.15.13), on a barrier of any CTA of the cluster.
// Release at CTA scope, the default: another CTA's thread that waits for the phase is told of the
// arrival, not promised to see memory that this thread has written. That is enough to hand a buffer
// back: loads from it are complete when their values have been used, and what overwrites it is
// issued by the thread that has seen the phase complete. `.release.cluster` would order
// writes too, at the price of MEMBAR.ALL.GPU (nvcc 13.0).
VCA_DEVICE void mbarrier_arrive_cluster(ClusterAddr bar);

// ld.shared.f32 / st.shared.f32 (9.7.9.8, 9.7.9.11)
VCA_DEVICE float ld_shared_f32(SmemAddr addr);
VCA_DEVICE void st_shared_f32(SmemAddr addr, float value);

}  // namespace vca::ptx
