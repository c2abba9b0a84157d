// SPDX-License-Identifier: Apache-2.0
// Where a recipe's error comes from: for single query rows, the error of the output and of each of
// its three stages, and what the map to 8-bit probabilities did. Definitions, with s the recipe's
// own scores a * (q . k) in code units, in docs/reading-the-report.md; in short
//
//   o*    FP64 attention on the stored inputs           o      the recipe's output (FP32)
//   o_qk  softmax of the own scores in FP64, exact V    o_p    the recipe's P and sums, exact V
//   o_v   exact softmax, the recipe's dequantised V
//   error |o - o*|   QK-only |o_qk - o*|   P-only |o_p - o_qk|   V-only |o_v - o*|
//   TV = 1/2 sum_n |P_n W / L - softmax_n|   tau = softmax mass of the keys whose code is 0
//
// Everything is FP64 and depends on the row alone, so the thread count cannot change a digit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "spec/attention.hpp"
#include "spec/operands.hpp"
#include "spec/target.hpp"

namespace vca::spec {

// Sums over the channels of one row. tv and tau are NaN where the recipe has no codes.
struct RowDiagnosis {
  double exact_sq = 0;   // |o*|^2
  double output_sq = 0;  // |o|^2
  double dot = 0;        // o . o*
  double error_sq = 0;   // |o - o*|^2
  double own_sq = 0;     // |o_qk|^2
  double qk_sq = 0;      // |o_qk - o*|^2
  double p_sq = 0;       // |o_p - o_qk|^2
  double v_sq = 0;       // |o_v - o*|^2
  double tv = 0;
  double tau = 0;

  // |o - o*| / |o*|: 0 when both are zero, NaN when only o* is.
  double relative_error() const;
};

// Over all rows given. NaN where undefined: no rows, a zero reference with a non-zero error, values
// that are not finite, no codes.
struct Diagnosis {
  double rel_l2, worst_row, cosine;
  double qk_only, p_only, v_only;
  double tv_mean, tv_max, tau_mean, tau_max;
};
Diagnosis summarise(std::span<const RowDiagnosis> rows);

// `count` of [0, n), evenly spread: the middle of each of `count` equal parts. All when count <= 0
// or count >= n.
std::vector<int64_t> evenly_spread(int64_t n, int64_t count);

// What every recipe's rows of one query head are compared with, for a list of rows (relative to
// sub.q_begin). Memory: rows * s_kv.
struct ExactRows {
  std::vector<int64_t> rows;
  std::vector<double> o;     // [rows][d]
  std::vector<double> prob;  // [rows][s_kv] by token; 0 for masked tokens
};
ExactRows exact_rows(const Problem& p, const SubProblem& sub, int64_t q_head,
                     std::span<const int64_t> rows);

// V of a head as FP32, [s_kv][d_pad] by token.
std::vector<float> value_rows(const Problem& p, const SubProblem& sub, int64_t kv_head);

// Some rows of a head's query operands as operands of their own, so that attention_rows can take
// them together: sampled row c stands at row slot(c) = 16 * (c / 8) + c % 8, where it does not
// share its scale with another one.
void sample_queries(const Problem& p, const QOperands& q, std::span<const int64_t> rows,
                    OwnedQ& out);
constexpr int64_t sample_slot(int64_t c) { return c / 8 * 16 + c % 8; }

// Traces of some rows: what attention_rows writes and diagnose_row reads.
class RowTraces {
 public:
  RowTraces(const Problem& p, const KvOperands& kv, int64_t nrows);
  RowOutputs outputs();

  int64_t n_cols, n_blocks;
  int d;
  std::vector<int32_t> s;
  std::vector<uint8_t> codes;
  std::vector<float> m, m_run, p, r, o, l;
};

// What a chart needs of a single row beside its figures, by token.
struct RowCurves {
  std::vector<double> own;     // softmax of the recipe's own scores
  std::vector<double> mapped;  // P * W / L
};

// Row `row` of `q`, whose traces are number `trace` of `traces` and whose reference is number
// `exact_index` of `exact`. `curves` may be null. If `histogram` is not null, histogram[c] counts
// the valid keys with code c (256 entries, added to).
RowDiagnosis diagnose_row(const Problem& p, const KvOperands& kv, const QOperands& q, int64_t row,
                          const RowTraces& traces, int64_t trace, const ExactRows& exact,
                          int64_t exact_index, const float* values, RowCurves* curves,
                          int64_t* histogram);

// The whole way for one query head of a sub-problem: prepares the queries, runs the rows, diagnoses
// them. For tests; the command does the same steps with its own threads.
std::vector<RowDiagnosis> diagnose_head(const Problem& p, const SubProblem& sub,
                                        const KvOperands& kv, int64_t q_head, Target target,
                                        std::span<const int64_t> rows);

}  // namespace vca::spec
