// SPDX-License-Identifier: Apache-2.0
// What one tile of query rows keeps between its steps, rows side by side. Included inside the
// unit's unnamed namespace, like the other kernel_*.hpp.
#pragma once

#include "cpu/kernel_math.hpp"

constexpr int kMaxDims = 128;
constexpr int kVectors = kTileRows / kLanes;  // vectors of a tile's rows
constexpr int kGroup = 8;                     // blocks between two mean restores
constexpr int kMicroGroup = 16;               // NVFP4 elements under one micro-scale

struct Scratch {
  float q[kMaxDims][kTileRows];     // Q^T; with integer dot products also as packed bytes
  float s[kTileBlock][kTileRows];   // scores, then P
  float o[kMaxDims][kTileRows];     // O, or the MMA accumulator of the running order
  float mean[kMaxDims][kTileRows];  // running order: the accumulator with the means
  float k[kTileBlock][kMaxDims];    // decoded keys, pitch kMaxDims
  float v[kTileBlock][kMaxDims];    // decoded values
  float r[kGroup][kTileRows];       // block sums of a group
  float l[4][kTileRows];
  float a[4][kTileRows];    // score factors of the block
  float c[4][kTileRows];    // addends of the code line
  float max[4][kTileRows];  // largest score by scale group
  float unit[kTileRows], m_run[kTileRows], alpha[kTileRows], w[kTileRows], bias[kTileRows];
  float beta[kTileRows], sum[kTileRows];
};
static_assert(sizeof(Scratch) <= kScratchBytes);
