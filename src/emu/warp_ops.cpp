// SPDX-License-Identifier: Apache-2.0
#include "emu/warp_ops.hpp"

#include <algorithm>

namespace vca::emu::warp_ops {
namespace {

using LaneWords = Collectives::LaneWords;
using WarpWords = Collectives::WarpWords;

uint32_t one_word(Collectives& warp, const char* instruction, Collectives::WarpFunction function,
                  uint32_t value) {
  LaneWords words{value};
  warp.exchange(instruction, function, words);
  return words[0];
}

int32_t signed_of(uint32_t word) { return static_cast<int32_t>(word); }

template <class Join>
void reduce(const WarpWords& in, WarpWords& out, Join join) {
  int32_t all = signed_of(in[0][0]);
  for (size_t lane = 1; lane < 32; ++lane) all = join(all, signed_of(in[lane][0]));
  for (LaneWords& words : out) words[0] = static_cast<uint32_t>(all);
}

int32_t dot_of_bytes(uint32_t a, uint32_t b) {
  int32_t sum = 0;
  for (int i = 0; i < 32; i += 8)
    sum += int32_t{static_cast<int8_t>(a >> i)} * static_cast<int8_t>(b >> i);
  return sum;
}

// Words of a lane: a[0..3], b[0..1], d[0..3]; the fragments of ptx/warp.hpp.
void multiply(const WarpWords& in, WarpWords& out) {
  for (size_t lane = 0; lane < 32; ++lane)
    for (size_t i = 0; i < 4; ++i) {
      const size_t row_lane = lane / 4 * 4, upper = i / 2;
      const size_t column_lane = (lane % 4 * 2 + i % 2) * 4;
      int32_t sum = signed_of(in[lane][6 + i]);
      for (size_t t = 0; t < 4; ++t) {
        const LaneWords& a = in[row_lane + t];
        const LaneWords& b = in[column_lane + t];
        sum += dot_of_bytes(a[upper], b[4]) + dot_of_bytes(a[2 + upper], b[5]);
      }
      out[lane][6 + i] = static_cast<uint32_t>(sum);
    }
}

}  // namespace

uint32_t ballot(Collectives& warp, bool predicate) {
  return one_word(
      warp, "vote.sync.ballot",
      [](const WarpWords& in, WarpWords& out) {
        uint32_t mask = 0;
        for (size_t i = 0; i < 32; ++i) mask |= in[i][0] << i;
        for (LaneWords& words : out) words[0] = mask;
      },
      predicate ? 1u : 0u);
}

uint32_t match_any(Collectives& warp, uint32_t value) {
  return one_word(
      warp, "match.any.sync",
      [](const WarpWords& in, WarpWords& out) {
        for (size_t i = 0; i < 32; ++i) {
          out[i][0] = 0;
          for (size_t j = 0; j < 32; ++j) out[i][0] |= (in[i][0] == in[j][0] ? 1u : 0u) << j;
        }
      },
      value);
}

int32_t reduce_add(Collectives& warp, int32_t value) {
  return signed_of(one_word(
      warp, "redux.sync.add",
      [](const WarpWords& in, WarpWords& out) {
        reduce(in, out, [](int32_t a, int32_t b) {
          return signed_of(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
        });
      },
      static_cast<uint32_t>(value)));
}
int32_t reduce_min(Collectives& warp, int32_t value) {
  return signed_of(one_word(
      warp, "redux.sync.min",
      [](const WarpWords& in, WarpWords& out) {
        reduce(in, out, [](int32_t a, int32_t b) { return std::min(a, b); });
      },
      static_cast<uint32_t>(value)));
}
int32_t reduce_max(Collectives& warp, int32_t value) {
  return signed_of(one_word(
      warp, "redux.sync.max",
      [](const WarpWords& in, WarpWords& out) {
        reduce(in, out, [](int32_t a, int32_t b) { return std::max(a, b); });
      },
      static_cast<uint32_t>(value)));
}

void mma_m16n8k32_s8(Collectives& warp, int32_t (&d)[4], const uint32_t (&a)[4],
                     const uint32_t (&b)[2]) {
  LaneWords words{a[0], a[1], a[2], a[3], b[0], b[1]};
  for (size_t i = 0; i < 4; ++i) words[6 + i] = static_cast<uint32_t>(d[i]);
  warp.exchange("mma.sync.m16n8k32", multiply, words);
  for (size_t i = 0; i < 4; ++i) d[i] = signed_of(words[6 + i]);
}

}  // namespace vca::emu::warp_ops
