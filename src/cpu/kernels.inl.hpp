// SPDX-License-Identifier: Apache-2.0
// The CPU attention kernel, written once and compiled once a unit. Lanes are query rows: scores,
// codes, sums, maxima and outputs of 16 (8, 4) rows stand side by side, so the whole schedule of
// src/spec/attention.hpp is element-wise, needs no reduction across lanes, and gives the bits of
// the specification at every width.
//
// A tile holds 64 rows. For every block of 128 keys
//   K and V are decoded to FP32 once          integers and E4M3 products are exact in FP32
//   scores  S[n][row]  += Q[i][row] * K[n][i]   i ascending
//   P       in place of S
//   output  T[d][row]  += P[n][row] * V[n][d]   n ascending
// Both products are the same register-blocked loop with two strides. The including unit defines
// VCA_CPU_RUN_TILE.

#include "cpu/kernel.hpp"

namespace vca::cpu {
namespace {

#include "cpu/kernel_products.hpp"
#include "cpu/kernel_softmax.hpp"
#include "cpu/kernel_sums.hpp"

// ---- the tile ----

void start(Scratch& t, const TileTask& task) {
  for (int row = 0; row < kTileRows; ++row) {
    t.unit[row] = row < task.rows ? task.q_unit[row] : 0.0f;
    t.m_run[row] = -__builtin_inff();
    t.beta[row] = 1.0f;
  }
  __builtin_memset(t.o, 0, sizeof(t.o));
  __builtin_memset(t.mean, 0, sizeof(t.mean));
  __builtin_memset(t.r, 0, sizeof(t.r));
  __builtin_memset(t.l, 0, sizeof(t.l));
  if (kHasDot4 && task.qk == kQkInt8) {
    pack_queries(t, task);
    return;
  }
  __builtin_memset(t.q, 0, sizeof(t.q));
  alignas(64) float decoded[kMaxDims];
  for (int row = 0; row < task.rows; ++row) {
    const int64_t at = (int64_t)row * task.d_pad;
    if (task.qk == kQkBf16) {
      copy_row(task.q_real + at, task.d_pad, decoded);
    } else if (task.qk == kQkFp4) {
      decode_fp4_row(task.q_codes + at / 2, task.q_micro + at / kMicroGroup, kMicroGroup,
                     task.d_pad, decoded);
    } else {
      decode_row(task.qk == kQkE4m3, task.q_codes + at, task.d_pad, decoded);
    }
    for (int i = 0; i < task.qk_dims; ++i) t.q[i][row] = decoded[i];
  }
}

void decode_block(Scratch& t, const TileTask& task, int64_t block) {
  for (int n = 0; n < kTileBlock; ++n) {
    const int64_t at = (block * kTileBlock + n) * task.d_pad;
    if (task.qk == kQkBf16) {
      copy_row(task.k_real + at, task.d_pad, t.k[n]);
    } else if (task.qk == kQkFp4) {
      decode_fp4_row(task.k_codes + at / 2, task.k_micro + at / kMicroGroup, kMicroGroup,
                     task.d_pad, t.k[n]);
    } else if (task.qk == kQkE4m3 || !kHasDot4) {
      decode_row(task.qk == kQkE4m3, task.k_codes + at, task.d_pad, t.k[n]);
    }
    if (task.v == kVBf16) {
      copy_row(task.v_real + at, task.d_pad, t.v[n]);
    } else if (task.v == kVFp4) {
      const int64_t group = (block * kTileBlock + n) / kMicroGroup;
      decode_fp4_row(task.v_codes + at / 2, task.v_micro + group * task.d_pad, 1, task.d_pad,
                     t.v[n]);
    } else {
      decode_row(task.v == kVE4m3, task.v_codes + at, task.d_pad, t.v[n]);
    }
  }
}

int valid_columns(const TileTask& task, int64_t block) {
  const int32_t* order = task.order + block * kTileBlock;
  int n = kTileBlock;
  while (n > 0 && order[n - 1] < 0) --n;
  return n;
}

// Which of a block's valid columns the mask allows, and how many.
int mask_columns(const TileTask& task, int64_t block, int n_valid, uint8_t* allowed) {
  const int32_t* order = task.order + block * kTileBlock;
  int count = 0;
  for (int n = 0; n < kTileBlock; ++n) {
    allowed[n] = n < n_valid && task.mask[order[n] / kTileBlock] != 0;
    count += allowed[n];
  }
  return count;
}

// The running and local orders restore means every 8 blocks.
void end_group(Scratch& t, const TileTask& task, int64_t block) {
  if (task.order_kind == kOrderPlain || task.order_kind == kOrderMeans) return;
  if (block % kGroup == kGroup - 1 || block == task.n_blocks - 1)
    restore_means(t, task, block / kGroup * kGroup);
}

void run_block(Scratch& t, const TileTask& task, int64_t block) {
  const int n_valid = valid_columns(task, block);
  uint8_t columns[kTileBlock];
  AllowedColumns allowed = nullptr;
  if (task.mask != nullptr) {
    const int count = mask_columns(task, block, n_valid, columns);
    if (count == 0) {
      end_group(t, task, block);
      return;
    }
    if (count < n_valid) allowed = columns;
  }
  decode_block(t, task, block);
  if (kHasDot4 && task.qk == kQkInt8) {
    scores_int8(t, task, task.k_codes + block * kTileBlock * task.d_pad);
  } else if (task.qk == kQkBf16) {
    scores_fp32<false>(t, task.qk_dims, nullptr);
  } else {
    scores_fp32<true>(t, task.qk_dims,
                      task.delta != nullptr ? task.delta + block * kTileBlock : nullptr);
  }
  if (allowed != nullptr) {
    block_maxima_of(t, allowed);
  } else {
    block_maxima(t);
  }
  block_factors(t, task, block, allowed);
  switch (task.p) {
    case kPExpCast:
      probabilities<kPExpCast>(t, task, n_valid, allowed);
      break;
    case kPCastE4m3:
      probabilities<kPCastE4m3>(t, task, n_valid, allowed);
      break;
    case kPCastU8:
      probabilities<kPCastU8>(t, task, n_valid, allowed);
      break;
    case kPFp32:
      probabilities<kPFp32>(t, task, n_valid, allowed);
      break;
    case kPFp4:
      fp4_probabilities<kPFp4>(t, task, n_valid, allowed);
      break;
    case kPFp4Folded:
      fp4_probabilities<kPFp4Folded>(t, task, n_valid, allowed);
      break;
  }
  accumulate_sums(t, task, block);
  switch (task.order_kind) {
    case kOrderPlain:
      accumulate_output<kOrderPlain>(t, task, block, n_valid);
      return;
    case kOrderMeans:
      accumulate_output<kOrderMeans>(t, task, block, n_valid);
      return;
    case kOrderLocal:
      accumulate_output<kOrderLocal>(t, task, block, n_valid);
      break;
    case kOrderRunning:
      accumulate_output<kOrderRunning>(t, task, block, n_valid);
      break;
  }
  end_group(t, task, block);
}

void finish(const Scratch& t, const TileTask& task) {
  const auto& o = task.order_kind == kOrderRunning ? t.mean : t.o;
  for (int row = 0; row < task.rows; ++row) {
    // Orders without groups keep l in one sum; adding three zeros changes nothing.
    const float l = (t.l[0][row] + t.l[1][row]) + (t.l[2][row] + t.l[3][row]);
    const float inverse = 1.0f / l;
    float* out = task.o + (int64_t)row * task.head_dim;
    task.l[row] = l;
    task.m_run[row] = t.m_run[row];
    if (t.m_run[row] == -__builtin_inff()) {  // a mask that leaves no key
      for (int d = 0; d < task.head_dim; ++d) out[d] = 0.0f;
      continue;
    }
    for (int d = 0; d < task.head_dim; ++d) out[d] = (o[d][row] * inverse) * task.s_v[d];
  }
}

}  // namespace

void VCA_CPU_RUN_TILE(const TileTask& task, void* scratch) {
  Scratch& t = *static_cast<Scratch*>(scratch);
  start(t, task);
  for (int64_t block = 0; block < task.n_blocks; ++block) run_block(t, task, block);
  finish(t, task);
}

}  // namespace vca::cpu
