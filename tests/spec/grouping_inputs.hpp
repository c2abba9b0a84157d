// SPDX-License-Identifier: Apache-2.0
//
// Small inputs for the grouping tests: portable and cheap, with no claim to look like video.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "spec/grouping/grouping.hpp"

namespace vca::test {

class Lcg {
 public:
  explicit Lcg(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 1) {}
  uint32_t next() {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>(state_ >> 33);
  }
  uint64_t below(uint64_t n) { return next() % n; }
  /// In [-1, 1], multiples of 2^-12: exact in every format and on every machine.
  float value() { return static_cast<float>(static_cast<int32_t>(below(8193)) - 4096) / 4096.0f; }

 private:
  uint64_t state_;
};

struct Head {
  int head_dim = 0;
  std::vector<float> values;  // [n][head_dim]
  std::vector<spec::Segment> segments;
  std::vector<std::vector<int64_t>> valid;

  /// Refers to this Head.
  spec::GroupingInput input() const {
    spec::GroupingInput in;
    in.n_tokens = static_cast<int64_t>(values.size()) / head_dim;
    in.head_dim = head_dim;
    in.row = [this](int64_t token, float* out) {
      std::copy_n(values.begin() + token * head_dim, head_dim, out);
    };
    in.valid_by_segment = valid;
    in.segments = segments;
    return in;
  }
};

/// Segments of the given lengths, the first one video, the others text; each token valid with
/// probability `keep`.
inline Head random_head(Lcg& random, const std::vector<int64_t>& lens, int head_dim, double keep) {
  Head head;
  head.head_dim = head_dim;
  int64_t begin = 0;
  for (const int64_t len : lens) {
    head.segments.push_back({begin, len, head.segments.empty() ? 0 : 1});
    auto& valid = head.valid.emplace_back();
    for (int64_t i = 0; i < len; ++i)
      if (static_cast<double>(random.below(1000)) < keep * 1000.0) valid.push_back(begin + i);
    begin += len;
  }
  head.values.resize(begin * head_dim);
  for (float& x : head.values) x = random.value();
  return head;
}

/// One segment of `n` tokens around `clusters` random centers.
inline Head clustered_head(Lcg& random, int64_t n, int head_dim, int clusters, float noise) {
  Head head = random_head(random, {n}, head_dim, 1.0);
  std::vector<float> centers(static_cast<size_t>(clusters) * head_dim);
  for (float& x : centers) x = random.value();
  for (int64_t i = 0; i < n; ++i) {
    const int64_t c = static_cast<int64_t>(random.below(clusters));
    for (int k = 0; k < head_dim; ++k) {
      float& x = head.values[i * head_dim + k];
      x = centers[c * head_dim + k] + noise * x;
    }
  }
  return head;
}

}  // namespace vca::test
