// SPDX-License-Identifier: Apache-2.0
// What an attention kernel is given: plain data, by value, on the device and in the emulator.
#pragma once

#include <cstdint>

namespace vca::kernels {

// One sub-problem (a batch, or a sequence of a ragged batch). Lives in global memory.
struct SubInfo {
  int64_t q_tile_base;    // first 128-row tile of its head 0, in the Q operand
  int64_t kv_block_base;  // first 128-key block of its kv head 0, in the K and V operands
  int64_t mu_group_base;  // first group of 8 blocks of its kv head 0
  // From one kv head to the next: capacities, since n_blocks may be known on the device only.
  int64_t kv_block_stride;
  int64_t mu_group_stride;
  int64_t batch;
  int64_t q_begin;  // first query row in the caller's tensor
  int64_t q_len;
  int64_t valid_base;  // block 0 in block_valid
  int32_t n_q_tiles;
  int32_t n_blocks;  // 0: nothing to attend to; the kernel leaves such rows to zero_rows
};

enum class OutType : int32_t { bf16 = 0, fp16 = 1, fp32 = 2 };

struct AttentionParams {
  // T128 operands (docs/architecture.md): Q tiles of 128 rows, K tiles of 128 keys, V tiles with
  // indicator rows, mean tiles of 8 blocks; each tile 1 KiB aligned.
  const uint8_t* q_tiles;
  const uint8_t* k_tiles;
  const uint8_t* v_tiles;
  const uint8_t* mu_tiles;
  const float* q_unit;   // [q tile][8][8]: RN(c * q_scale) * 2^-e of rows {16w + r, 16w + r + 8}
  const float* k_scale;  // [kv block][4]
  const float* s_v;      // [sub][h_kv][d_pad]
  const int32_t* block_valid;  // [sub's valid_base + block]: valid columns, the same for all heads
  const int32_t* exponent;     // [sub][h_q]: e, for LSE
  const float* qk_offset;      // [q tile][128] or null
  const SubInfo* subs;
  void* o;
  int64_t o_stride_b, o_stride_h, o_stride_s;  // elements
  float* lse;                                  // [B, H_q, S_q] or null
  int64_t lse_s;                               // S_q
  int32_t n_subs, h_q, h_kv;
  int32_t max_q_tiles;  // over sub-problems
  int32_t head_dim;     // columns to store
  OutType o_type;
  float top;        // code units at the maximum: 126, 119.65
  float log_p_max;  // ln p_of_maximum, for LSE
  // 2^(-k/128), k = 0..127: spec::kExp2FractionBits. ex2.approx is not it: measured on an H200
  // (driver 580.159.04), 11,718 of the 16,129 rescale arguments differ by an ulp.
  float exp2_fraction[128];
};

}  // namespace vca::kernels
