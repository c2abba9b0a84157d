// SPDX-License-Identifier: Apache-2.0
#include "spec/diagnose.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "spec/codes.hpp"
#include "spec/fp4.hpp"
#include "spec/value_stats.hpp"

namespace vca::spec {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// num / den with 0 / 0 = 0 (nothing went wrong) and x / 0 undefined.
double share(double num, double den) {
  if (!std::isfinite(num) || !std::isfinite(den)) return kNaN;
  if (den > 0) return num / den;
  return num == 0 ? 0.0 : kNaN;
}

// The own scores of a row in code units, as FP64: the product that the code's FMA sees is exact.
std::vector<double> own_scores(const Problem& p, const KvOperands& kv, const QOperands& q,
                               int64_t row, const int32_t* s) {
  std::vector<float> a(static_cast<size_t>(kv.n_blocks * 4));
  score_factors(p, kv, q, row, a.data());
  std::vector<double> t(static_cast<size_t>(kv.n_cols()));
  for (int64_t n = 0; n < kv.n_cols(); ++n) {
    const double score = p.recipe->integer_scores()
                             ? static_cast<double>(s[n])
                             : static_cast<double>(std::bit_cast<float>(s[n]));
    t[static_cast<size_t>(n)] =
        score * static_cast<double>(a[static_cast<size_t>(n / kBlock * 4 + k_group(n))]);
  }
  return t;
}

// Scores to probabilities, in place; pads get 0.
void softmax_of_codes(const KvOperands& kv, std::vector<double>& t) {
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t n = 0; n < kv.n_cols(); ++n)
    if (kv.order[n] >= 0) max = std::max(max, t[static_cast<size_t>(n)]);
  double sum = 0;
  for (int64_t n = 0; n < kv.n_cols(); ++n) {
    double& x = t[static_cast<size_t>(n)];
    x = kv.order[n] >= 0 ? std::exp2((x - max) / 8) : 0.0;
    sum += x;
  }
  for (double& x : t) x /= sum;
}

// Three weighted sums of the values of a row, over all blocks.
struct ValueSums {
  double own[kMaxHeadDim] = {};     // softmax of the own scores, exact V
  double mapped[kMaxHeadDim] = {};  // the recipe's P, exact V
  double coded[kMaxHeadDim] = {};   // exact softmax, dequantised V in units of s_v
};

// What one stored value is worth before its block scale, as FP32.
inline float stored_value(const Recipe& r, const KvOperands& kv, int64_t at) {
  if (r.fp4_v()) return dequantised_value(r, kv, at / kv.d_pad, static_cast<int>(at % kv.d_pad));
  if (r.v == VFormat::bf16) return kv.v_real[at];
  return r.v == VFormat::int8_smooth ? static_cast<float>(static_cast<int8_t>(kv.v_codes[at]))
                                     : e4m3_decode(kv.v_codes[at]);
}

// One block. A compile-time width, because three multiply-adds per key and channel are where the
// time goes. weight: P * W / L.
template <int D>
void add_block(const Recipe& r, const KvOperands& kv, int64_t j, const double* own,
               const double* weight, const double* prob, const float* values, ValueSums& sums) {
  double coded[D] = {};
  double mass = 0;
  for (int64_t n = j * kBlock; n < (j + 1) * kBlock; ++n) {
    const int64_t token = kv.order[n];
    if (token < 0) continue;
    const float* v = values + token * D;
    const double own_n = own[n], mapped_n = weight[n], prob_n = prob[token];
    float decoded[D];
    for (int i = 0; i < D; ++i) decoded[i] = stored_value(r, kv, n * D + i);
    for (int i = 0; i < D; ++i) {
      const double x = v[i];
      sums.own[i] += own_n * x;
      sums.mapped[i] += mapped_n * x;
      coded[i] += prob_n * static_cast<double>(decoded[i]);
    }
    mass += prob_n;
  }
  for (int i = 0; i < D; ++i) {
    if (r.v == VFormat::int8_smooth) coded[i] *= kv.v_scale[j * D + i];
    if (r.v_smooth()) coded[i] += mass * kv.mu[j * D + i];
    sums.coded[i] += coded[i];
  }
}

}  // namespace

double RowDiagnosis::relative_error() const {
  return share(std::sqrt(error_sq), std::sqrt(exact_sq));
}

Diagnosis summarise(std::span<const RowDiagnosis> rows) {
  Diagnosis d{kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN};
  if (rows.empty()) return d;
  RowDiagnosis sum;
  d.worst_row = d.tv_max = d.tau_max = 0;
  const auto take_max = [](double& into, double x) { into = x > into || x != x ? x : into; };
  for (const RowDiagnosis& row : rows) {
    sum.exact_sq += row.exact_sq;
    sum.output_sq += row.output_sq;
    sum.dot += row.dot;
    sum.error_sq += row.error_sq;
    sum.own_sq += row.own_sq;
    sum.qk_sq += row.qk_sq;
    sum.p_sq += row.p_sq;
    sum.v_sq += row.v_sq;
    sum.tv += row.tv;
    sum.tau += row.tau;
    take_max(d.worst_row, row.relative_error());
    take_max(d.tv_max, row.tv);
    take_max(d.tau_max, row.tau);
  }
  const double exact = std::sqrt(sum.exact_sq), n = static_cast<double>(rows.size());
  d.rel_l2 = share(std::sqrt(sum.error_sq), exact);
  d.qk_only = share(std::sqrt(sum.qk_sq), exact);
  d.p_only = share(std::sqrt(sum.p_sq), std::sqrt(sum.own_sq));
  d.v_only = share(std::sqrt(sum.v_sq), exact);
  const double norms = std::sqrt(sum.exact_sq * sum.output_sq);
  d.cosine = norms > 0 && std::isfinite(norms) ? sum.dot / norms : kNaN;
  d.tv_mean = sum.tv / n;
  d.tau_mean = sum.tau / n;
  return d;
}

std::vector<int64_t> evenly_spread(int64_t n, int64_t count) {
  if (count <= 0 || count > n) count = n;
  std::vector<int64_t> rows(static_cast<size_t>(count));
  // floor((2i + 1) n / (2 count)) in 128 bits: n may be anything.
  for (int64_t i = 0; i < count; ++i)
    rows[static_cast<size_t>(i)] =
        static_cast<int64_t>(static_cast<__int128>(2 * i + 1) * n / (2 * count));
  return rows;
}

ExactRows exact_rows(const Problem& p, const SubProblem& sub, int64_t q_head,
                     std::span<const int64_t> rows) {
  ExactRows out;
  out.rows.assign(rows.begin(), rows.end());
  out.o.assign(rows.size() * static_cast<size_t>(p.d), 0.0);
  out.prob.assign(rows.size() * static_cast<size_t>(p.s_kv), 0.0);
  std::vector<double> prob(static_cast<size_t>(sub.n_valid()));
  for (size_t i = 0; i < rows.size(); ++i) {
    exact_row(p, sub, q_head, sub.q_begin + rows[i], out.o.data() + i * static_cast<size_t>(p.d),
              nullptr, prob.data());
    size_t at = 0;
    double* by_token = out.prob.data() + i * static_cast<size_t>(p.s_kv);
    for (const auto& segment : sub.segments)
      for (const int64_t token : segment) by_token[token] = prob[at++];
  }
  return out;
}

std::vector<float> value_rows(const Problem& p, const SubProblem& sub, int64_t kv_head) {
  std::vector<float> values(static_cast<size_t>(p.s_kv * p.d_pad), 0.0f);
  for (const auto& segment : sub.segments)
    for (const int64_t token : segment)
      p.v.load_row(sub.batch, kv_head, token, values.data() + token * p.d_pad);
  return values;
}

void sample_queries(const Problem& p, const QOperands& q, std::span<const int64_t> rows,
                    OwnedQ& out) {
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t slots = count == 0 ? 0 : sample_slot(count - 1) + 1;
  allocate(*p.recipe, slots, p.d_pad, q.qk_offset != nullptr, out);
  if (q.q_mean != nullptr) {
    out.mean_of_row.assign(static_cast<size_t>(slots), 0);
    out.means.assign(q.q_mean, q.q_mean + (q.rows + kBlock - 1) / kBlock * q.d_pad);
    out.view.q_mean = out.means.data();
    out.view.mean_of_row = out.mean_of_row.data();
  }
  for (int64_t c = 0; c < count; ++c) {
    const int64_t from = rows[static_cast<size_t>(c)], to = sample_slot(c);
    if (q.q_real != nullptr) {
      std::copy_n(q.q_real + from * p.d_pad, p.d_pad, out.view.q_real + to * p.d_pad);
    } else {
      const int64_t row_bytes = q.q_micro != nullptr ? p.d_pad / 2 : p.d_pad;
      std::copy_n(q.q_codes + from * row_bytes, row_bytes, out.view.q_codes + to * row_bytes);
    }
    const int64_t groups = p.d_pad / kMicroGroup;
    if (q.q_micro != nullptr)
      std::copy_n(q.q_micro + from * groups, groups, out.view.q_micro + to * groups);
    if (q.q_mean != nullptr)
      out.mean_of_row[static_cast<size_t>(to)] = static_cast<int32_t>(q.mean_row(from));
    out.view.q_scale[to / 16 * 8 + to % 8] = q.q_scale[from / 16 * 8 + from % 8];
    if (q.qk_offset != nullptr) out.view.qk_offset[to] = q.qk_offset[from];
  }
  // Of the whole head: it decides the overflow exponent.
  *out.view.max_q_scale = *q.max_q_scale;
}

RowTraces::RowTraces(const Problem& problem, const KvOperands& kv, int64_t nrows)
    : n_cols(kv.n_cols()), n_blocks(kv.n_blocks), d(problem.d) {
  const auto cols = static_cast<size_t>(nrows * n_cols);
  const auto blocks = static_cast<size_t>(nrows * n_blocks);
  s.resize(cols);
  codes.resize(cols);
  p.resize(cols);
  m.resize(blocks);
  m_run.resize(blocks);
  r.resize(blocks);
  o.resize(static_cast<size_t>(nrows * d));
  l.resize(static_cast<size_t>(nrows));
}

RowOutputs RowTraces::outputs() {
  RowOutputs out;
  out.s = s.data();
  out.m = m.data();
  out.m_run = m_run.data();
  out.codes = codes.data();
  out.p = p.data();
  out.r = r.data();
  out.o = o.data();
  out.l = l.data();
  return out;
}

RowDiagnosis diagnose_row(const Problem& p, const KvOperands& kv, const QOperands& q, int64_t row,
                          const RowTraces& traces, int64_t trace, const ExactRows& exact,
                          int64_t exact_index, const float* values, RowCurves* curves,
                          int64_t* histogram) {
  const Recipe& r = *p.recipe;
  const int64_t n_cols = kv.n_cols(), n_blocks = kv.n_blocks;
  const int32_t* s = traces.s.data() + trace * n_cols;
  const uint8_t* codes = traces.codes.data() + trace * n_cols;
  const float* p_value = traces.p.data() + trace * n_cols;
  const float* m = traces.m.data() + trace * n_blocks;
  const float* r_block = traces.r.data() + trace * n_blocks;
  const float* o = traces.o.data() + trace * traces.d;
  const double* o_exact = exact.o.data() + exact_index * p.d;
  const double* prob = exact.prob.data() + exact_index * p.s_kv;

  std::vector<double> own = own_scores(p, kv, q, row, s);
  softmax_of_codes(kv, own);

  // W_j / L: what a unit of P in block j is worth in the output.
  std::vector<double> worth(static_cast<size_t>(n_blocks));
  double denominator = 0;
  for (int64_t j = 0; j < n_blocks; ++j) {
    const double m_final = traces.m_run[static_cast<size_t>((trace + 1) * n_blocks - 1)];
    worth[static_cast<size_t>(j)] = std::exp2((static_cast<double>(m[j]) - m_final) / 8);
    denominator += worth[static_cast<size_t>(j)] * r_block[j];
  }
  for (double& w : worth) w /= denominator;

  RowDiagnosis out;
  ValueSums sums;
  std::vector<double> weight(static_cast<size_t>(n_cols), 0.0);
  for (int64_t j = 0; j < n_blocks; ++j) {
    const double w = worth[static_cast<size_t>(j)];
    double sum_p = 0;
    for (int64_t n = j * kBlock; n < (j + 1) * kBlock; ++n) {
      if (kv.order[n] < 0) continue;
      const auto at = static_cast<size_t>(n);
      weight[at] = w * p_value[n];
      sum_p += p_value[n];
      out.tv += 0.5 * std::fabs(weight[at] - own[at]);
      if (codes[n] == 0) out.tau += own[at];
      if (histogram != nullptr && r.has_codes()) ++histogram[codes[n]];
    }
    if (kv.d_pad == 64)
      add_block<64>(r, kv, j, own.data(), weight.data(), prob, values, sums);
    else
      add_block<128>(r, kv, j, own.data(), weight.data(), prob, values, sums);
    // The mean comes back with the block's sum r, not with the sum of its P: they differ in recipes
    // with FP32 sums, and that difference is P's fault.
    if (r.v_smooth())
      for (int i = 0; i < p.d; ++i)
        sums.mapped[i] +=
            w * (r_block[j] - sum_p) *
            (static_cast<double>(kv.mu[j * kv.d_pad + i]) * static_cast<double>(kv.s_v[i]));
  }
  if (!r.has_codes() && !r.fp4_p()) out.tv = out.tau = kNaN;

  const auto square = [](double x) { return x * x; };
  for (int i = 0; i < p.d; ++i) {
    const double value = o[i], reference = o_exact[i];
    const double coded = sums.coded[i] * static_cast<double>(kv.s_v[i]);
    out.exact_sq += square(reference);
    out.output_sq += square(value);
    out.dot += value * reference;
    out.error_sq += square(value - reference);
    out.own_sq += square(sums.own[i]);
    out.qk_sq += square(sums.own[i] - reference);
    out.p_sq += square(sums.mapped[i] - sums.own[i]);
    out.v_sq += square(coded - reference);
  }
  if (curves != nullptr) {
    curves->own.assign(static_cast<size_t>(p.s_kv), 0.0);
    curves->mapped.assign(static_cast<size_t>(p.s_kv), 0.0);
    for (int64_t n = 0; n < n_cols; ++n) {
      if (kv.order[n] < 0) continue;
      curves->own[static_cast<size_t>(kv.order[n])] = own[static_cast<size_t>(n)];
      curves->mapped[static_cast<size_t>(kv.order[n])] = weight[static_cast<size_t>(n)];
    }
  }
  return out;
}

std::vector<RowDiagnosis> diagnose_head(const Problem& p, const SubProblem& sub,
                                        const KvOperands& kv, int64_t q_head, Target target,
                                        std::span<const int64_t> rows) {
  OwnedQ all;
  allocate(*p.recipe, sub.q_len, p.d_pad, false, all);
  prepare_q(p, sub, q_head, kv.k_offset, all.view);
  OwnedQ sampled;
  sample_queries(p, all.view, rows, sampled);
  const std::vector<float> values = value_rows(p, sub, p.kv_head(q_head));
  std::vector<RowDiagnosis> out(rows.size());
  const auto count = static_cast<int64_t>(rows.size());
#pragma omp parallel for schedule(dynamic)
  for (int64_t c0 = 0; c0 < count; c0 += 8) {
    const int64_t n = std::min<int64_t>(8, count - c0);
    const ExactRows exact =
        exact_rows(p, sub, q_head, rows.subspan(static_cast<size_t>(c0), static_cast<size_t>(n)));
    RowTraces traces(p, kv, n);
    attention_rows(p, kv, sampled.view, target, sample_slot(c0), n, nullptr, traces.outputs());
    for (int64_t i = 0; i < n; ++i)
      out[static_cast<size_t>(c0 + i)] =
          diagnose_row(p, kv, sampled.view, sample_slot(c0 + i), traces, i, exact, i, values.data(),
                       nullptr, nullptr);
  }
  return out;
}

}  // namespace vca::spec
