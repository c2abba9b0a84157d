// SPDX-License-Identifier: Apache-2.0
// Shuffles, votes, named barriers, mbarriers, bulk copies, register budgets.
#pragma once

#include "ptx/harness.hpp"

namespace vca::tests {

struct ShuffleKernel {
  const uint32_t* in;
  uint32_t* out;  // [8][threads]
  uint32_t threads;
  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index();
    for (uint32_t i = 0; i < 5; ++i) {
      out[i * threads + t] =
          static_cast<uint32_t>(ptx::shfl_sync_bfly(static_cast<int32_t>(in[t]), 1u << i));
    }
    out[5 * threads + t] = ptx::float_bits(ptx::shfl_sync_bfly(ptx::bits_float(in[t]), 31u));
    out[6 * threads + t] = ptx::warp_uniform(in[t]);
    // One lane of every second warp says yes.
    out[7 * threads + t] = ptx::vote_sync_any(t % 64u == 37u) ? 1u : 0u;
  }
};

inline void shuffles_and_votes(Report& report) {
  constexpr uint32_t kThreads = 96;
  Buffer<uint32_t> in(kThreads), out(8 * kThreads);
  Numbers numbers(11);
  std::vector<uint32_t> want(8 * kThreads);
  for (uint32_t t = 0; t < kThreads; ++t) in[t] = numbers.bits() & 0x3FFFFFFFu;  // no NaN
  for (uint32_t t = 0; t < kThreads; ++t) {
    for (uint32_t i = 0; i < 5; ++i) want[i * kThreads + t] = in[t ^ (1u << i)];
    want[5 * kThreads + t] = in[t ^ 31u];
    want[6 * kThreads + t] = in[t & ~31u];
    want[7 * kThreads + t] = t / 32 % 2 == 1 ? 1u : 0u;
  }
  in.upload();
  run(report, {1, kThreads, 0}, ShuffleKernel{in.device(), out.device(), kThreads},
      [&] { expect_equal(report, "shfl, vote", out, want); });
}

// Warps 0-1 produce, warps 2-3 consume through shared memory, two buffers, barriers 1-2 "full" and
// 3-4 "empty": producers arrive where consumers sync, and the other way round.
struct NamedBarrierKernel {
  float* out;  // [rounds][64]
  uint32_t rounds;
  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index();
    const ptx::SmemAddr smem = ptx::dynamic_smem();
    ptx::bar_sync(0, 128);
    for (uint32_t r = 0; r < rounds; ++r) {
      const uint32_t b = r % 2;
      const ptx::SmemAddr slot = smem + 256u * b + 4u * (t % 64u);
      if (t < 64) {
        if (r >= 2) ptx::bar_sync(3 + b, 128);
        ptx::st_shared_f32(slot, static_cast<float>(1000 * r + t));
        ptx::bar_arrive(1 + b, 128);
      } else {
        ptx::bar_sync(1 + b, 128);
        // The neighbour's value, so that a barrier of one's own warp would not do.
        const ptx::SmemAddr other = smem + 256u * b + 4u * ((t + 33u) % 64u);
        out[r * 64 + t - 64] = ptx::ld_shared_f32(other);
        if (r + 2 < rounds) ptx::bar_arrive(3 + b, 128);
      }
    }
  }
};

inline void named_barriers(Report& report) {
  constexpr uint32_t kRounds = 7;
  Buffer<float> out(kRounds * 64);
  std::vector<float> want(kRounds * 64);
  for (uint32_t r = 0; r < kRounds; ++r) {
    for (uint32_t t = 0; t < 64; ++t) {
      want[r * 64 + t] = static_cast<float>(1000 * r + (t + 64u + 33u) % 64u);
    }
  }
  run(report, {1, 128, 512}, NamedBarrierKernel{out.device(), kRounds},
      [&] { expect_equal(report, "named barriers", out, want); });
}

// One thread streams rows of a matrix through a ring of stages; 64 threads read them.
struct BulkRingKernel {
  static constexpr uint32_t kStages = 3;
  static constexpr uint32_t kRowBytes = 512;
  const float* in;  // [rows][128]
  float* out;
  uint32_t rows;
  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index();
    const ptx::SmemAddr smem = ptx::dynamic_smem();
    const ptx::SmemAddr full = smem + kStages * kRowBytes, empty = full + 8u * kStages;
    if (t == 0) {
      for (uint32_t s = 0; s < kStages; ++s) {
        ptx::mbarrier_init(full + 8u * s, 1);
        ptx::mbarrier_init(empty + 8u * s, 64);
      }
      ptx::fence_mbarrier_init();
    }
    ptx::bar_sync(0, 96);
    if (t < 32) {
      if (t != 0) return;
      for (uint32_t r = 0; r < rows; ++r) {
        const uint32_t s = r % kStages;
        ptx::mbarrier_wait_parity(empty + 8u * s, ((r / kStages) & 1u) ^ 1u);
        // In two pieces that complete on one barrier.
        ptx::mbarrier_arrive_expect_tx(full + 8u * s, kRowBytes);
        ptx::cp_async_bulk_g2s(smem + kRowBytes * s, in + r * 128, 496, full + 8u * s);
        ptx::cp_async_bulk_g2s(smem + (kRowBytes * s + 496), in + r * 128 + 124, 16, full + 8u * s);
      }
    } else {
      for (uint32_t r = 0; r < rows; ++r) {
        const uint32_t s = r % kStages;
        const uint32_t parity = (r / kStages) & 1u;
        if (r % 2 == 0 || !ptx::mbarrier_test_parity(full + 8u * s, parity))
          ptx::mbarrier_wait_parity(full + 8u * s, parity);
        for (uint32_t i = t - 32; i < 128; i += 64) {
          out[r * 128 + i] = ptx::ld_shared_f32(smem + (kRowBytes * s + 4u * i));
        }
        ptx::mbarrier_arrive(empty + 8u * s);
      }
    }
  }
};

inline void bulk_copies_and_mbarriers(Report& report) {
  constexpr uint32_t kRows = 23;
  std::vector<float> want(kRows * 128);
  Numbers numbers(5);
  for (float& x : want) x = numbers.uniform(1e6f);
  Buffer<float> in(want), out(want.size());
  in.upload();
  run(report, {1, 96, BulkRingKernel::kStages * (BulkRingKernel::kRowBytes + 16)},
      BulkRingKernel{in.device(), out.device(), kRows},
      [&] { expect_equal(report, "bulk ring", out, want); });
}

// The parity of a fresh barrier, arrivals of several threads, and what an arrival publishes.
struct MbarrierKernel {
  float* out;  // [rounds][96]
  uint32_t rounds;
  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index();
    const ptx::SmemAddr smem = ptx::dynamic_smem();
    const ptx::SmemAddr written = smem + 4u * 96u, read = written + 8u;
    if (t == 0) {
      ptx::mbarrier_init(written, 96);
      ptx::mbarrier_init(read, 96);
    }
    ptx::bar_sync(0, 96);
    for (uint32_t r = 0; r < rounds; ++r) {
      // Before the first round: the "previous" phase of a fresh barrier has parity 1 and is over.
      ptx::mbarrier_wait_parity(read, (r & 1u) ^ 1u);
      ptx::st_shared_f32(smem + 4u * t, static_cast<float>(r * 96 + t));
      ptx::mbarrier_arrive(written);
      ptx::mbarrier_wait_parity(written, r & 1u);
      out[r * 96 + t] = ptx::ld_shared_f32(smem + 4u * ((t + 50u) % 96u));
      ptx::mbarrier_arrive(read);
    }
  }
};

inline void mbarrier_phases(Report& report) {
  constexpr uint32_t kRounds = 9;
  Buffer<float> out(kRounds * 96);
  std::vector<float> want(kRounds * 96);
  for (uint32_t r = 0; r < kRounds; ++r) {
    for (uint32_t t = 0; t < 96; ++t) {
      want[r * 96 + t] = static_cast<float>(r * 96 + (t + 50u) % 96u);
    }
  }
  run(report, {1, 96, 4 * 96 + 16}, MbarrierKernel{out.device(), kRounds},
      [&] { expect_equal(report, "mbarrier phases", out, want); });
}

// Three warpgroups as the attention kernel has them; the values only show that all came through.
struct RegistersKernel {
  uint32_t* out;
  VCA_DEVICE void operator()() const {
    if (ptx::thread_index() < 128u) {
      ptx::setmaxnreg_dec<24>();
    } else {
      ptx::setmaxnreg_inc<240>();
    }
    out[ptx::cta_index() * 384 + ptx::thread_index()] =
        ptx::cta_index() * 1000 + ptx::thread_index() + ptx::grid_size();
  }
};

inline void register_budgets(Report& report) {
  Buffer<uint32_t> out(3 * 384);
  std::vector<uint32_t> want(3 * 384);
  for (uint32_t c = 0; c < 3; ++c) {
    for (uint32_t t = 0; t < 384; ++t) want[c * 384 + t] = c * 1000 + t + 3;
  }
  run(report, {3, 384, 0}, RegistersKernel{out.device()},
      [&] { expect_equal(report, "setmaxnreg, indices", out, want); });
}

}  // namespace vca::tests
