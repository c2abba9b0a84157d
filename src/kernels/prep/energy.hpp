// SPDX-License-Identifier: Apache-2.0
// f, the share of V's energy that the block means take out (docs/numerics.md B11); NaN for recipes
// without block means. Only run when asked for; never decides anything. values.hpp writes the
// squared norms.
#pragma once

#include "kernels/prep/params.hpp"

namespace vca::kernels::prep {

// 2^-floor(log2 x): brings squares into range. 1 for 0; +Inf where FP32 has no such power.
VCA_DEVICE float range_factor(float x) {
  const uint32_t bits = spec::float_bits(x);
  if (bits == 0) return 1.0f;
  int exponent = static_cast<int>(bits >> 23) - 127;
  if (exponent == -127)
    for (uint32_t rest = bits << 9; (rest & 0x80000000u) == 0; rest <<= 1) --exponent;
  if (exponent == 128) return 0.0f;
  if (exponent < -127) return spec::float_from_bits(0x7F800000u);
  // exponent 127 gives the subnormal 2^-127.
  return spec::float_from_bits(exponent == 127 ? 0x00400000u
                                               : static_cast<uint32_t>(127 - exponent) << 23);
}

// The two trees and their quotient; one block a unit. A thread sums an aligned power of two of
// elements, a subtree.
struct EnergyRemoved {
  using Params = prep::Params;
  static constexpr int kThreads = 1024;
  static constexpr int kPhases = 2;
  struct Shared {
    float rows[kThreads], blocks[kThreads];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t unit, int thread) {
    const int64_t index = unit / p.h_kv, head = unit % p.h_kv;
    const SubInfo& sub = p.subs[index];
    const int64_t first = sub.kv_block_base + head * sub.kv_block_stride;
    if (p.plain_values) {
      if (phase == 0 && thread == 0) p.energy_removed[unit] = spec::float_from_bits(0x7FC00000u);
    } else if (phase == 0) {
      s.rows[thread] = part(p.energy_rows + first * kRows, p.n_valid[index], thread);
      s.blocks[thread] = part(p.energy_blocks + first, sub.n_blocks, thread);
    } else if (thread == 0) {
      const float whole = join(s.rows, p.n_valid[index]);
      const float removed = join(s.blocks, sub.n_blocks);
      p.energy_removed[unit] =
          whole > 0.0f ? div(removed, whole) : spec::float_from_bits(0x7FC00000u);
    }
  }

 private:
  VCA_DEVICE static int64_t span_of(int64_t n) {
    int64_t span = 1;
    while (span * kThreads < n) span *= 2;
    return span;
  }
  VCA_DEVICE static float part(const float* x, int64_t n, int thread) {
    const int64_t span = span_of(n), first = thread * span;
    return spec::tree_sum(min_i64(n - first, span), [&](int64_t i) { return x[first + i]; });
  }
  VCA_DEVICE static float join(const float* parts, int64_t n) {
    return spec::tree_sum(ceil_div(n, span_of(n)), [&](int64_t i) { return parts[i]; });
  }
};

}  // namespace vca::kernels::prep
