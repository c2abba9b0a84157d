// SPDX-License-Identifier: Apache-2.0
// What a tile carries over its blocks besides O: the denominator, the block sums, and the block
// means that come back from them.
#pragma once

#include "cpu/kernel_scratch.hpp"

// l and the block sums R, before and after the block's own sum.
void accumulate_sums(Scratch& t, const TileTask& task, int64_t block) {
  const int slot = (int)(block % kGroup);
  for (int row = 0; row < kTileRows; row += kLanes) {
    const Vf alpha = load(&t.alpha[row]), sum = load(&t.sum[row]);
    if (task.order_kind == kOrderPlain || task.order_kind == kOrderMeans) {
      store(&t.l[0][row], add(mul(load(&t.l[0][row]), alpha), sum));
      continue;
    }
    for (auto& quad : t.l) store(&quad[row], mul(load(&quad[row]), alpha));
    for (auto& r : t.r) store(&r[row], mul(load(&r[row]), alpha));
    if (task.order_kind == kOrderLocal) {
      store(&t.r[slot][row], fma_rn(sum, load(&t.w[row]), load(&t.r[slot][row])));
    } else {
      store(&t.r[slot][row], sum);
      store(&t.beta[row], mul(load(&t.beta[row]), alpha));
    }
  }
}

// Every 8 blocks: l takes the rounded block sums, and the block means come back.
void restore_means(Scratch& t, const TileTask& task, int64_t first_block) {
  for (auto& r : t.r)
    for (float& x : r) x = rna_tf32(x);
  for (int quad = 0; quad < 4; ++quad)
    for (int row = 0; row < kTileRows; row += kLanes)
      store(&t.l[quad][row], add(load(&t.l[quad][row]),
                                 add(load(&t.r[2 * quad][row]), load(&t.r[2 * quad + 1][row]))));
  const bool running = task.order_kind == kOrderRunning;
  for (int d = 0; d < task.head_dim; ++d)
    for (int row = 0; row < kTileRows; row += kLanes) {
      Vf x = load(&t.o[d][row]);
      if (running) {
        x = fma_rn(load(&t.mean[d][row]), load(&t.beta[row]), x);
        store(&t.o[d][row], set1(0.0f));
      }
      for (int c = 0; c < kGroup; ++c) {
        const bool present = first_block + c < task.n_blocks;
        const float mu = present ? task.mu[(first_block + c) * task.d_pad + d] : 0.0f;
        x = add(x, mul(load(&t.r[c][row]), set1(mu)));
      }
      store(running ? &t.mean[d][row] : &t.o[d][row], x);
    }
  for (auto& r : t.r)
    for (float& x : r) x = 0.0f;
  for (float& beta : t.beta) beta = 1.0f;
}
