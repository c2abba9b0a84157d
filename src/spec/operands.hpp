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
//     k_scale      [n_blocks][4]     scale of the columns n with (n mod 8) / 2 == g
//     v_codes      [n_cols][d_pad]   E4M3 or INT8 bytes; BF16 recipe: v_real
//     mu           [n_blocks][d_pad] rounded block means in units of s_v (V-Smooth), exact in BF16
//     v_scale      [n_blocks][d_pad] vc8-hq: scale of the INT8 residual, in units of s_v
//     s_v          [d_pad]           channel scale
//     k_offset     [d_pad]           the K mean that was taken out (zero without)
//
//   queries of one (sub-problem, query head):
//
//     q_codes      [rows][d_pad]     INT8 or E4M3 bytes; BF16 recipe: q_real
//     q_scale      [ceil(rows/16)][8] scale a = RN(RN(c*amax/127) ...) of rows {16w+r, 16w+r+8}:
//     see q_unit qk_offset    [rows]            scale * (q . k_offset), for LSE
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
  float* k_real = nullptr;  // bf16 recipe only
  float* v_real = nullptr;
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
  float* q_scale = nullptr;      // [ceil(rows/16)*8] raw scales amax/127 (or /448), uncapped
  float* qk_offset = nullptr;    // NULL when LSE is not asked for
  float* q_real = nullptr;       // bf16 recipe only
  float* max_q_scale = nullptr;  // one value (bf16 recipe: largest |q|)
};

// Sizes in elements of each array, 0 for the arrays a recipe does not have. One place, so that the
// specification's vectors, the workspace formula and the device layouts agree.
struct KvSizes {
  int64_t order, k_codes, k_scale, v_codes, mu, v_scale, s_v, k_offset, k_real, v_real;
};
struct QSizes {
  int64_t q_codes, q_scale, qk_offset, q_real, max_q_scale;
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

// The exponent e of docs/numerics.md B6: smallest integer >= 0 with
// 2^-e * A * qmax * kmax * d_pad < 2^23.
int overflow_exponent(const Problem& p, float max_q_scale, float max_k_scale);

// Query factor of a row: RN(code_scale * q_scale) * 2^-e. The factor of a score is a =
// RN(query_unit * k_scale[g]).
float query_unit(const Problem& p, const QOperands& q, int64_t row, int e);

// Group index 0..3 of column n.
constexpr int k_group(int64_t n) { return static_cast<int>((n % 8) / 2); }

}  // namespace vca::spec
