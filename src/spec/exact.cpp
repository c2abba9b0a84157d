// SPDX-License-Identifier: Apache-2.0
// FP64 attention on the stored inputs: the reference of every error figure.
#include <algorithm>
#include <cmath>
#include <limits>

#include "spec/attention.hpp"

namespace vca::spec {
namespace {

template <class Load>
void load_double(const Problem& p, int64_t token, bool rotate, Load load, double* out) {
  float row[kMaxHeadDim];
  load(row);
  for (int i = 0; i < p.d; ++i) out[i] = row[i];
  if (rotate) p.rope.apply(token, out);
}

}  // namespace

void exact_row(const Problem& p, const SubProblem& sub, int64_t q_head, int64_t row, double* o,
               double* lse, double* prob) {
  const int64_t kv_head = p.kv_head(q_head);
  const int64_t n = sub.n_valid();
  if (o != nullptr) std::fill(o, o + p.d, 0.0);
  if (lse != nullptr) *lse = -std::numeric_limits<double>::infinity();
  if (n == 0) return;
  double q[kMaxHeadDim], k[kMaxHeadDim];
  load_double(
      p, row, true, [&](float* x) { p.q.load_row(sub.batch, q_head, row, x); }, q);
  std::vector<double> score(static_cast<size_t>(n), -std::numeric_limits<double>::infinity());
  const uint8_t* mask = p.mask_row(sub.batch, q_head, row);
  size_t at = 0;
  double max = -std::numeric_limits<double>::infinity();
  for (const auto& segment : sub.segments)
    for (const int64_t token : segment) {
      if (mask != nullptr && mask[token / kBlock] == 0) {
        ++at;
        continue;
      }
      load_double(
          p, token, true, [&](float* x) { p.k.load_row(sub.batch, kv_head, token, x); }, k);
      double dot = 0.0;
      for (int i = 0; i < p.d; ++i) dot += q[i] * k[i];
      score[at] = p.scale * dot;
      max = std::max(max, score[at++]);
    }
  if (max == -std::numeric_limits<double>::infinity()) {  // a mask that leaves no key
    if (prob != nullptr) std::fill(prob, prob + n, 0.0);
    return;
  }
  double sum = 0.0;
  for (double& s : score) {
    s = std::exp(s - max);
    sum += s;
  }
  if (lse != nullptr) *lse = max + std::log(sum);
  if (prob != nullptr)
    for (int64_t i = 0; i < n; ++i) prob[i] = score[static_cast<size_t>(i)] / sum;
  if (o == nullptr) return;
  at = 0;
  float v[kMaxHeadDim];
  for (const auto& segment : sub.segments)
    for (const int64_t token : segment) {
      p.v.load_row(sub.batch, kv_head, token, v);
      const double weight = score[at++] / sum;
      for (int i = 0; i < p.d; ++i) o[i] += weight * v[i];
    }
}

}  // namespace vca::spec
