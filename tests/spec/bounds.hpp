// SPDX-License-Identifier: Apache-2.0
// How far a row of a recipe may lie from FP64 attention: its scores within F10, and its output and
// LSE within what those scores, the map (F1 to F3) and the stored values allow. Never exceeded,
// whatever the data.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "spec/arith.hpp"
#include "spec/hadamard.hpp"
#include "spec/heads.hpp"
#include "spec/score_rows.hpp"
#include "spec/value_stats.hpp"

namespace vca::test {

inline void expect_same(const Traced& a, const Traced& b, const std::string& what) {
  EXPECT_EQ(a.s, b.s) << what;
  EXPECT_EQ(a.codes, b.codes) << what;
  EXPECT_EQ(a.m, b.m) << what;
  EXPECT_EQ(a.m_run, b.m_run) << what;
  EXPECT_EQ(a.r, b.r) << what;
  EXPECT_EQ(a.o, b.o) << what;
  EXPECT_EQ(a.l, b.l) << what;
  EXPECT_EQ(a.lse, b.lse) << what;
}

inline std::string label(const spec::Recipe& r, spec::Target target) {
  return std::string(r.name) + " " + std::string(to_string(target));
}

struct RowBound {
  double score = 0;            // nats: largest deviation of a key's own score
  double score_use = 0;        // the same as a part of the key's bound (F10): at most 1
  double lse_low = 0;          // exact - lse <= lse_low
  double lse_high = 0;         // lse - exact <= lse_high
  std::vector<double> output;  // [d] |o - exact|
};

// Largest |decoded - x| of one element in a format with this scale; amax: of its micro-group.
//
// NVFP4, in units of the micro-scale s: half a step is at most a fifth of elements from 1 up and
// 1/4 below. s is at most amax/4 (1 + 1/16) and, normal, at least amax/6 (1 - 1/17), so 1/4 of it
// is below amax/15 and what saturates at 6s is below amax/17. A subnormal scale is off by up to
// 2^-10, six of which saturate; and a scale that vanishes belongs to a group below 6 * 2^-10.
inline double element_error(spec::QkFormat format, double x, double scale, double amax) {
  switch (format) {
    case spec::QkFormat::nvfp4:
      return std::max(std::fabs(x) / 5, amax / 15) + 6.5 * 0x1p-10 * scale;
    case spec::QkFormat::int8:
      return scale / 2;
    case spec::QkFormat::bf16:
      return std::fabs(x) * 0x1p-8;
    default:  // E4M3: half a step of three bits, or of the smallest subnormal
      return std::max(std::fabs(x) / 16, scale * 0x1p-10);
  }
}

// sum |P W / L - softmax(own)| of NVFP4 P with FP32 sums. Rounding to E2M1 moves an element by at
// most a fifth of itself or, below 1, by a quarter of the micro-scale, amax/22 of its group; never
// by more than itself; saturation by 1/17. A group whose scale is subnormal (its largest P below 6
// * 2^-6) is counted as lost. own: exp(score - maximum) by column, 0 for pads.
inline double nvfp4_map_bound(const spec::Recipe& r, const std::vector<double>& own, double total) {
  const double smallest = 6 * 0x1p-6 / std::exp2(static_cast<double>(r.top) / 8);
  double sum = 0;
  for (size_t n0 = 0; n0 < own.size(); n0 += spec::kMicroGroup) {
    const double amax =
        *std::max_element(own.begin() + static_cast<std::ptrdiff_t>(n0),
                          own.begin() + static_cast<std::ptrdiff_t>(n0) + spec::kMicroGroup);
    for (size_t n = n0; n < n0 + spec::kMicroGroup; ++n)
      sum += amax < smallest ? own[n] : std::min(own[n], std::max(own[n] / 5, amax / 22));
  }
  return sum / total;
}

// Row `row` of the prepared queries, traced as number `i` of `t`.
inline RowBound row_bound(const spec::Problem& p, const spec::SubProblem& sub, int64_t q_head,
                          const spec::KvOperands& kv, const spec::QOperands& q, const Traced& t,
                          int64_t i, int64_t row, spec::Target target) {
  using namespace spec;
  const Recipe& r = *p.recipe;
  const int e = overflow_exponent(p, *q.max_q_scale, kv.stats->max_k_scale);
  float x[kMaxHeadDim] = {}, k[kMaxHeadDim];
  p.q.load_row(sub.batch, q_head, sub.q_begin + row, x);
  p.rope.apply(sub.q_begin + row, x);
  if (p.hadamard) hadamard_row(x, p.d_pad);
  if (p.negate_q())
    for (float& value : x) value = -value;
  float quantised_q[kMaxHeadDim];  // without the mean, where it is taken out
  std::copy_n(x, kMaxHeadDim, quantised_q);
  for (int c = 0; q.q_mean != nullptr && c < p.d_pad; ++c)
    quantised_q[c] -= q.q_mean[q.mean_row(row) * p.d_pad + c] * q.q_scale[0];
  const auto group_amax = [&](const float* values, int c) {
    double amax = 0;
    for (int i = c / kMicroGroup * kMicroGroup; i < c / kMicroGroup * kMicroGroup + kMicroGroup;
         ++i)
      amax = std::max(amax, static_cast<double>(std::fabs(values[i])));
    return amax;
  };
  const double step_q = q.q_scale[row / 16 * 8 + row % 8];
  const double nats = std::fabs(p.scale) / (p.hadamard ? p.d_pad : 1);

  RowBound out;
  std::vector<float> a(static_cast<size_t>(kv.n_blocks * 4));
  score_factors(p, kv, q, row, a.data());
  const auto cols = static_cast<size_t>(kv.n_cols());
  std::vector<double> own(cols, 0.0), truth(cols, 0.0);  // nats
  double own_max = -INFINITY, truth_max = -INFINITY;
  for (int64_t n = 0; n < kv.n_cols(); ++n) {
    if (kv.order[n] < 0) continue;
    std::fill(k, k + kMaxHeadDim, 0.0f);
    p.k.load_row(sub.batch, p.kv_head(q_head), kv.order[n], k);
    p.rope.apply(kv.order[n], k);
    if (r.k_mean)
      for (int c = 0; c < p.d; ++c) k[c] -= kv.k_offset[c];
    if (p.hadamard) hadamard_row(k, p.d_pad);
    const double step_k = kv.k_scale[n / kBlock * 4 + k_group(n)];
    double bound = 0, size = 0, dot = 0;
    for (int c = 0; c < p.d_pad; ++c) {
      const double dq = element_error(r.qk, quantised_q[c], step_q, group_amax(quantised_q, c));
      const double dk = element_error(r.qk, k[c], step_k, group_amax(k, c));
      bound += std::fabs(quantised_q[c]) * dk + std::fabs(k[c]) * dq + dq * dk;
      const double mean = static_cast<double>(x[c]) - quantised_q[c];
      size += (std::fabs(quantised_q[c]) + std::fabs(mean)) * std::fabs(k[c]);
      dot += static_cast<double>(x[c]) * k[c];
    }
    // FP32 of offset, rotation, factors and (E4M3, BF16) the dot: 2^-16 of sum |q||k|; the dot of
    // Hopper's FP8 keeps 13 bits of the largest term at each of 4 steps.
    const bool truncated = !r.integer_scores() && r.id != RecipeId::bf16 &&
                           r.qk != QkFormat::nvfp4 && target != Target::cpu;
    bound += size * (0x1p-16 + (truncated ? 4 * 34 * 0x1p-13 : 0.0));
    const auto at = static_cast<size_t>(n);
    const int32_t s = t.s[static_cast<size_t>(i * t.n_cols + n)];
    const double score =
        r.integer_scores() ? static_cast<double>(s) : static_cast<double>(std::bit_cast<float>(s));
    const double factor = a[static_cast<size_t>(n / kBlock * 4 + k_group(n))];
    own[at] = std::ldexp(score * factor, e) * std::log(2.0) / 8;
    truth[at] = nats * dot;
    const double deviation = std::fabs(own[at] - truth[at]);
    out.score = std::max(out.score, deviation);
    if (deviation > 0) out.score_use = std::max(out.score_use, deviation / (nats * bound));
    own_max = std::max(own_max, own[at]);
    truth_max = std::max(truth_max, truth[at]);
  }
  double total = 0, truth_total = 0, tail = 0, qk = 0;
  for (size_t n = 0; n < cols; ++n) {
    if (kv.order[n] < 0) continue;
    total += own[n] = std::exp(own[n] - own_max);
    truth_total += truth[n] = std::exp(truth[n] - truth_max);
  }
  for (size_t n = 0; n < cols; ++n) {
    if (kv.order[n] < 0) continue;
    qk += std::fabs(own[n] / total - truth[n] / truth_total);
    if (r.has_codes() && t.codes[static_cast<size_t>(i) * cols + n] < 8) tail += own[n] / total;
  }

  // sum |P W / L - softmax(own)|, and whether the differences add up to zero.
  double map = 0, lse_low = 0, lse_high = 0;
  if (r.p == PMap::expcast) {
    // What the offset of the dots and the cut weights may take (E2), from some keys and not others.
    double factor = 0, bias = 0;
    for (const float a_g : a) factor = std::max(factor, static_cast<double>(a_g));
    for (int64_t j = 0; j < t.n_blocks; ++j) {
      const double m = t.m[static_cast<size_t>(i * t.n_blocks + j)];
      bias = std::max(bias, std::fabs(static_cast<double>(r.top) - m));
    }
    double loss = r.offset_scores() ? offset_loss(factor, bias) * std::log(2.0) / 8 : 0.0;
    if (r.reference == Reference::block_max) loss -= std::log1p(-kWeightLoss);
    map = 2 * tail_bound(tail, std::exp(loss));
    // Decoded against ideal, relative to the value of the maximum (F1, top 126), and the lost tail.
    lse_high = std::log(2.0) * (0.5 - 0.4588 + 0.6797) / 8;
    lse_low = std::log(2.0) * (0.5 + 0.4588) / 8 - std::log1p(-tail) + loss;
  } else if (r.p == PMap::cast_e4m3) {
    map = 1.0 / 17 + tail;
  } else if (r.p == PMap::cast_u8) {
    double worth = 0, denominator = 0;
    for (int64_t j = 0; j < t.n_blocks; ++j) {
      const auto at = static_cast<size_t>(i * t.n_blocks + j);
      const double m_final = t.m_run[static_cast<size_t>((i + 1) * t.n_blocks - 1)];
      const double w = std::exp2((static_cast<double>(t.m[at]) - m_final) / 8);
      worth += w * kBlock / 2;
      denominator += w * t.r[at];
    }
    map = worth / denominator + 2 * kWeightLoss;
  }
  if (r.fp4_p()) map = nvfp4_map_bound(r, own, total);
  // A GPU's exponentials (E3): the cubic, and half an ulp of v and of the offset, 128 octaves a
  // unit.
  double cubic = 0;
  if (target != Target::cpu && (r.p == PMap::cast_e4m3 || r.p == PMap::cast_u8)) {
    double offset = 0;
    for (int64_t j = 0; j < t.n_blocks; ++j) {
      const float m = t.m[static_cast<size_t>(i * t.n_blocks + j)];
      offset = std::max(offset, std::fabs(double{exp2_code_offset(sub_rd(r.top, m))}));
    }
    cubic = 7.5e-5 + std::log(2.0) * 128 * 0x1p-25 * (1 + 2 * offset);
  }
  // Exponentials (2^-21; twice the cubic: in P and in its sum), sums and the tf32 rounding of block
  // sums (2^-11).
  const double sums = 0x1p-18 + 2 * cubic + (r.v_smooth() ? 0x1p-11 : 0.0);
  const double shift = std::ldexp(1.0, e);
  // With e > 0 the scores that enter are 2^-e of the true ones: the rounding of m (1/16, or 2^-20
  // of itself when it is large) counts 2^e times, as does all that is in ln l, and up to all keys
  // may look as large as the largest.
  const double m_final = std::fabs(t.m_run[static_cast<size_t>((i + 1) * t.n_blocks - 1)]);
  const double coarse = e > 0 ? shift * ((1.0 / 16 + m_final * 0x1p-20) * std::log(2.0) / 8 +
                                         std::log(static_cast<double>(kv.n_valid)))
                              : 0.0;
  const double fp32 = std::fabs(static_cast<double>(t.lse[static_cast<size_t>(i)])) * 0x1p-22;
  out.lse_low = out.score + shift * (lse_low + sums) + coarse + fp32;
  out.lse_high = out.score + shift * (lse_high + sums) + coarse + fp32;

  out.output.resize(static_cast<size_t>(p.d));
  for (int c = 0; c < p.d; ++c) {
    double error = 0, largest = 0, residual = 0;
    float v[kMaxHeadDim];
    for (int64_t n = 0; n < kv.n_cols(); ++n) {
      if (kv.order[n] < 0) continue;
      p.v.load_row(sub.batch, p.kv_head(q_head), kv.order[n], v);
      const double stored = dequantised_value(r, kv, n, c);
      const double mu = r.v_smooth() ? kv.mu[n / kBlock * kv.d_pad + c] : 0.0f;
      error = std::max(error, std::fabs((stored + mu) * kv.s_v[c] - v[c]));
      largest = std::max(largest, std::fabs(static_cast<double>(v[c])));
      residual = std::max(residual, std::fabs(stored) * kv.s_v[c]);
    }
    // FP8 accumulators of a chip: four steps a block, each truncating 33 terms and the result to 13
    // bits of the largest; FP32 otherwise.
    const bool fp8 = target != Target::cpu && r.has_codes() && r.v != VFormat::int8_smooth;
    const double accumulate =
        fp8 ? static_cast<double>(kv.n_blocks) * 4 * 34 * 0x1p-13 * residual : 0x1p-14 * largest;
    out.output[static_cast<size_t>(c)] =
        (qk + map + sums) * largest + error * (1 + map) + accumulate;
  }
  return out;
}

// All rows of a sub-problem's query head. Returns the largest part of an output bound that was
// used.
inline double check_rows(const Heads& h, const spec::SubProblem& sub, int64_t q_head,
                         spec::Target target, const Order* order = nullptr) {
  const Prepared prepared(h.p, sub, q_head, order);
  const Traced t(h.p, prepared, target, 0, sub.q_len);
  double used = 0;
  for (int64_t row = 0; row < sub.q_len; ++row) {
    const std::string where = std::string(h.p.recipe->name) + " " + std::string(to_string(target)) +
                              " row " + std::to_string(row);
    const Exact exact(h.p, sub, q_head, row);
    const RowBound bound =
        row_bound(h.p, sub, q_head, prepared.kv.view, prepared.q.view, t, row, row, target);
    const double lse = t.lse[static_cast<size_t>(row)];
    EXPECT_LE(bound.score_use, 1.0) << where;
    EXPECT_LE(exact.lse - lse, bound.lse_low) << where;
    EXPECT_LE(lse - exact.lse, bound.lse_high) << where;
    for (size_t c = 0; c < exact.o.size(); ++c) {
      const double o = t.o[static_cast<size_t>(row * t.d) + c];
      const double error = std::fabs(o - exact.o[c]);
      EXPECT_LE(error, bound.output[c]) << where << " channel " << c;
      used = std::max(used, error / bound.output[c]);
    }
  }
  return used;
}

}  // namespace vca::test
