// SPDX-License-Identifier: Apache-2.0
// Device bodies of memory.hpp.
#pragma once

namespace vca::ptx {

VCA_DEVICE Words4 ld_global_nc_stream_v4(const void* from) {
  Words4 x;
  asm volatile("ld.global.nc.L1::no_allocate.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "l"(from));
  return x;
}
VCA_DEVICE Words4 ld_global_nc_v4(const void* from) {
  Words4 x;
  asm("ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];"
      : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
      : "l"(from));
  return x;
}
VCA_DEVICE uint32_t ld_global_nc_u16(const void* from) {
  uint16_t x;
  asm("ld.global.nc.u16 %0, [%1];" : "=h"(x) : "l"(from));
  return x;
}
VCA_DEVICE uint32_t ld_global_nc_u8(const void* from) {
  uint32_t x;
  asm("ld.global.nc.u8 %0, [%1];" : "=r"(x) : "l"(from));
  return x;
}
VCA_DEVICE void st_global_v2(void* to, uint32_t w0, uint32_t w1) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w0), "r"(w1) : "memory");
}
VCA_DEVICE void st_global_v4(void* to, const Words4& x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.word[0]), "r"(x.word[1]),
               "r"(x.word[2]), "r"(x.word[3])
               : "memory");
}

VCA_DEVICE Words4 ld_shared_v4(SmemAddr addr) {
  Words4 x;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "r"(addr.value)
               : "memory");
  return x;
}
VCA_DEVICE void st_shared_v4(SmemAddr addr, const Words4& x) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(addr.value), "r"(x.word[0]),
               "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
               : "memory");
}

}  // namespace vca::ptx
