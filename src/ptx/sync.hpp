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

// ld.shared.f32 / st.shared.f32 (9.7.9.8, 9.7.9.11)
VCA_DEVICE float ld_shared_f32(SmemAddr addr);
VCA_DEVICE void st_shared_f32(SmemAddr addr, float value);

}  // namespace vca::ptx
