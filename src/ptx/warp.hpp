// SPDX-License-Identifier: Apache-2.0
// What the 32 threads of a warp do together, and memory through an ordinary pointer. For kernels
// whose shared memory only ordinary loads and stores touch: the emulator runs the accesses but
// cannot watch them.
#pragma once

#include "ptx/types.hpp"

namespace vca::ptx {

struct alignas(16) Word4 {
  uint32_t x, y, z, w;
};

// Start of the CTA's dynamic shared memory.
VCA_DEVICE unsigned char* dynamic_smem_pointer();

// bar.warp.sync over the full warp: also orders the lanes' accesses to memory (9.7.13.2).
VCA_DEVICE void bar_warp_sync();
VCA_DEVICE uint32_t vote_sync_ballot(bool predicate);  // vote.sync.ballot (9.7.13.9)
VCA_DEVICE uint32_t match_sync_any(uint32_t value);    // match.any.sync (9.7.13.10)
VCA_DEVICE int32_t redux_sync_add(int32_t value);      // redux.sync.add.s32 (9.7.13.12)
VCA_DEVICE int32_t redux_sync_min(int32_t value);
VCA_DEVICE int32_t redux_sync_max(int32_t value);

// mma.sync.m16n8k32.row.col.s32.s8.s8.s32 (9.7.14.5), d += a.b, exact. Lane l, g = l/4, t = l mod
// 4:
//   a[0] row g, k 4t..4t+3; a[1] row g+8; a[2], a[3] the same with k + 16
//   b[0] column g, k 4t..4t+3; b[1] the same with k + 16
//   d[0], d[1] row g, columns 2t, 2t+1; d[2], d[3] row g+8
VCA_DEVICE void mma_m16n8k32_s32_s8_s8(int32_t (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                       uint32_t a3, uint32_t b0, uint32_t b1);

// c + the dot product of four signed bytes (dp4a.s32.s32, 9.7.1.23).
VCA_DEVICE int32_t dp4a(uint32_t a, uint32_t b, int32_t c);

// red.shared.add.s32, atom.shared.add.s32 (the value before), red.shared.min.u64
// and .max.s32, .or.b32 (9.7.13.5, 9.7.13.6): of a CTA's own shared memory.
VCA_DEVICE void red_shared_add(int32_t* at, int32_t value);
VCA_DEVICE int32_t atom_shared_add(int32_t* at, int32_t value);
VCA_DEVICE void red_shared_min(uint64_t* at, uint64_t value);
VCA_DEVICE void red_shared_max(int32_t* at, int32_t value);
VCA_DEVICE void red_shared_or(uint32_t* at, uint32_t value);

// cp.async.cg.shared.global of 16 bytes (9.7.9.25.3.1), to shared memory past the L1; both
// addresses are multiples of 16. There for the thread itself after cp.async.wait_all
// (9.7.9.25.3.3), for others after a barrier behind that.
VCA_DEVICE void cp_async_g2s_16(void* to, const void* from);
VCA_DEVICE void cp_async_wait_all();

}  // namespace vca::ptx
