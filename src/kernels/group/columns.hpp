// SPDX-License-Identifier: Apache-2.0
// Block means in shared memory, as columns that rows in registers are multiplied with.
#pragma once

#include "kernels/group/bits.hpp"

namespace vca::kernels::group {

// Columns lie as the registers of an MMA's first operand want them, 16 columns a tile: for step j,
// lane (g, t) finds words of columns g and g + 8 in one load (RowShare's words t of the row):
//
//   tile | step | lane 4 g + t | low word of g, low of g + 8, high of g, high of g + 8
template <int kD, int kThreads>
struct Columns {
  static constexpr int kParts = kD / 16;
  static constexpr int kSteps = RowShare<kD>::kSteps;
  static constexpr int kTile = 16;
  static constexpr int kWord = 32;  // columns of a word of bits

  uint32_t* words;
  int32_t*
      base;  // [column] of its keys: 256 |c|^2 and its number in a turn of eight, distances.hpp

  // Where word `word` of 16-byte part `part` of a column lies.
  VCA_DEVICE uint32_t* word_at(int32_t column, int part, int word) const {
    const int32_t step = part / 4 * 2 + word / 2, lane_of = column % 8 * 4 + part % 4;
    return words + column / kTile * (kTile * kD / 4) + (step * 32 + lane_of) * 4 + word % 2 * 2 +
           column / 8 % 2;
  }
  // A column as the second operand of an MMA.
  VCA_DEVICE RowShare<kD> share_of(int32_t column, int t) const {
    RowShare<kD> out;
    VCA_UNROLL
    for (int c = 0; c < RowShare<kD>::kChunks; ++c) {
      const uint32_t* from = word_at(column, t + 4 * c, 0);
      out.chunk[c] = {from[0], from[2], from[128], from[130]};
    }
    return out;
  }
  // Step `step` of a tile as the first operand.
  VCA_DEVICE Word4 tile_step(int32_t tile, int step) const {
    return load_word4(words + tile * (kTile * kD / 4) + (step * 32 + lane()) * 4);
  }
  // Products of a tile with groups of rows, step by step: those of one group wait for each other.
  template <int kGroups>
  VCA_DEVICE static void multiply(int32_t (&acc)[kGroups][4], const Word4 (&columns)[kSteps],
                                  const RowShare<kD> (&rows)[kGroups]) {
    VCA_UNROLL
    for (int j = 0; j < kSteps; ++j) VCA_UNROLL
    for (int i = 0; i < kGroups; ++i)
      ptx::mma_m16n8k32_s32_s8_s8(acc[i], columns[j].x, columns[j].y, columns[j].z, columns[j].w,
                                  rows[i].low(j), rows[i].high(j));
  }

  // n columns, and zeros up to whole words of bits. block_of(column): whose means; a column.
  template <class BlockOf>
  VCA_DEVICE void load(const int8_t* means, int32_t n, const BlockOf& block_of) const {
    const int32_t padded = (n + kWord - 1) / kWord * kWord;
    constexpr int kAtOnce = 8;  // loads on the way
    // Turns are even for the lanes of a warp: a word of bits is 32 columns.
    VCA_UNROLL_1
    for (int i0 = thread(); i0 < padded * kParts; i0 += kAtOnce * kThreads) {
      Word4 w[kAtOnce];
      VCA_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = i0 + k * kThreads, column = column_of(i / kParts);
        w[k] = i < padded * kParts && column < n
                   ? load_word4(means + int64_t{block_of(column)} * kD + i % kParts * 16)
                   : Word4{0, 0, 0, 0};
      }
      VCA_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int i = i0 + k * kThreads, column = column_of(i / kParts);
        if (i >= padded * kParts) break;
        uint32_t* to = word_at(column, i % kParts, 0);
        to[0] = w[k].x;
        to[2] = w[k].y;
        to[128] = w[k].z;
        to[130] = w[k].w;
        int32_t norm = 0;
        VCA_UNROLL
        for (int j = 0; j < 4; ++j) norm = ptx::dp4a(word_of(w[k], j), word_of(w[k], j), norm);
        for (uint32_t mask = 1; mask < kParts; mask *= 2) norm += ptx::shfl_sync_bfly(norm, mask);
        if (i % kParts == 0) base[column] = column < n ? norm * 256 + column / 8 + 1 : INT32_MAX;
      }
    }
  }

 private:
  // Columns g and g + 8 are loaded one after the other: their words lie side by side.
  VCA_DEVICE static int column_of(int i) { return i / kTile * kTile + i % 2 * 8 + i % kTile / 2; }
};

}  // namespace vca::kernels::group
