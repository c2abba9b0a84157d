// SPDX-License-Identifier: Apache-2.0
// Rows of scores given directly in code units (eighths of an octave), pushed through the
// specification's own maximum and map: what a recipe makes of a softmax row, without Q, K and V.
//
// A score t stands for the integer t * 2^12 with the factor 2^-12, so t is exact up to 2^-13 and
// |t| < 2048 keeps the integer within FP32.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "spec/softmax.hpp"

namespace vca::test {

inline constexpr float kScoreStep = 0x1p-12f;

struct MappedRow {
  std::vector<double> t;       // scores as the map saw them
  std::vector<double> exact;   // softmax of t
  std::vector<double> mapped;  // P * W / L
  std::vector<uint8_t> codes;
  std::vector<float> reference;  // of each block

  double tv() const {
    double sum = 0;
    for (size_t i = 0; i < exact.size(); ++i) sum += std::fabs(mapped[i] - exact[i]);
    return sum / 2;
  }
  // Softmax mass of the keys whose code is below `code`.
  double mass_below(uint8_t code) const {
    double sum = 0;
    for (size_t i = 0; i < exact.size(); ++i)
      if (codes[i] < code) sum += exact[i];
    return sum;
  }
  double n_eff() const {
    double sum2 = 0;
    for (const double p : exact) sum2 += p * p;
    return 1.0 / sum2;
  }
};

inline MappedRow map_row(const spec::Recipe& r, spec::Target target,
                         const std::vector<double>& scores) {
  using namespace spec;
  const size_t n = scores.size(), blocks = (n + kBlock - 1) / kBlock;
  MappedRow out;
  out.t.resize(n);
  out.exact.resize(n);
  out.mapped.assign(n, 0.0);
  out.codes.assign(n, 0);
  out.reference.resize(blocks);
  std::vector<double> sums(blocks), weights(blocks);
  std::vector<float> references(blocks);  // O's
  float m_run = -std::numeric_limits<float>::infinity();
  BlockScores s;
  BlockP p;
  for (float& a : s.a) a = kScoreStep;
  for (size_t j = 0; j < blocks; ++j) {
    const size_t c0 = j * kBlock, here = std::min<size_t>(kBlock, n - c0);
    bool valid[kBlock];
    for (size_t i = 0; i < kBlock; ++i) {
      valid[i] = i < here;
      // A pad repeats a valid column: it can never be the only maximum.
      const double t = scores[c0 + (valid[i] ? i : 0)];
      s.integer[i] = static_cast<int32_t>(std::lrint(t / static_cast<double>(kScoreStep)));
      s.value[i] = static_cast<float>(s.integer[i]);
      if (valid[i]) out.t[c0 + i] = static_cast<double>(s.value[i]) * kScoreStep;
    }
    const float m_blk = s.block_maximum();
    m_run = references[j] = next_reference(r, m_run, m_blk);
    const float reference = r.reference == Reference::block_max ? m_blk : m_run;
    compute_p(r, target, s, reference, valid, false, nullptr, p);
    out.reference[j] = reference;
    double decoded = 0;
    for (size_t i = 0; i < here; ++i) {
      out.codes[c0 + i] = p.codes[i];
      out.mapped[c0 + i] = p.p[i];
      decoded += p.p[i];
    }
    sums[j] = r.decoded_sums() ? decoded : static_cast<double>(block_sum(target, p.sum_terms));
  }
  const double t_max = *std::max_element(out.t.begin(), out.t.end());
  double total = 0, denominator = 0;
  for (size_t i = 0; i < n; ++i) total += out.exact[i] = std::exp2((out.t[i] - t_max) / 8);
  for (double& x : out.exact) x /= total;
  for (size_t j = 0; j < blocks; ++j) {
    // Codes against the block's maximum have its weight; what O's reference moved since is exact
    // here.
    weights[j] = std::exp2((static_cast<double>(references[j]) - static_cast<double>(m_run)) / 8);
    if (r.reference == Reference::block_max)
      weights[j] *= static_cast<double>(block_weight(out.reference[j] - references[j]));
    denominator += weights[j] * sums[j];
  }
  for (size_t i = 0; i < n; ++i) out.mapped[i] *= weights[i / kBlock] / denominator;
  return out;
}

// ---- the constants of docs/numerics.md, F1 to F4 ----

// log2(b/a): one code of rounding and the largest -eps, that of mantissa 4.
inline const double kLineEnds = (1 + (8 * std::log2(1.5) - 4)) / 8;
inline const double kLineLow = 1.0;                    // a, scaled out
inline const double kLineHigh = std::exp2(kLineEnds);  // b
inline double total_variation_of_ratio(double ratio) { return std::tanh(std::log(ratio) / 4); }
// F3: the largest total variation when keys of mass tau lie below the last normal code. extra: how
// much further apart than by the line itself two keys' ratios may be.
inline double tail_bound(double tau, double extra = 1.0) {
  const double high = kLineHigh * extra;
  if (tau >= 1 - kLineLow / high) return tau;
  const double gap = std::sqrt(high) - std::sqrt(kLineLow * (1 - tau));
  return gap * gap / (high - kLineLow);
}
// E2: how far the code arguments of INT8 dots may fall by the offset in their line, in code units:
// an ulp of the addend, whose magnitude is at most 1.5 * 2^23 * factor + |bias|, and one of the
// bias. factor: code units per integer.
inline double offset_loss(double factor, double bias) {
  return 1.5 * factor + std::fabs(bias) * 0x1p-22;
}
// E2: what cutting may take from the weight of a block.
inline constexpr double kWeightLoss = 0x1p-12;
// F4: mass of keys below the last normal code when the reference is the block's own maximum.
inline const double kBlockTail = 127 * std::exp2((-118.5 + 1.0 / 16) / 8);

}  // namespace vca::test
