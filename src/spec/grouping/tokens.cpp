// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/tokens.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <string>

#include "spec/arith.hpp"

namespace vca::spec::grouping {
namespace {

struct Scale {
  float power = 0.0f;    // 2^-e: brings the sample's largest magnitude into [0.5, 1)
  float inverse = 0.0f;  // RN(127 / RN(3 sigma)) of the values after `power`; 0: all tokens zero
};

// The power of two keeps squares of huge and tiny inputs in range; it is exact, so sigma is that of
// the input. Non-finite samples give no scale: the head keeps its order, others are unaffected.
Scale find_scale(const GroupingInput& input, const GroupingParams& params,
                 const std::vector<int64_t>& original, int d_pad) {
  const int64_t n = static_cast<int64_t>(original.size());
  const int64_t m = std::min<int64_t>(n, params.sigma_sample_rows);
  if (m == 0) return {};
  std::vector<float> sample(static_cast<size_t>(m) * d_pad, 0.0f);
  float amax = 0.0f;
  for (int64_t i = 0; i < m; ++i) {
    float* x = sample.data() + i * d_pad;
    input.row(original[sample_row(i, n, m)], x);
    for (int k = 0; k < input.head_dim; ++k) {
      if (!std::isfinite(x[k])) return {};
      amax = std::max(amax, std::fabs(x[k]));
    }
  }
  if (amax < 0x1p-100f) return {};
  int exponent = 0;
  std::frexp(amax, &exponent);
  const float power = std::ldexp(1.0f, -exponent);
  std::vector<float> row_sums(m), squares(d_pad);
  for (int64_t i = 0; i < m; ++i) {
    for (int k = 0; k < d_pad; ++k) {
      const float x = sample[i * d_pad + k] * power;
      squares[k] = mul(x, x);
    }
    row_sums[i] = tree_sum(squares.data(), d_pad);
  }
  const float mean = mul(tree_sum(row_sums.data(), m), rn_inverse(m * input.head_dim));
  const float sigma = std::sqrt(mean);
  return {power, 127.0f / (3.0f * sigma)};
}

void check(const GroupingInput& input) {
  if (input.head_dim < 1 || input.head_dim > 128)
    throw std::invalid_argument("grouping: head_dim is " + std::to_string(input.head_dim) +
                                ", allowed 1..128");
  if (!input.segments.empty() && input.segments.size() != input.valid_by_segment.size())
    throw std::invalid_argument("grouping: " + std::to_string(input.segments.size()) +
                                " segments but " + std::to_string(input.valid_by_segment.size()) +
                                " lists of valid tokens");
  int64_t total = 0;
  for (const auto& valid : input.valid_by_segment) total += static_cast<int64_t>(valid.size());
  if (total > input.n_tokens || total > std::numeric_limits<int32_t>::max() - kGroupRows)
    throw std::invalid_argument("grouping: " + std::to_string(total) + " valid tokens of " +
                                std::to_string(input.n_tokens) + ", allowed fewer than 2^31 - 128");
}

}  // namespace

Tokens quantise_tokens(const GroupingInput& input, const GroupingParams& params) {
  check(input);
  Tokens tokens;
  tokens.d_pad = input.head_dim <= 64 ? 64 : 128;
  for (const auto& valid : input.valid_by_segment) {
    tokens.segments.push_back({tokens.size(), static_cast<int32_t>(valid.size())});
    tokens.original.insert(tokens.original.end(), valid.begin(), valid.end());
  }
  tokens.values.assign(static_cast<size_t>(tokens.size()) * tokens.d_pad, 0);
  const Scale scale = find_scale(input, params, tokens.original, tokens.d_pad);
  if (scale.inverse == 0.0f) return tokens;

  float x[128];
  constexpr float kRound =
      0x1.8p23f;  // adding and taking it away rounds |v| < 2^22 to nearest even
  for (int32_t i = 0; i < tokens.size(); ++i) {
    input.row(tokens.original[i], x);
    int16_t* out = tokens.values.data() + static_cast<int64_t>(i) * tokens.d_pad;
    for (int k = 0; k < input.head_dim; ++k) {
      float v = x[k] * scale.power * scale.inverse;
      v = v > 127.0f ? 127.0f : v;
      v = v < -127.0f ? -127.0f : v;
      v = v == v ? v : 0.0f;  // NaN: no influence
      out[k] = static_cast<int16_t>(static_cast<int32_t>((v + kRound) - kRound));
    }
  }
  return tokens;
}

}  // namespace vca::spec::grouping
