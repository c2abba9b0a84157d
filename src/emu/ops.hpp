// SPDX-License-Identifier: Apache-2.0
// What the emulator bodies of src/ptx call. Not inline: an opaque call is what keeps a compiler
// from holding registers that a wgmma owns in its own copies.
#pragma once

#include <cstdint>

#include "emu/mma_exec.hpp"
#include "emu/wgmma.hpp"

namespace vca::emu::ops {

uint32_t thread_index();
uint32_t cta_index();
uint32_t grid_size();
uint32_t dynamic_smem();
uint32_t cluster_rank();

uint32_t shuffle_xor(uint32_t value, uint32_t lane_mask);
uint32_t shuffle_first(uint32_t value);
uint32_t shuffle_index(uint32_t value, uint32_t lane);
uint32_t reduce_max(uint32_t value);
bool vote_any(bool predicate);
uint32_t ballot(bool predicate);
uint32_t match_any(uint32_t value);
int32_t reduce_add(int32_t value);
int32_t reduce_min(int32_t value);
int32_t reduce_max(int32_t value);
// mma.sync.m16n8k32 of s8: d += a.b.
void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]);
void named_barrier_sync(uint32_t id, uint32_t threads);
void named_barrier_arrive(uint32_t id, uint32_t threads);
void set_registers(uint32_t registers, bool increase);
void cluster_barrier_arrive();
void cluster_barrier_wait();

void mbarrier_init(uint32_t address, uint32_t count);
void fence_mbarrier_init();
void fence_proxy_async();
void mbarrier_arrive(uint32_t address);
void mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes);
void mbarrier_wait_parity(uint32_t address, uint32_t parity);
bool mbarrier_test_parity(uint32_t address, uint32_t parity);
void bulk_copy(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier);
void bulk_copy_multicast(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier,
                         uint32_t mask);
// An address of the own shared memory, in the shared memory of the CTA with that rank.
uint32_t map_address(uint32_t address, uint32_t rank);
void mbarrier_arrive_cluster(uint32_t cluster_address);
uint32_t load_shared(uint32_t address);
// The CTA's window as ordinary memory: accesses through it are run, not watched.
unsigned char* plain_smem();
// 16 bytes to there, in the wait: who does not wait reads what was there before.
void copy_async_16(void* to, const void* from);
void copy_async_wait();
void store_shared(uint32_t address, uint32_t value);
void load_shared_v4(uint32_t address, uint32_t (&value)[4]);
void store_shared_v4(uint32_t address, const uint32_t (&value)[4]);
// Global memory has no shadow state: alignment is what can be checked.
void check_global(const char* instruction, const void* address, uint32_t bytes);

void wgmma_fence();
void wgmma_commit();
void wgmma_wait(uint32_t pending_groups);
void wgmma(const WgmmaCall& call);
void keep(void* x);

}  // namespace vca::emu::ops
