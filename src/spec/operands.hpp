// SPDX-License-Identifier: Apache-2.0
// L1: what preprocessing makes of q, k and v, as flat arrays. The same bytes on every backend. The
// views point into memory that somebody else owns (a vector in the specification, the caller's
// workspace in the library).
//
//   keys and values of one (sub-problem, kv head), n_cols = 128 * n_blocks columns in gathered
//   order:
//
//     order        [n_cols]  int32   token of each column, -1 for a pad
//     k_codes      [n_cols][d_pad]   INT8 or E4M3 bytes; BF16 recipe: FP32 values in k_real
//                                    NVFP4: [n_cols][d_pad/2], two elements a byte (fp4.hpp)
//     k_micro      [n_cols][d_pad/16]  NVFP4: micro-scales of 16 channels
//     k_scale      [n_blocks][4]     scale of the columns n with (n mod 8) / 2 == g
//     v_codes      [n_cols][d_pad]   E4M3 or INT8 bytes; BF16 recipe: v_real
//                                    NVFP4: [n_cols][d_pad/2]
//     v_micro      [n_cols/16][d_pad]  NVFP4: micro-scales of 16 columns, by channel
//     mu           [n_blocks][d_pad] rounded block means in units of s_v (V-Smooth), exact in BF16
//     v_scale      [n_blocks][d_pad] vc8-hq: scale of the INT8 residual, in units of s_v
//     s_v          [d_pad]           channel scale
//     k_offset     [d_pad]           the K mean that was taken out (zero without)
//     k_real       [n_cols][d_pad]   BF16 recipe; with q means: keys / k_scale before rounding,
//                                    from which the scores of the means are made
//
//   queries of one (sub-problem, query head):
//
//     q_codes      [rows][d_pad]     INT8 or E4M3 bytes; BF16 recipe: q_real
//     q_scale      [ceil(rows/16)][8] scale a = RN(RN(c*amax/127) ...) of rows {16w+r, 16w+r+8}:
//     see q_unit qk_offset    [rows]            scale * (q . k_offset), for LSE
//     q_micro      [rows][d_pad/16]  NVFP4: micro-scales; q_codes are [rows][d_pad/2] then
//     q_mean       [ceil(rows/128)][d_pad]  with q means: mean of 128 rows, in units of q_scale
#pragma once

#include <cstdint>
#include <vector>

#include "spec/problem.hpp"

namespace vca::spec {

struct KvOperands {
  int64_t n_valid = 0;
  int64_t n_blocks = 0;
  int d_pad = 0;
  int32_t* order = nullptr;
  uint8_t* k_codes = nullptr;
  float* k_scale = nullptr;
  uint8_t* v_codes = nullptr;
  float* mu = nullptr;
  float* v_scale = nullptr;
  float* s_v = nullptr;
  float* k_offset = nullptr;
  float* k_real = nullptr;  // bf16 recipe, and recipes with q means
  float* v_real = nullptr;
  uint8_t* k_micro = nullptr;
  uint8_t* v_micro = nullptr;
  // Scalars, kept in memory as well so that a workspace is self-contained.
  struct Stats {
    float max_k_scale;     // largest k_scale (bf16 recipe: largest |k|)
    float energy_removed;  // f, NaN where undefined
    float f_g;             // deciding f of the grouping
    int32_t grouping_used;
  }* stats = nullptr;

  int64_t n_cols() const { return n_blocks * kBlock; }
};

struct QOperands {
  int64_t rows = 0;
  int d_pad = 0;
  uint8_t* q_codes = nullptr;
  float* q_scale = nullptr;    // [ceil(rows/16)*8] raw scales amax/127 (or /448), uncapped
  float* qk_offset = nullptr;  // NULL when LSE is not asked for
  float* q_real = nullptr;     // bf16 recipe only
  // One value (bf16 recipe: largest |q|; with q means: plus the largest |mean| over 2688).
  float* max_q_scale = nullptr;
  uint8_t* q_micro = nullptr;
  float* q_mean = nullptr;
  // Of the head's block mask: the row of query block 0, null without a mask; see Problem::mask_row.
  const uint8_t* mask = nullptr;
  int64_t mask_pitch = 0, mask_begin = 0;  // blocks of keys; the sub-problem's q_begin
  // Row of q_mean that belongs to a row; null: row / 128. Set where rows are picked out.
  const int32_t* mean_of_row = nullptr;

  const uint8_t* mask_row(int64_t row) const {
    return mask != nullptr ? mask + (mask_begin + row) / kBlock * mask_pitch : nullptr;
  }
  int64_t mean_row(int64_t row) const {
    return mean_of_row != nullptr ? mean_of_row[row] : row / kBlock;
  }
};

// Sizes in elements of each array, 0 for the arrays a recipe does not have. One place, so that the
// specification's vectors, the workspace formula and the device layouts agree.
struct KvSizes {
  int64_t order, k_codes, k_scale, v_codes, mu, v_scale, s_v, k_offset, k_real, v_real, k_micro,
      v_micro;
};
struct QSizes {
  int64_t q_codes, q_scale, qk_offset, q_real, max_q_scale, q_micro, q_mean;
};
KvSizes kv_sizes(const Recipe& r, int64_t n_blocks, int d_pad);
QSizes q_sizes(const Recipe& r, int64_t rows, int d_pad, bool lse);

// Owning versions, for the specification and its tests. Not movable: the views point into them.
struct OwnedKv {
  OwnedKv() = default;
  OwnedKv(const OwnedKv&) = delete;
  OwnedKv& operator=(const OwnedKv&) = delete;
  KvOperands view;
  std::vector<int32_t> i32;
  std::vector<uint8_t> bytes;
  std::vector<float> f32;
  KvOperands::Stats stats{};
};
struct OwnedQ {
  OwnedQ() = default;
  OwnedQ(const OwnedQ&) = delete;
  OwnedQ& operator=(const OwnedQ&) = delete;
  QOperands view;
  std::vector<uint8_t> bytes;
  std::vector<float> f32;
  std::vector<int32_t> mean_of_row;  // sampled rows only, with the means of the whole head
  std::vector<float> means;
};
void allocate(const Recipe& r, int64_t n_valid, int64_t n_blocks, int d_pad, OwnedKv& out);
void allocate(const Recipe& r, int64_t rows, int d_pad, bool lse, OwnedQ& out);

// ---- preprocessing (prepare.cpp) ----

// Mean of K over every 16th (or every) valid row, after RoPE, before Hadamard; zero for recipes
// without.
void compute_k_offset(const Problem& p, const SubProblem& sub, int64_t kv_head, float* k_offset);

// Fills every array of `out` from an order of the valid tokens (one permutation a segment).
void prepare_kv(const Problem& p, const SubProblem& sub, int64_t kv_head,
                const std::vector<std::vector<int64_t>>& order_by_segment, KvOperands& out);

// Queries [q_begin, q_begin + q_len) of the sub-problem. k_offset: of the kv head that this query
// head reads.
void prepare_q(const Problem& p, const SubProblem& sub, int64_t q_head, const float* k_offset,
               QOperands& out);

// Puts the head's block mask, if the problem has one, beside its operands: prepared operands hold
// no mask, attention reads the caller's.
void bind_mask(const Problem& p, const SubProblem& sub, int64_t q_head, QOperands& q);

// The exponent e of docs/numerics.md B6: smallest integer >= 0 with
// 2^-e * A * qmax * kmax * d_pad < 2^23.
int overflow_exponent(const Problem& p, float max_q_scale, float max_k_scale);

// Query factor of a row: RN(code_scale * q_scale) * 2^-e. The factor of a score is a =
// RN(query_unit * k_scale[g]).
float query_unit(const Problem& p, const QOperands& q, int64_t row, int e);

// Scores of the mean of 128 query rows against the keys of a block, in units of q_scale * k_scale:
// out[n] = sum over channels, ascending, each product and sum rounded to FP32. It is what the score
// accumulators of those rows start from (docs/numerics.md B13). mean: one row of q_mean.
void mean_scores(const KvOperands& kv, const float* mean, int64_t block, float* out /*[kBlock]*/);

// Group index 0..3 of column n.
constexpr int k_group(int64_t n) { return static_cast<int>((n % 8) / 2); }

}  // namespace vca::spec
