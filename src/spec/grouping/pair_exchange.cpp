// SPDX-License-Identifier: Apache-2.0
#include "spec/grouping/pair_exchange.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "spec/grouping/objective.hpp"

namespace vca::spec::grouping {
namespace {

class Exchange {
 public:
  Exchange(const Tokens& tokens, const GroupingParams& params, int32_t* rows, int32_t blocks)
      : tokens_(tokens), params_(params), rows_(rows), blocks_(blocks), d_(tokens.d_pad) {
    sums_.assign(static_cast<size_t>(blocks) * d_, 0);
    means_.resize(sums_.size());
    tried_.assign(static_cast<size_t>(blocks) * std::max(1, params.pair_memory), -1);
    for (int32_t b = 0; b < blocks; ++b) {
      add_rows(tokens, block(b), kGroupRows, sum(b));
      set_mean(b);
    }
  }

  int64_t pass(int number) {
    int64_t kept = 0;
    for (const auto& [a, b] : match(number)) kept += exchange(a, b) ? 1 : 0;
    return kept;
  }

 private:
  int32_t* block(int32_t b) { return rows_ + static_cast<int64_t>(b) * kGroupRows; }
  int32_t* sum(int32_t b) { return sums_.data() + static_cast<int64_t>(b) * d_; }
  int16_t* mean(int32_t b) { return means_.data() + static_cast<int64_t>(b) * d_; }
  int32_t* tried(int32_t b) {
    return tried_.data() + static_cast<int64_t>(b) * std::max(1, params_.pair_memory);
  }

  void set_mean(int32_t b) {
    for (int k = 0; k < d_; ++k)
      mean(b)[k] = static_cast<int16_t>(round_div(sum(b)[k], kGroupRows));
  }

  bool recently_tried(int32_t a, int32_t b) {
    for (int i = 0; i < params_.pair_memory; ++i)
      if (tried(a)[i] == b) return true;
    return false;
  }

  // Handshake: every free block proposes to its nearest free block not tried lately (ties to the
  // lower number); mutual proposals pair up. The closest pair is always mutual.
  std::vector<std::array<int32_t, 2>> match(int number) {
    std::vector<std::array<int32_t, 2>> pairs;
    std::vector<int32_t> free(blocks_), proposal(blocks_, -1);
    for (int32_t b = 0; b < blocks_; ++b) free[b] = b;
    for (int round = 0; round < params_.pair_rounds && free.size() > 1; ++round) {
      for (const int32_t a : free) {
        int32_t best = std::numeric_limits<int32_t>::max();
        proposal[a] = -1;
        for (const int32_t b : free) {
          if (a == b) continue;
          const int32_t dist = distance(mean(a), mean(b), d_);
          if (dist < best && !recently_tried(a, b)) {
            best = dist;
            proposal[a] = b;
          }
        }
      }
      std::vector<int32_t> left;
      for (const int32_t a : free) {
        const int32_t b = proposal[a];
        if (b < 0 || proposal[b] != a)
          left.push_back(a);
        else if (a < b)
          pairs.push_back({a, b});
      }
      if (left.size() == free.size()) break;
      free = std::move(left);
    }
    if (params_.pair_memory > 0)
      for (const auto& [a, b] : pairs) {
        tried(a)[number % params_.pair_memory] = b;
        tried(b)[number % params_.pair_memory] = a;
      }
    return pairs;
  }

  bool exchange(int32_t a, int32_t b) {
    constexpr int kPair = 2 * kGroupRows;
    std::array<int32_t, kPair> rows;
    std::copy_n(block(a), kGroupRows, rows.begin());
    std::copy_n(block(b), kGroupRows, rows.begin() + kGroupRows);
    std::array<int32_t, 128> total{}, low{}, high{};
    for (int k = 0; k < d_; ++k) {
      low[k] = sum(a)[k];
      high[k] = sum(b)[k];
      total[k] = low[k] + high[k];
    }
    const int64_t before = sum_norm2(low.data(), d_) + sum_norm2(high.data(), d_);
    std::array<uint64_t, kPair> words;
    for (int inner = 0; inner < params_.pair_inner; ++inner) {
      // Differences of block sums stay below 2 * 128 * 127 = 32512: int16.
      std::array<int16_t, 128> axis{};
      for (int k = 0; k < d_; ++k) axis[k] = static_cast<int16_t>(high[k] - low[k]);
      for (int i = 0; i < kPair; ++i)
        words[i] = sort_word(dot(tokens_.row(rows[i]), axis.data(), d_), rows[i]);
      std::nth_element(words.begin(), words.begin() + kGroupRows, words.end());
      for (int i = 0; i < kPair; ++i) rows[i] = sort_word_token(words[i]);
      low.fill(0);
      add_rows(tokens_, rows.data(), kGroupRows, low.data());
      for (int k = 0; k < d_; ++k) high[k] = total[k] - low[k];
    }
    const int64_t after = sum_norm2(low.data(), d_) + sum_norm2(high.data(), d_);
    if (after <= before) return false;
    std::copy_n(rows.begin(), kGroupRows, block(a));
    std::copy_n(rows.begin() + kGroupRows, kGroupRows, block(b));
    std::copy_n(low.begin(), d_, sum(a));
    std::copy_n(high.begin(), d_, sum(b));
    set_mean(a);
    set_mean(b);
    return true;
  }

  const Tokens& tokens_;
  const GroupingParams& params_;
  int32_t* rows_;
  const int32_t blocks_;
  const int d_;
  std::vector<int32_t> sums_;   // [blocks][d_pad]
  std::vector<int16_t> means_;  // INT8 block means
  std::vector<int32_t> tried_;  // [blocks][pair_memory], partner of pass p at p mod pair_memory
};

}  // namespace

int64_t pair_exchange(const Tokens& tokens, const GroupingParams& params, int passes,
                      Order* order) {
  int64_t kept = 0;
  for (const Range& segment : tokens.segments) {
    const int32_t blocks = segment.len / kGroupRows;
    if (blocks < 2) continue;
    Exchange exchange(tokens, params, order->data() + segment.begin, blocks);
    for (int pass = 0; pass < passes; ++pass) kept += exchange.pass(pass);
  }
  sort_inside_blocks(tokens, order);
  return kept;
}

}  // namespace vca::spec::grouping
