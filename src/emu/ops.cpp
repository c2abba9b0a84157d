// SPDX-License-Identifier: Apache-2.0
#include "emu/ops.hpp"

#include <cstring>
#include <string>

#include "emu/cluster.hpp"
#include "emu/warp_ops.hpp"

namespace vca::emu::ops {
namespace {

Warpgroup& own_warpgroup(const char* instruction) {
  Cta& cta = Cta::current();
  const uint32_t index = cta.self().warpgroup();
  if ((index + 1) * kWarpgroupThreads > cta.thread_count()) {
    cta.fault(instruction, "the thread's warpgroup is incomplete");
  }
  return cta.warpgroup(index);
}

}  // namespace

uint32_t thread_index() { return Cta::current().self().index; }
uint32_t cta_index() { return Cta::current().index(); }
uint32_t grid_size() { return Cta::current().config().grid; }
uint32_t dynamic_smem() { return Cta::current().smem().base(); }
uint32_t cluster_rank() { return Cta::current().rank(); }

uint32_t shuffle_xor(uint32_t value, uint32_t lane_mask) {
  return Cta::current().collectives().shuffle_xor("shfl.sync.bfly", value, lane_mask);
}
uint32_t shuffle_first(uint32_t value) {
  return Cta::current().collectives().broadcast_first("shfl.sync.idx", value);
}
uint32_t shuffle_index(uint32_t value, uint32_t lane) {
  return Cta::current().collectives().shuffle_index("shfl.sync.idx", value, lane);
}
uint32_t reduce_max(uint32_t value) {
  return Cta::current().collectives().reduce_max("redux.sync.max.u32", value);
}
bool vote_any(bool predicate) {
  return Cta::current().collectives().any("vote.sync.any", predicate);
}
uint32_t ballot(bool predicate) {
  return warp_ops::ballot(Cta::current().collectives(), predicate);
}
uint32_t match_any(uint32_t value) {
  return warp_ops::match_any(Cta::current().collectives(), value);
}
int32_t reduce_add(int32_t value) {
  return warp_ops::reduce_add(Cta::current().collectives(), value);
}
int32_t reduce_min(int32_t value) {
  return warp_ops::reduce_min(Cta::current().collectives(), value);
}
int32_t reduce_max(int32_t value) {
  return warp_ops::reduce_max(Cta::current().collectives(), value);
}
void mma_m16n8k32_s8(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  Cta& cta = Cta::current();
  warp_ops::mma_m16n8k32_s8(cta.collectives(), d, a, b);
  if (cta.self().lane() == 0) ++cta.stats().matrix_products;
}
void named_barrier_sync(uint32_t id, uint32_t threads) {
  Cta::current().collectives().named_barrier("bar.sync", id, threads, true);
}
void named_barrier_arrive(uint32_t id, uint32_t threads) {
  Cta::current().collectives().named_barrier("bar.arrive", id, threads, false);
}
void set_registers(uint32_t registers, bool increase) {
  Cta::current().collectives().set_registers(increase ? "setmaxnreg.inc" : "setmaxnreg.dec",
                                             registers, increase);
}

void cluster_barrier_arrive() { Cta::current().cluster().barrier_arrive("barrier.cluster.arrive"); }
void cluster_barrier_wait() { Cta::current().cluster().barrier_wait("barrier.cluster.wait"); }

void mbarrier_init(uint32_t address, uint32_t count) {
  Cta::current().barriers().init(address, count);
}
void fence_mbarrier_init() {
  Cta& cta = Cta::current();
  cta.self().mbarrier_init_fence_at = cta.tick();
}
void fence_proxy_async() {
  Cta& cta = Cta::current();
  cta.self().proxy_fence_at = cta.tick();
  cta.self().mbarrier_init_fence_at = cta.tick();
}
void mbarrier_arrive(uint32_t address) {
  Cta::current().barriers().arrive("mbarrier.arrive", address);
}
void mbarrier_arrive_expect_tx(uint32_t address, uint32_t bytes) {
  Cta::current().barriers().arrive_expect_tx("mbarrier.arrive.expect_tx", address, bytes);
}
void mbarrier_wait_parity(uint32_t address, uint32_t parity) {
  Cta::current().barriers().wait_parity("mbarrier.try_wait.parity", address, parity);
}
bool mbarrier_test_parity(uint32_t address, uint32_t parity) {
  return Cta::current().barriers().test_parity("mbarrier.test_wait.parity", address, parity);
}
void bulk_copy(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier) {
  Cta::current().bulk().issue("cp.async.bulk", destination, source, bytes, barrier);
}
void bulk_copy_multicast(uint32_t destination, const void* source, uint32_t bytes, uint32_t barrier,
                         uint32_t mask) {
  Cta::current().bulk().issue_multicast("cp.async.bulk.multicast", destination, source, bytes,
                                        barrier, mask);
}
uint32_t map_address(uint32_t address, uint32_t rank) {
  Cta& cta = Cta::current();
  if (rank >= cta.cluster().size()) {
    cta.fault("mapa", "CTA rank: got " + std::to_string(rank) + ", the cluster has " +
                          std::to_string(cta.cluster().size()));
  }
  if (address >> kClusterAddressShift != 0) {
    cta.fault("mapa", "not an address of the CTA's own shared memory");
  }
  return address | (rank + 1) << kClusterAddressShift;
}
void mbarrier_arrive_cluster(uint32_t cluster_address) {
  Cta& cta = Cta::current();
  const uint32_t tag = cluster_address >> kClusterAddressShift;
  Cta& target = tag == 0 ? cta : cta.cluster().cta(tag - 1);
  target.barriers().arrive_from_cluster("mbarrier.arrive.shared::cluster",
                                        cluster_address & ((1u << kClusterAddressShift) - 1));
}
uint32_t load_shared(uint32_t address) {
  Cta& cta = Cta::current();
  cta.preempt();
  return cta.smem().load_u32({"ld.shared", "address"}, address);
}
void store_shared(uint32_t address, uint32_t value) {
  Cta& cta = Cta::current();
  cta.preempt();
  cta.smem().store_u32({"st.shared", "address"}, address, value);
}

void load_shared_v4(uint32_t address, uint32_t (&value)[4]) {
  Cta& cta = Cta::current();
  cta.preempt();
  const Access access = {"ld.shared.v4", "address"};
  cta.smem().check_range(access, address, 16, 16);
  for (uint32_t i = 0; i < 4; ++i) value[i] = cta.smem().load_u32(access, address + 4 * i);
}
void store_shared_v4(uint32_t address, const uint32_t (&value)[4]) {
  Cta& cta = Cta::current();
  cta.preempt();
  const Access access = {"st.shared.v4", "address"};
  cta.smem().check_range(access, address, 16, 16);
  for (uint32_t i = 0; i < 4; ++i) cta.smem().store_u32(access, address + 4 * i, value[i]);
}
void check_global(const char* instruction, const void* address, uint32_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  Cta::current().fault(instruction,
                       "misaligned global address, allowed multiples of " + std::to_string(bytes));
}

void copy_async_16(void* to, const void* from) {
  Cta& cta = Cta::current();
  cta.preempt();
  const auto offset = static_cast<unsigned char*>(to) - cta.smem().plain();
  cta.smem().check_range({"cp.async", "destination"},
                         cta.smem().base() + static_cast<uint32_t>(offset), 16, 16);
  check_global("cp.async", from, 16);
  cta.self().async_copies.push_back({to, from});
}
void copy_async_wait() {
  Cta& cta = Cta::current();
  cta.preempt();
  for (const Thread::AsyncCopy& copy : cta.self().async_copies) std::memcpy(copy.to, copy.from, 16);
  cta.self().async_copies.clear();
}

unsigned char* plain_smem() { return Cta::current().smem().plain(); }

void wgmma_fence() { own_warpgroup("wgmma.fence").fence(); }
void wgmma_commit() { own_warpgroup("wgmma.commit_group").commit(); }
void wgmma_wait(uint32_t pending_groups) {
  own_warpgroup("wgmma.wait_group").wait("wgmma.wait_group", pending_groups);
}
void wgmma(const WgmmaCall& call) { own_warpgroup(call.instruction).issue(call); }

void keep(void*) {}

}  // namespace vca::emu::ops
