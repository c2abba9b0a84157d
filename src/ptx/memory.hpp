// SPDX-License-Identifier: Apache-2.0
// Vector accesses to global and shared memory. Addresses are multiples of the access size.
#pragma once

#include "ptx/types.hpp"

namespace vca::ptx {

struct alignas(16) Words4 {
  uint32_t word[4];
};

// Global memory that no thread writes during the kernel (PTX ISA 9.7.9.9, ld.global.nc).
// `stream`: read once, so without a place in L1.
VCA_DEVICE Words4 ld_global_nc_stream_v4(const void* from);
VCA_DEVICE Words4 ld_global_nc_v4(const void* from);
VCA_DEVICE uint32_t ld_global_nc_u16(const void* from);
VCA_DEVICE uint32_t ld_global_nc_u8(const void* from);
// st.global.v2.b32, st.global.v4.b32 (9.7.9.11)
VCA_DEVICE void st_global_v2(void* to, uint32_t w0, uint32_t w1);
VCA_DEVICE void st_global_v4(void* to, const Words4& x);

// ld.shared.v4.b32 (9.7.9.8), st.shared.v4.b32 (9.7.9.11)
VCA_DEVICE Words4 ld_shared_v4(SmemAddr addr);
VCA_DEVICE void st_shared_v4(SmemAddr addr, const Words4& x);

}  // namespace vca::ptx
