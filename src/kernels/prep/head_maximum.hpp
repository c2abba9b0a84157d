// SPDX-License-Identifier: Apache-2.0
// One scale a head (fp8): the largest |k| of every (sub-problem, kv head) and |q| of every
// (sub-problem, query head), after RoPE and Hadamard (docs/numerics.md B4). Maxima of tiles come
// through k_scale and q_unit from passes of KeyTiles and QueryTiles with only_maximum set; these
// fill them with scales afterwards.
#pragma once

#include "kernels/prep/params.hpp"

namespace vca::kernels::prep {

// One block a unit, then one a query head.
struct HeadMaxima {
  using Params = prep::Params;
  static constexpr int kThreads = 1024;
  static constexpr int kPhases = 2;
  struct Shared {
    float max[kThreads];
  };
  VCA_DEVICE static void phase(int phase, const Params& p, Shared& s, int64_t block, int thread) {
    const int64_t n_units = int64_t{p.n_subs} * p.h_kv;
    const bool keys = block < n_units;
    const int64_t index = keys ? block : block - n_units;
    if (phase == 1) {
      if (thread != 0) return;
      float max = 0.0f;
      for (int i = 0; i < kThreads; ++i) max = max_f32(max, s.max[i]);
      (keys ? p.k_head_max : p.q_head_max)[index] = max;
      return;
    }
    const int64_t heads = keys ? p.h_kv : p.h_q;
    const SubInfo& sub = p.subs[index / heads];
    const int64_t head = index % heads;
    const float* from = keys ? p.k_scale + (sub.kv_block_base + head * sub.kv_block_stride) * 4
                             : p.q_unit + (sub.q_tile_base + head * sub.n_q_tiles) * (kRows / 2);
    const int64_t n = keys ? sub.n_blocks : sub.n_q_tiles, step = keys ? 4 : kRows / 2;
    float max = 0.0f;
    for (int64_t i = thread; i < n; i += kThreads) max = max_f32(max, from[i * step]);
    s.max[thread] = max;
  }
};

}  // namespace vca::kernels::prep
