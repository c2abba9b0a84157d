// SPDX-License-Identifier: Apache-2.0
// Naive vector arithmetic on tokens, shared by the tests that hold the grouping against forms
// written from the specification.
#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "spec/grouping/objective.hpp"
#include "spec/grouping/tokens.hpp"
#include "spec/grouping_inputs.hpp"

namespace vca::spec::grouping {

using test::Lcg;
using Row = std::vector<int64_t>;

inline Row row_of(const Tokens& tokens, int32_t i) {
  return Row(tokens.row(i), tokens.row(i) + tokens.d_pad);
}
inline int64_t naive_dot(const Row& a, const Row& b) {
  int64_t sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}
inline Row minus(const Row& a, const Row& b) {
  Row out(a.size());
  for (size_t k = 0; k < a.size(); ++k) out[k] = a[k] - b[k];
  return out;
}
inline Row sum_of(const Tokens& tokens, const std::vector<int32_t>& rows) {
  Row sum(tokens.d_pad, 0);
  for (const int32_t r : rows)
    for (int k = 0; k < tokens.d_pad; ++k) sum[k] += tokens.row(r)[k];
  return sum;
}
// Halves up, as a floor of the shifted quotient.
inline int64_t naive_round(int64_t num, int64_t den) {
  return static_cast<int64_t>(std::floor((2.0 * static_cast<double>(num) + den) / (2.0 * den)));
}
inline Row mean_of(const Tokens& tokens, const std::vector<int32_t>& rows) {
  Row mean = sum_of(tokens, rows);
  for (int64_t& x : mean) x = naive_round(x, static_cast<int64_t>(rows.size()));
  return mean;
}

inline Tokens clustered(Lcg& random, int64_t n, int head_dim, int clusters, float noise) {
  return quantise_tokens(test::clustered_head(random, n, head_dim, clusters, noise).input(), {});
}

inline Order iota(const Tokens& tokens) {
  Order order(tokens.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

}  // namespace vca::spec::grouping
