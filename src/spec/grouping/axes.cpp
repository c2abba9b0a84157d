// SPDX-License-Identifier: Apache-2.0
//
// The only floating point of the grouping: explicit FP32 in a fixed order, rounded to INT8 at the
// end. Products and sums are rounded separately (-ffp-contract=off): no step is an fma.
#include "spec/grouping/axes.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace vca::spec::grouping {
namespace {

// Products rounded, then a pairwise tree: as a warp would do it.
float tree_dot(const float* a, const float* b, int n) {
  float v[128];
  for (int i = 0; i < n; ++i) v[i] = a[i] * b[i];
  for (int width = n / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) v[i] = v[2 * i] + v[2 * i + 1];
  return v[0];
}

// Modified Gram-Schmidt in index order; axes are rows of q[kAxes][d].
void orthonormalise(float* q, int d) {
  int next_unit = 0;
  for (int a = 0; a < kAxes; ++a) {
    float* v = q + a * d;
    for (int b = 0; b < a; ++b) {
      const float* u = q + b * d;
      const float c = tree_dot(u, v, d);
      for (int k = 0; k < d; ++k) v[k] = v[k] - c * u[k];
    }
    const float norm = std::sqrt(tree_dot(v, v, d));
    if (norm == 0.0f) {
      std::fill(v, v + d, 0.0f);
      v[next_unit++] = 1.0f;
    } else {
      for (int k = 0; k < d; ++k) v[k] = v[k] / norm;
    }
  }
}

}  // namespace

std::vector<int64_t> sample_covariance(const Tokens& tokens, int64_t sample_rows) {
  const int d = tokens.d_pad;
  const int64_t n = tokens.size();
  const int64_t m = std::min<int64_t>(n, sample_rows);
  std::vector<int64_t> products(static_cast<size_t>(d) * d, 0), sums(d, 0);
  // 2048 products of INT8 values stay below 2^25: int32 inside a chunk.
  constexpr int kChunk = 2048;
  std::vector<int16_t> columns(static_cast<size_t>(d) * kChunk);
  for (int64_t first = 0; first < m; first += kChunk) {
    const int rows = static_cast<int>(std::min<int64_t>(kChunk, m - first));
    std::fill(columns.begin(), columns.end(), int16_t{0});
    for (int i = 0; i < rows; ++i) {
      const int16_t* x = tokens.row(static_cast<int32_t>(sample_row(first + i, n, m)));
      for (int k = 0; k < d; ++k) columns[static_cast<size_t>(k) * kChunk + i] = x[k];
    }
    for (int a = 0; a < d; ++a) {
      const int16_t* col = columns.data() + static_cast<size_t>(a) * kChunk;
      int32_t sum = 0;
      for (int i = 0; i < rows; ++i) sum += col[i];
      sums[a] += sum;
      for (int b = a; b < d; ++b)
        products[a * d + b] +=
            dot_fixed<kChunk>(col, columns.data() + static_cast<size_t>(b) * kChunk);
    }
  }
  for (int a = 0; a < d; ++a)
    for (int b = a; b < d; ++b)
      products[a * d + b] = products[b * d + a] = m * products[a * d + b] - sums[a] * sums[b];
  return products;
}

std::vector<int16_t> principal_axes(const Tokens& tokens, const GroupingParams& params) {
  const int d = tokens.d_pad;
  const std::vector<int64_t> exact = sample_covariance(tokens, params.axes_sample_rows);
  std::vector<float> covariance(exact.begin(), exact.end());  // round to nearest

  std::vector<float> q(static_cast<size_t>(kAxes) * d), next(q.size());
  for (int a = 0; a < kAxes; ++a)
    for (int k = 0; k < d; ++k)
      q[a * d + k] = std::popcount(static_cast<unsigned>(k) & static_cast<unsigned>(a + 1)) % 2 == 0
                         ? 1.0f
                         : -1.0f;
  for (int iteration = 0; iteration < params.axes_iterations; ++iteration) {
    std::fill(next.begin(), next.end(), 0.0f);
    for (int a = 0; a < kAxes; ++a)
      for (int k = 0; k < d; ++k) {  // ascending k for every output; rows of a symmetric matrix
        const float factor = q[a * d + k];
        const float* row = covariance.data() + static_cast<size_t>(k) * d;
        float* out = next.data() + a * d;
        for (int r = 0; r < d; ++r) out[r] = out[r] + row[r] * factor;
      }
    q = next;
    orthonormalise(q.data(), d);
  }

  float amax = 0.0f;
  for (const float v : q) amax = std::max(amax, std::fabs(v));
  const float scale = 127.0f / amax;  // unit vectors: amax > 0
  std::vector<int16_t> axes(q.size());
  for (size_t i = 0; i < q.size(); ++i)
    axes[i] = static_cast<int16_t>(std::lrintf(std::clamp(q[i] * scale, -127.0f, 127.0f)));
  return axes;
}

}  // namespace vca::spec::grouping
