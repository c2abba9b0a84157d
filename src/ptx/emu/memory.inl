// SPDX-License-Identifier: Apache-2.0
// Emulator bodies of memory.hpp. Global memory is plain host memory.
#pragma once

#include <cstring>

#include "emu/ops.hpp"

namespace vca::ptx {
namespace detail {

template <class T>
T load_global(const void* from) {
  emu::ops::check_global("ld.global", from, sizeof(T));
  T x;
  std::memcpy(&x, from, sizeof x);
  return x;
}
template <class T>
void store_global(void* to, const T& x) {
  emu::ops::check_global("st.global", to, sizeof(T));
  std::memcpy(to, &x, sizeof x);
}

}  // namespace detail

VCA_DEVICE Words4 ld_global_nc_stream_v4(const void* from) {
  return detail::load_global<Words4>(from);
}
VCA_DEVICE Words4 ld_global_nc_v4(const void* from) { return detail::load_global<Words4>(from); }
VCA_DEVICE uint32_t ld_global_nc_u16(const void* from) {
  return detail::load_global<uint16_t>(from);
}
VCA_DEVICE uint32_t ld_global_nc_u8(const void* from) { return detail::load_global<uint8_t>(from); }
VCA_DEVICE void st_global_v2(void* to, uint32_t w0, uint32_t w1) {
  struct {
    uint32_t word[2];
  } x = {{w0, w1}};
  detail::store_global(to, x);
}
VCA_DEVICE void st_global_v4(void* to, const Words4& x) { detail::store_global(to, x); }

VCA_DEVICE Words4 ld_shared_v4(SmemAddr addr) {
  Words4 x;
  emu::ops::load_shared_v4(addr.value, x.word);
  return x;
}
VCA_DEVICE void st_shared_v4(SmemAddr addr, const Words4& x) {
  emu::ops::store_shared_v4(addr.value, x.word);
}

}  // namespace vca::ptx
