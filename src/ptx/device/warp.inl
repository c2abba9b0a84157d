// SPDX-License-Identifier: Apache-2.0
// Device bodies of warp.hpp.
#pragma once

namespace vca::ptx {

VCA_DEVICE unsigned char* dynamic_smem_pointer() {
  extern __shared__ __align__(1024) unsigned char vca_dynamic_smem[];
  return vca_dynamic_smem;
}

VCA_DEVICE void bar_warp_sync() { __syncwarp(); }
VCA_DEVICE uint32_t vote_sync_ballot(bool predicate) {
  return __ballot_sync(0xFFFFFFFFu, predicate);
}
VCA_DEVICE uint32_t match_sync_any(uint32_t value) { return __match_any_sync(0xFFFFFFFFu, value); }
VCA_DEVICE int32_t redux_sync_add(int32_t value) { return __reduce_add_sync(0xFFFFFFFFu, value); }
VCA_DEVICE int32_t redux_sync_min(int32_t value) { return __reduce_min_sync(0xFFFFFFFFu, value); }
VCA_DEVICE int32_t redux_sync_max(int32_t value) { return __reduce_max_sync(0xFFFFFFFFu, value); }

VCA_DEVICE void mma_m16n8k32_s32_s8_s8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                       uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

VCA_DEVICE int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
  return __dp4a(static_cast<int32_t>(a), static_cast<int32_t>(b), c);
}
VCA_DEVICE void red_shared_add(int32_t* at, int32_t value) { atomicAdd(at, value); }
VCA_DEVICE int32_t atom_shared_add(int32_t* at, int32_t value) { return atomicAdd(at, value); }
VCA_DEVICE void red_shared_min(uint64_t* at, uint64_t value) {
  atomicMin(reinterpret_cast<unsigned long long*>(at), value);
}
VCA_DEVICE void red_shared_max(int32_t* at, int32_t value) { atomicMax(at, value); }
VCA_DEVICE void red_shared_or(uint32_t* at, uint32_t value) { atomicOr(at, value); }

VCA_DEVICE void cp_async_g2s_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
}
VCA_DEVICE void cp_async_wait_all() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace vca::ptx
