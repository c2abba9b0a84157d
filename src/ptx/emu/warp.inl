// SPDX-License-Identifier: Apache-2.0
// Emulator bodies of warp.hpp.
#pragma once

#include "emu/ops.hpp"

namespace vca::ptx {

VCA_DEVICE unsigned char* dynamic_smem_pointer() { return emu::ops::plain_smem(); }

VCA_DEVICE void bar_warp_sync() { emu::ops::ballot(true); }
VCA_DEVICE uint32_t vote_sync_ballot(bool predicate) { return emu::ops::ballot(predicate); }
VCA_DEVICE uint32_t match_sync_any(uint32_t value) { return emu::ops::match_any(value); }
VCA_DEVICE int32_t redux_sync_add(int32_t value) { return emu::ops::reduce_add(value); }
VCA_DEVICE int32_t redux_sync_min(int32_t value) { return emu::ops::reduce_min(value); }
VCA_DEVICE int32_t redux_sync_max(int32_t value) { return emu::ops::reduce_max(value); }

VCA_DEVICE void mma_m16n8k32_s32_s8_s8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                       uint32_t a3, uint32_t b0, uint32_t b1) {
  const uint32_t a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1};
  emu::ops::mma_m16n8k32_s8(d, a, b);
}

VCA_DEVICE int32_t dp4a(uint32_t a, uint32_t b, int32_t c) {
  for (int i = 0; i < 4; ++i)
    c += int32_t{static_cast<int8_t>(a >> (8 * i))} * static_cast<int8_t>(b >> (8 * i));
  return c;
}
VCA_DEVICE void red_shared_add(int32_t* at, int32_t value) { *at += value; }
VCA_DEVICE int32_t atom_shared_add(int32_t* at, int32_t value) {
  const int32_t before = *at;
  *at += value;
  return before;
}
VCA_DEVICE void red_shared_min(uint64_t* at, uint64_t value) { *at = value < *at ? value : *at; }
VCA_DEVICE void red_shared_max(int32_t* at, int32_t value) { *at = value > *at ? value : *at; }
VCA_DEVICE void red_shared_or(uint32_t* at, uint32_t value) { *at |= value; }

VCA_DEVICE void cp_async_g2s_16(void* to, const void* from) { emu::ops::copy_async_16(to, from); }
VCA_DEVICE void cp_async_wait_all() { emu::ops::copy_async_wait(); }

}  // namespace vca::ptx
