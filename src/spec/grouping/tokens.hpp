// SPDX-License-Identifier: Apache-2.0
//
// INT8 tokens of one head and the exact integer arithmetic on them.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/grouping/grouping.hpp"

namespace vca::spec::grouping {

/// A run of local token numbers: one segment's valid tokens.
struct Range {
  int32_t begin = 0;
  int32_t len = 0;
};

/// INT8 values kept as int16, so that plain loops become 16-bit multiply-adds. Tokens are numbered
/// locally: the valid tokens of segment 0, then of segment 1, ... each ascending.
struct Tokens {
  int d_pad = 64;  ///< 64 or 128; channels from head_dim up are zero
  std::vector<int16_t> values;
  std::vector<Range> segments;
  std::vector<int64_t> original;  ///< local number -> token index of the input

  int32_t size() const { return static_cast<int32_t>(original.size()); }
  const int16_t* row(int32_t i) const { return values.data() + static_cast<int64_t>(i) * d_pad; }
};

/// Local numbers in group order, all segments one after the other.
using Order = std::vector<int32_t>;

/// Clips at 3 sigma and rounds to INT8. Throws std::invalid_argument on a bad shape.
Tokens quantise_tokens(const GroupingInput& input, const GroupingParams& params);

/// Row i of a strided sample of `m` out of `n` rows: floor(i * n / m).
inline int64_t sample_row(int64_t i, int64_t n, int64_t m) { return i * n / m; }

inline int32_t ceil_blocks(int64_t n) {
  return static_cast<int32_t>((n + kGroupRows - 1) / kGroupRows);
}

/// |x| <= 127 and |y| <= 32767 over 128 channels stay below 2^30.
template <int D>
inline int32_t dot_fixed(const int16_t* x, const int16_t* y) {
  int32_t sum = 0;
  for (int k = 0; k < D; ++k) sum += static_cast<int32_t>(x[k]) * static_cast<int32_t>(y[k]);
  return sum;
}

inline int32_t dot(const int16_t* x, const int16_t* y, int d_pad) {
  return d_pad == 128 ? dot_fixed<128>(x, y) : dot_fixed<64>(x, y);
}

/// For INT8-valued rows: at most 128 * 254^2 < 2^23.
template <int D>
inline int32_t distance_fixed(const int16_t* x, const int16_t* y) {
  int32_t sum = 0;
  for (int k = 0; k < D; ++k) {
    const int16_t diff = static_cast<int16_t>(x[k] - y[k]);
    sum += static_cast<int32_t>(diff) * static_cast<int32_t>(diff);
  }
  return sum;
}

inline int32_t distance(const int16_t* x, const int16_t* y, int d_pad) {
  return d_pad == 128 ? distance_fixed<128>(x, y) : distance_fixed<64>(x, y);
}

/// Squared norm of a block sum (|entry| <= 128 * 127, so int64 is ample).
inline int64_t sum_norm2(const int32_t* sum, int d_pad) {
  int64_t total = 0;
  for (int k = 0; k < d_pad; ++k) total += static_cast<int64_t>(sum[k]) * sum[k];
  return total;
}

/// Adds `n` rows to sum[d_pad].
inline void add_rows(const Tokens& tokens, const int32_t* rows, int n, int32_t* sum) {
  for (int i = 0; i < n; ++i) {
    const int16_t* x = tokens.row(rows[i]);
    for (int k = 0; k < tokens.d_pad; ++k) sum[k] += x[k];
  }
}

/// round(num / den), halves up, den > 0.
inline int32_t round_div(int64_t num, int64_t den) {
  const int64_t twice = 2 * num + den;
  const int64_t q = twice / (2 * den);
  return static_cast<int32_t>(twice % (2 * den) < 0 ? q - 1 : q);
}

/// Total order by (key, token): the sort word of every step. The key takes the upper half.
inline uint64_t sort_word(int32_t key, int32_t token) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(key) ^ 0x80000000u) << 32) |
         static_cast<uint32_t>(token);
}
inline int32_t sort_word_token(uint64_t word) { return static_cast<int32_t>(word & 0xFFFFFFFFu); }

}  // namespace vca::spec::grouping
