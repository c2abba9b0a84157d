// SPDX-License-Identifier: Apache-2.0
// Overflow exponent e per (sub-problem, query head) and q_unit = RN(c * q_scale) * 2^-e
// (docs/numerics.md B6). Maxima do not depend on the order, so no atomics and no order of threads.
#pragma once

#include "kernels/prep/params.hpp"

namespace vca::kernels::prep {

struct QueryUnits {
  using Params = prep::Params;
  static constexpr int kThreads = 1024;
  static constexpr int kPhases = 4;
  struct Shared {
    float q_max[kThreads], k_max[kThreads];
    double power;  // 2^-e
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t index, int thread) {
    const uint32_t sub_index = p.by_h_q.divide(static_cast<uint32_t>(index));
    const auto head = static_cast<uint32_t>(index) - sub_index * p.by_h_q.divisor;
    const SubInfo& sub = p.subs[sub_index];
    const int64_t n_q = int64_t{sub.n_q_tiles} * (kRows / 2), n_k = int64_t{sub.n_blocks} * 4;
    float* unit = p.q_unit + (sub.q_tile_base + head * sub.n_q_tiles) * (kRows / 2);
    switch (phase) {
      case 0: {
        const int64_t block0 = sub.kv_block_base + p.by_group.divide(head) * sub.kv_block_stride;
        s.q_max[thread] = maximum(unit, thread, n_q, kThreads);
        s.k_max[thread] = maximum(p.k_scale + block0 * 4, thread, n_k, kThreads);
        return;
      }
      case 1:
        if (thread >= 32) return;
        s.q_max[thread] = maximum(s.q_max, thread, kThreads, 32);
        s.k_max[thread] = maximum(s.k_max, thread, kThreads, 32);
        return;
      case 2: {
        if (thread != 0) return;
        const int e = overflow_exponent(p, maximum(s.q_max, 0, 32, 1), maximum(s.k_max, 0, 32, 1));
        p.exponent[index] = e;
        s.power = std::bit_cast<double>(uint64_t(1023 - e) << 52);
        return;
      }
      default:
        // The product is exact in FP64 (24 + 24 bits) and so is the power of two: one rounding.
        for (int64_t i = thread; i < n_q; i += kThreads)
          unit[i] = to_float(mul_f64(
              mul_f64(static_cast<double>(p.code_scale), static_cast<double>(unit[i])), s.power));
    }
  }

 private:
  VCA_DEVICE static float maximum(const float* x, int64_t first, int64_t n, int64_t step) {
    float max = 0.0f;
#if defined(__CUDACC__)
#pragma unroll 8
#endif
    for (int64_t i = first; i < n; i += step) max = max_f32(max, x[i]);
    return max;
  }
  // Smallest e >= 0 with bound * 2^-e < 2^23; bound < 2^384 * 2^25, so e fits a double's exponent.
  VCA_DEVICE static int overflow_exponent(const Params& p, float q_max, float k_max) {
    double bound = mul_f64(static_cast<double>(p.code_scale), static_cast<double>(q_max));
    bound = mul_f64(bound, static_cast<double>(k_max));
    const auto code_max = static_cast<double>(p.code_max);
    bound = mul_f64(mul_f64(bound, code_max), code_max);
    bound = mul_f64(bound, static_cast<double>(p.d_pad));
    const int exponent = static_cast<int>((std::bit_cast<uint64_t>(bound) >> 52) & 0x7FFu) - 1023;
    if (exponent == 1024) return 0;  // non-finite input: any answer will do, but an answer
    return exponent < 23 ? 0 : exponent - 22;
  }
};

}  // namespace vca::kernels::prep
