// SPDX-License-Identifier: Apache-2.0
// Clusters of two CTAs: ranks, the cluster barrier, remote arrivals, multicast copies.
#pragma once

#include "ptx/harness.hpp"

namespace vca::tests {

// Faults that tests/emu/cluster_mutants_test.cpp plants; the emulator must notice every one.
enum class ClusterMutation : int {
  none,
  no_init_fence,
  no_barrier_at_start,
  no_barrier_at_exit,
  no_wait_at_exit,
  no_remote_arrival,
  counts_own_consumers_only,  // and no remote arrival: nobody waits for the peer's reads
  arrives_twice_at_home,
  arrives_beyond_cluster,
  own_mask_only,
  mask_beyond_cluster,
  expects_own_bytes_only,
  expects_too_much,
  producer_does_not_wait,
  consumer_does_not_wait,
  same_half_twice,
};
inline constexpr int kClusterMutations = static_cast<int>(ClusterMutation::same_half_twice) + 1;

// Rows go through a ring of three stages in both CTAs. A row is two halves, which the producers of
// rank 0 and 1 multicast, and 16 bytes of its own for each CTA. 64 consumers of each CTA release a
// stage to both producers.
struct ClusterRingKernel {
  static constexpr uint32_t kThreads = 96, kStages = 3;
  static constexpr uint32_t kHalfBytes = 256, kOwnBytes = 16;
  static constexpr uint32_t kStageBytes = 2 * kHalfBytes + kOwnBytes;
  static constexpr uint32_t kSmemBytes = kStages * (kStageBytes + 16);

  const float* in;   // [rows][128]
  const float* own;  // [CTA][rows][4]
  float* out;        // [CTA][rows][128]: in + the CTA's own[row][column % 4]
  uint32_t rows;
  ClusterMutation mutation = ClusterMutation::none;

  VCA_DEVICE bool is(ClusterMutation m) const { return mutation == m; }
  VCA_DEVICE static uint32_t full(uint32_t s) { return kStages * kStageBytes + 8u * s; }
  VCA_DEVICE static uint32_t empty(uint32_t s) { return full(kStages + s); }

  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index();
    const ptx::SmemAddr smem = ptx::dynamic_smem();
    if (t == 0) {
      for (uint32_t s = 0; s < kStages; ++s) {
        ptx::mbarrier_init(smem + full(s), 1);
        ptx::mbarrier_init(smem + empty(s),
                           is(ClusterMutation::counts_own_consumers_only) ? 64 : 128);
      }
      if (!is(ClusterMutation::no_init_fence)) ptx::fence_mbarrier_init();
    }
    if (is(ClusterMutation::no_barrier_at_start)) {
      ptx::bar_sync(0, kThreads);
    } else {
      ptx::barrier_cluster_arrive();
      ptx::barrier_cluster_wait();
    }
    if (t >= 32) {
      consume(smem, t - 32);
    } else if (t == 0) {
      produce(smem);
    }
    if (is(ClusterMutation::no_barrier_at_exit)) return;
    ptx::barrier_cluster_arrive();
    if (!is(ClusterMutation::no_wait_at_exit)) ptx::barrier_cluster_wait();
  }

  VCA_DEVICE void produce(ptx::SmemAddr smem) const {
    const uint32_t rank = ptx::cluster_rank();
    uint32_t mask = 3u;
    if (is(ClusterMutation::own_mask_only)) mask = 1u << rank;
    if (is(ClusterMutation::mask_beyond_cluster)) mask = 7u;
    uint32_t bytes = kStageBytes;
    if (is(ClusterMutation::expects_own_bytes_only)) bytes -= kHalfBytes;
    if (is(ClusterMutation::expects_too_much)) bytes += 16;
    const uint32_t half = is(ClusterMutation::same_half_twice) ? 0u : rank;
    for (uint32_t r = 0; r < rows; ++r) {
      const uint32_t s = r % kStages;
      const ptx::SmemAddr stage = smem + kStageBytes * s;
      if (!is(ClusterMutation::producer_does_not_wait))
        ptx::mbarrier_wait_parity(smem + empty(s), ((r / kStages) & 1u) ^ 1u);
      ptx::mbarrier_arrive_expect_tx(smem + full(s), bytes);
      ptx::cp_async_bulk_g2s_multicast(stage + kHalfBytes * half, in + r * 128 + 64 * half,
                                       kHalfBytes, smem + full(s), static_cast<uint16_t>(mask));
      ptx::cp_async_bulk_g2s(stage + 2 * kHalfBytes, own + (ptx::cta_index() * rows + r) * 4,
                             kOwnBytes, smem + full(s));
    }
  }

  VCA_DEVICE void consume(ptx::SmemAddr smem, uint32_t i) const {
    const uint32_t rank = ptx::cluster_rank();
    for (uint32_t r = 0; r < rows; ++r) {
      const uint32_t s = r % kStages;
      const ptx::SmemAddr stage = smem + kStageBytes * s;
      if (!is(ClusterMutation::consumer_does_not_wait))
        ptx::mbarrier_wait_parity(smem + full(s), (r / kStages) & 1u);
      const float add = ptx::ld_shared_f32(stage + (2 * kHalfBytes + 4u * (i % 4u)));
      float* row = out + (ptx::cta_index() * rows + r) * 128;
      row[i] = ptx::add_rn(ptx::ld_shared_f32(stage + 4u * i), add);
      row[i + 64] = ptx::add_rn(ptx::ld_shared_f32(stage + (kHalfBytes + 4u * i)), add);
      uint32_t other = rank ^ 1u;
      if (is(ClusterMutation::arrives_twice_at_home)) other = rank;
      if (is(ClusterMutation::arrives_beyond_cluster)) other = 2;
      ptx::mbarrier_arrive_cluster(ptx::mapa(smem + empty(s), rank));
      if (is(ClusterMutation::no_remote_arrival) || is(ClusterMutation::counts_own_consumers_only))
        continue;
      ptx::mbarrier_arrive_cluster(ptx::mapa(smem + empty(s), other));
    }
  }
};

// Inputs and what must come out, for `ctas` CTAs.
struct ClusterRingProblem {
  std::vector<float> in, own, out;
  ClusterRingProblem(uint32_t ctas, uint32_t rows) : in(rows * 128), own(ctas * rows * 4) {
    Numbers numbers(17);
    for (float& x : in) x = numbers.uniform(1e3f);
    for (float& x : own) x = numbers.uniform(1e3f);
    for (uint32_t c = 0; c < ctas; ++c)
      for (uint32_t r = 0; r < rows; ++r)
        for (uint32_t i = 0; i < 128; ++i)
          out.push_back(in[r * 128 + i] + own[(c * rows + r) * 4 + i % 4]);
  }
};

inline void cluster_multicast(Report& report) {
  constexpr uint32_t kCtas = 6, kRows = 23;
  const ClusterRingProblem problem(kCtas, kRows);
  Buffer<float> in(problem.in), own(problem.own), out(problem.out.size());
  in.upload();
  own.upload();
  run(report, {kCtas, ClusterRingKernel::kThreads, ClusterRingKernel::kSmemBytes, 2},
      ClusterRingKernel{in.device(), own.device(), out.device(), kRows},
      [&] { expect_equal(report, "cluster ring", out, problem.out); });
}

// Ranks, and that a cluster barrier waits for both CTAs: each thread counts in a word of its own
// before the barrier and reads the other CTA's afterwards.
struct ClusterBarrierKernel {
  uint32_t* counts;  // [CTA][threads]
  uint32_t* out;     // [CTA][threads][rounds + 1]
  uint32_t rounds, threads;
  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index(), cta = ptx::cta_index(), rank = ptx::cluster_rank();
    uint32_t* mine = out + (cta * threads + t) * (rounds + 1);
    volatile uint32_t* own = counts + cta * threads + t;
    volatile uint32_t* peer = counts + (cta ^ 1u) * threads + t;
    mine[rounds] = rank;
    for (uint32_t r = 0; r < rounds; ++r) {
      *own = 100 * cta + r;
      ptx::barrier_cluster_arrive();
      ptx::barrier_cluster_wait();
      mine[r] = *peer;
      ptx::barrier_cluster_arrive();
      ptx::barrier_cluster_wait();
    }
  }
};

inline void cluster_barriers(Report& report) {
  constexpr uint32_t kCtas = 4, kThreads = 64, kRounds = 5;
  Buffer<uint32_t> counts(kCtas * kThreads), out(kCtas * kThreads * (kRounds + 1));
  std::vector<uint32_t> want;
  for (uint32_t c = 0; c < kCtas; ++c)
    for (uint32_t t = 0; t < kThreads; ++t) {
      for (uint32_t r = 0; r < kRounds; ++r) want.push_back(100 * (c ^ 1u) + r);
      want.push_back(c % 2);
    }
  counts.upload();
  run(report, {kCtas, kThreads, 0, 2},
      ClusterBarrierKernel{counts.device(), out.device(), kRounds, kThreads},
      [&] { expect_equal(report, "cluster barrier", out, want); });
}

}  // namespace vca::tests
