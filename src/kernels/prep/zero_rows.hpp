// SPDX-License-Identifier: Apache-2.0
// Rows with nothing to attend to: O = 0, LSE = -inf (docs/numerics.md D2). The attention kernel
// leaves exactly these.
#pragma once

#include "kernels/prep/params.hpp"

namespace vca::kernels::prep {

// One block a (sub-problem, query head, tile of 128 rows).
struct ZeroRows {
  using Params = AttentionParams;
  static constexpr int kThreads = 128;
  static constexpr int kPhases = 1;
  struct Shared {};
  VCA_DEVICE static void phase(int, const Params& p, Shared&, int64_t block, int thread) {
    const int64_t head_index = block / p.max_q_tiles, row0 = block % p.max_q_tiles * kRows;
    const int64_t head = head_index % p.h_q;
    const SubInfo& sub = p.subs[head_index / p.h_q];
    if (sub.n_blocks != 0) return;
    const int64_t rows = min_i64(sub.q_len - row0, kRows);
    const int64_t base = sub.batch * p.o_stride_b + head * p.o_stride_h;
    for (int64_t at = thread; at < rows * p.head_dim; at += kThreads) {
      const int64_t row = sub.q_begin + row0 + at / p.head_dim;
      const int64_t offset = base + row * p.o_stride_s + at % p.head_dim;
      if (p.o_type == OutType::fp32)
        static_cast<float*>(p.o)[offset] = 0.0f;
      else
        static_cast<uint16_t*>(p.o)[offset] = 0;
    }
    if (p.lse != nullptr && thread < rows)
      p.lse[(sub.batch * p.h_q + head) * p.lse_s + sub.q_begin + row0 + thread] =
          spec::float_from_bits(0xFF800000u);
  }
};

}  // namespace vca::kernels::prep
