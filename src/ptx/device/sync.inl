// SPDX-License-Identifier: Apache-2.0
// Device bodies of sync.hpp.
#pragma once

namespace vca::ptx {

VCA_DEVICE void mbarrier_init(SmemAddr bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar.value), "r"(count) : "memory");
}
VCA_DEVICE void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
VCA_DEVICE void fence_proxy_async_shared_cta() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

VCA_DEVICE void mbarrier_arrive(SmemAddr bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar.value) : "memory");
}
VCA_DEVICE void mbarrier_arrive_expect_tx(SmemAddr bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar.value), "r"(bytes)
               : "memory");
}
VCA_DEVICE void mbarrier_wait_parity(SmemAddr bar, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}" ::"r"(bar.value),
      "r"(parity)
      : "memory");
}

VCA_DEVICE bool mbarrier_test_parity(SmemAddr bar, uint32_t parity) {
  uint32_t complete;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.b32 %0, 1, 0, done;\n"
      "}"
      : "=r"(complete)
      : "r"(bar.value), "r"(parity)
      : "memory");
  return complete != 0;
}

VCA_DEVICE void cp_async_bulk_g2s(SmemAddr dst, const void* src, uint32_t bytes, SmemAddr bar) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(dst.value),
      "l"(src), "r"(bytes), "r"(bar.value)
      : "memory");
}

VCA_DEVICE void cp_async_bulk_g2s_multicast(SmemAddr dst, const void* src, uint32_t bytes,
                                            SmemAddr bar, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], "
      "[%1], %2, [%3], %4;" ::"r"(dst.value),
      "l"(src), "r"(bytes), "r"(bar.value), "h"(mask)
      : "memory");
}
VCA_DEVICE ClusterAddr mapa(SmemAddr addr, uint32_t rank) {
  ClusterAddr mapped;
  // volatile: in its place, where it costs two instructions. Hoisted it would live in a register.
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
               : "=r"(mapped.value)
               : "r"(addr.value), "r"(rank));
  return mapped;
}
VCA_DEVICE void mbarrier_arrive_cluster(ClusterAddr bar) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(bar.value) : "memory");
}

VCA_DEVICE float ld_shared_f32(SmemAddr addr) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(addr.value) : "memory");
  return value;
}
VCA_DEVICE void st_shared_f32(SmemAddr addr, float value) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(addr.value), "f"(value) : "memory");
}

}  // namespace vca::ptx
