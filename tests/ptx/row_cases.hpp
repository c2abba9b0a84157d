// SPDX-License-Identifier: Apache-2.0
// What the kernels that hold rows in registers use: vector accesses, lanes that read another lane,
// maxima over a warp, byte permutations, INT8 codes.
#pragma once

#include <algorithm>

#include "ptx/cvt_cases.hpp"

namespace vca::tests {

struct VectorAccessKernel {
  const uint32_t* in;  // [4][threads] in groups of four words a thread
  uint32_t* out;       // [3][4 * threads], then [2 * threads]
  uint32_t threads;
  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index(), n = 4 * threads;
    const ptx::SmemAddr own = ptx::dynamic_smem() + 16 * t;
    const ptx::SmemAddr other = ptx::dynamic_smem() + 16 * (threads - 1 - t);
    const ptx::Words4 x = ptx::ld_global_nc_v4(in + 4 * t);
    const ptx::Words4 y = ptx::ld_global_nc_stream_v4(in + 4 * (threads - 1 - t));
    ptx::st_shared_v4(own, x);
    ptx::bar_sync(0, threads);
    ptx::st_global_v4(out + 4 * t, ptx::ld_shared_v4(other));
    ptx::st_global_v4(out + n + 4 * t, y);
    ptx::st_global_v4(out + 2 * n + 4 * t, x);
    ptx::st_global_v2(out + 3 * n + 2 * t, x.word[1], x.word[2]);
  }
};
inline void vector_accesses(Report& report) {
  constexpr uint32_t kThreads = 96, kWords = 4 * kThreads;
  Buffer<uint32_t> in(kWords), out(3 * kWords + 2 * kThreads);
  std::vector<uint32_t> want(out.size());
  for (uint32_t i = 0; i < kWords; ++i) in[i] = 2654435761u * (i + 1);
  for (uint32_t t = 0; t < kThreads; ++t) {
    for (uint32_t w = 0; w < 4; ++w) {
      want[4 * t + w] = want[kWords + 4 * t + w] = in[4 * (kThreads - 1 - t) + w];
      want[2 * kWords + 4 * t + w] = in[4 * t + w];
    }
    want[3 * kWords + 2 * t] = in[4 * t + 1];
    want[3 * kWords + 2 * t + 1] = in[4 * t + 2];
  }
  in.upload();
  run(report, {1, kThreads, 16 * kThreads}, VectorAccessKernel{in.device(), out.device(), kThreads},
      [&] { expect_equal(report, "ld, st .v4 .v2", out, want); });
}

struct AsyncCopyKernel {
  const uint32_t* in;
  uint32_t* out;  // [2][4 * threads]: what a thread has copied itself, and another one
  uint32_t threads;
  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index(), n = 4 * threads;
    auto* const held = reinterpret_cast<uint32_t*>(ptx::dynamic_smem_pointer());
    for (uint32_t w = 0; w < 4; ++w) held[4 * t + w] = held[n + 4 * t + w] = 0;
    for (uint32_t part = 0; part < 2; ++part)
      ptx::cp_async_g2s_16(held + part * n + 4 * t, in + part * n + 4 * (threads - 1 - t));
    ptx::cp_async_wait_all();
    for (uint32_t w = 0; w < 4; ++w) out[4 * t + w] = held[4 * t + w];
    ptx::cta_sync(threads);
    for (uint32_t w = 0; w < 4; ++w) out[n + 4 * t + w] = held[n + 4 * ((t + 40) % threads) + w];
  }
};
inline void async_copies(Report& report) {
  constexpr uint32_t kThreads = 96, kWords = 4 * kThreads;
  Buffer<uint32_t> in(2 * kWords), out(2 * kWords);
  std::vector<uint32_t> want(2 * kWords);
  for (uint32_t i = 0; i < 2 * kWords; ++i) in[i] = 2654435761u * (i + 1);
  for (uint32_t t = 0; t < kThreads; ++t) {
    for (uint32_t w = 0; w < 4; ++w) {
      want[4 * t + w] = in[4 * (kThreads - 1 - t) + w];
      want[kWords + 4 * t + w] = in[kWords + 4 * (kThreads - 1 - (t + 40) % kThreads) + w];
    }
  }
  in.upload();
  run(report, {1, kThreads, 32 * kThreads}, AsyncCopyKernel{in.device(), out.device(), kThreads},
      [&] { expect_equal(report, "cp.async", out, want); });
}

struct SharedAtomicsKernel {
  const uint32_t* in;
  uint32_t* out;  // [threads] a 1 for every count handed out; the sum; the smallest, low and high;
                  // the bits of all; the largest
  uint32_t threads;
  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index();
    auto* const count = reinterpret_cast<int32_t*>(ptx::dynamic_smem_pointer());
    auto* const smallest = reinterpret_cast<uint64_t*>(ptx::dynamic_smem_pointer() + 8);
    if (t == 0) {
      count[0] = count[1] = count[4] = 0;
      count[5] = -0x7FFFFFFF;
      *smallest = ~uint64_t{0};
    }
    ptx::cta_sync(threads);
    if (t % 3 == 1)
      ptx::red_shared_add(count + 1, static_cast<int32_t>(t));  // some lanes of a warp
    ptx::red_shared_or(reinterpret_cast<uint32_t*>(count + 4), in[t] & 0x00FF00F0u);
    ptx::red_shared_max(count + 5, static_cast<int32_t>(in[t]));
    ptx::red_shared_min(smallest, uint64_t{in[t] % 5u} << 32 | in[t]);
    const int32_t before = ptx::atom_shared_add(count, 1);
    out[before] = 1u;
    ptx::cta_sync(threads);
    if (t != 0) return;
    out[threads] = static_cast<uint32_t>(count[1]);
    out[threads + 1] = static_cast<uint32_t>(*smallest);
    out[threads + 2] = static_cast<uint32_t>(*smallest >> 32);
    out[threads + 3] = static_cast<uint32_t>(count[4]);
    out[threads + 4] = static_cast<uint32_t>(count[5]);
  }
};
inline void shared_atomics(Report& report) {
  constexpr uint32_t kThreads = 96;
  Buffer<uint32_t> in(kThreads), out(kThreads + 5);
  std::vector<uint32_t> want(kThreads + 5, 1u);
  uint64_t smallest = ~uint64_t{0};
  uint32_t any = 0;
  int32_t largest = -0x7FFFFFFF;
  want[kThreads] = 0;
  for (uint32_t t = 0; t < kThreads; ++t) {
    in[t] = 2654435761u * (t + 1);
    smallest = std::min(smallest, uint64_t{in[t] % 5u} << 32 | in[t]);
    if (t % 3 == 1) want[kThreads] += t;
    any |= in[t] & 0x00FF00F0u;
    largest = std::max(largest, static_cast<int32_t>(in[t]));
  }
  want[kThreads + 3] = any;
  want[kThreads + 4] = static_cast<uint32_t>(largest);
  want[kThreads + 1] = static_cast<uint32_t>(smallest);
  want[kThreads + 2] = static_cast<uint32_t>(smallest >> 32);
  in.upload();
  run(report, {1, kThreads, 24}, SharedAtomicsKernel{in.device(), out.device(), kThreads},
      [&] { expect_equal(report, "atom, red, cta_sync", out, want); });
}

struct LanesKernel {
  const uint32_t* in;
  uint32_t* out;  // [4][threads]
  uint32_t threads;
  VCA_DEVICE void operator()() const {
    const uint32_t t = ptx::thread_index();
    out[t] = ptx::shfl_sync_idx(in[t], (7 * t + 3) % 32);
    out[threads + t] = ptx::redux_sync_max(in[t]);
    out[2 * threads + t] = ptx::shfl_sync_bfly(in[t], 8u);
    out[3 * threads + t] = ptx::prmt(in[t], ~in[t], t % 2 == 0 ? 0x1054u : 0x7632u);
  }
};
inline void lanes(Report& report) {
  constexpr uint32_t kThreads = 96;
  Buffer<uint32_t> in(kThreads), out(4 * kThreads);
  std::vector<uint32_t> want(4 * kThreads);
  Numbers numbers(5);
  for (uint32_t t = 0; t < kThreads; ++t) in[t] = numbers.bits();
  for (uint32_t t = 0; t < kThreads; ++t) {
    const uint32_t warp = t & ~31u;
    want[t] = in[warp + (7 * t + 3) % 32];
    want[kThreads + t] = 0;
    for (uint32_t lane = 0; lane < 32; ++lane)
      want[kThreads + t] = std::max(want[kThreads + t], in[warp + lane]);
    want[2 * kThreads + t] = in[t ^ 8u];
    const uint32_t a = in[t], b = ~in[t];
    want[3 * kThreads + t] = t % 2 == 0 ? (a << 16 | (b & 0xFFFFu)) : ((b & 0xFFFF0000u) | a >> 16);
  }
  in.upload();
  run(report, {1, kThreads, 0}, LanesKernel{in.device(), out.device(), kThreads},
      [&] { expect_equal(report, "shfl.idx, redux.max, prmt", out, want); });
}

struct CodesKernel {
  const float* x;
  uint32_t* s8x4;
  float* from_half;  // [65536]
  float* least;
  uint32_t n;
  VCA_DEVICE void operator()() const {
    for (uint32_t i = ptx::thread_index(); i < n; i += 128) {
      s8x4[i] = ptx::cvt_pack_sat_s8x4_f32(x[i], x[(i + 1) % n], x[(i + 2) % n], x[(i + 3) % n]);
      least[i] = ptx::min_f32(x[i], x[(i + 1) % n]);
    }
    for (uint32_t i = ptx::thread_index(); i < 65536; i += 128)
      from_half[i] = ptx::cvt_f32_f16(0xABCD0000u | i);
  }
};
inline void codes(Report& report) {
  std::vector<float> values = interesting_floats();
  // What the instruction is used for: it would saturate at -128 beyond.
  for (float& v : values) v = std::clamp(v, -127.49f, 127.49f);
  Buffer<float> x(values);
  const auto n = static_cast<uint32_t>(x.size());
  Buffer<uint32_t> s8x4(n);
  Buffer<float> from_half(65536), least(n);
  std::vector<uint32_t> want_s8(n);
  std::vector<float> want_half(65536), want_least(n);
  for (uint32_t i = 0; i < n; ++i) {
    for (uint32_t b = 0; b < 4; ++b)
      want_s8[i] |= uint32_t{static_cast<uint8_t>(spec::int8_encode(x[(i + b) % n]))} << (8 * b);
    const float a = x[i], b = x[(i + 1) % n];
    want_least[i] = a == 0.0f && b == 0.0f ? -((-a) + (-b)) : std::fmin(a, b);  // -0 is below +0
  }
  for (uint32_t i = 0; i < 65536; ++i) {
    const float v = spec::fp16_decode(static_cast<uint16_t>(i));
    want_half[i] = v;
  }
  x.upload();
  run(report, {1, 128, 0},
      CodesKernel{x.device(), s8x4.device(), from_half.device(), least.device(), n}, [&] {
        expect_equal(report, "cvt.pack.sat.s8", s8x4, want_s8);
        expect_equal(report, "min", least, want_least);
        from_half.download();
        for (uint32_t i = 0; i < 65536; ++i)  // which NaN is nobody's business
          if (spec::is_nan(want_half[i]) && spec::is_nan(from_half[i])) want_half[i] = from_half[i];
        expect_equal(report, "cvt.f32.f16", from_half, want_half);
      });
}

}  // namespace vca::tests
