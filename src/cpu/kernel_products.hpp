// SPDX-License-Identifier: Apache-2.0
// The two products of a tile, scores = K Q and output += P V: one register-blocked loop with two
// strides, and byte dot products where the unit has them.
#pragma once

#include "cpu/kernel_scratch.hpp"

constexpr int kRowBlock = kVectors < 4 ? kVectors : (kLanes == 16 ? 4 : 2);
constexpr int kColumnBlock = 4;

// acc[c][row] (+)= sum over y of A[y][row] * B[y * y_stride + c * c_stride], y ascending.
template <bool kExactProducts>
inline void product_block(const float (*a)[kTileRows], int row, const float* b, int64_t y_stride,
                          int64_t c_stride, int n, Vf (&acc)[kColumnBlock][kRowBlock]) {
  for (int y = 0; y < n; ++y) {
    Vf left[kRowBlock];
    for (int r = 0; r < kRowBlock; ++r) left[r] = load(&a[y][row + r * kLanes]);
    for (int c = 0; c < kColumnBlock; ++c) {
      const Vf right = set1(b[y * y_stride + c * c_stride]);
      for (int r = 0; r < kRowBlock; ++r)
        acc[c][r] = kExactProducts ? add_exact_product(left[r], right, acc[c][r])
                                   : add(acc[c][r], mul(left[r], right));
    }
  }
}

// `delta` (null: zeros): what the scores of each key start from.
template <bool kExactProducts>
void scores_fp32(Scratch& t, int dims, const float* delta) {
  for (int n = 0; n < kTileBlock; n += kColumnBlock)
    for (int row = 0; row < kTileRows; row += kRowBlock * kLanes) {
      Vf acc[kColumnBlock][kRowBlock];
      for (int c = 0; c < kColumnBlock; ++c)
        for (int r = 0; r < kRowBlock; ++r)
          acc[c][r] = set1(delta != nullptr ? delta[n + c] : 0.0f);
      product_block<kExactProducts>(t.q, row, t.k[n], 1, kMaxDims, dims, acc);
      for (int c = 0; c < kColumnBlock; ++c)
        for (int r = 0; r < kRowBlock; ++r) store(&t.s[n + c][row + r * kLanes], acc[c][r]);
    }
}

template <OrderKind kOrder, bool kExactProducts>
void accumulate_output(Scratch& t, const TileTask& task, int64_t block, int n_valid) {
  const float* mu = kOrder == kOrderMeans ? task.mu + block * task.d_pad : nullptr;
  const float* v_scale = task.v == kVInt8 ? task.v_scale + block * task.d_pad : nullptr;
  for (int d = 0; d < task.head_dim; d += kColumnBlock)
    for (int row = 0; row < kTileRows; row += kRowBlock * kLanes) {
      Vf acc[kColumnBlock][kRowBlock];
      for (int c = 0; c < kColumnBlock; ++c)
        for (int r = 0; r < kRowBlock; ++r) {
          const int at = row + r * kLanes;
          acc[c][r] = set1(0.0f);
          if (kOrder == kOrderRunning || kOrder == kOrderMeans)
            acc[c][r] = mul(load(&t.o[d + c][at]), load(&t.alpha[at]));
          if (kOrder == kOrderMeans)
            acc[c][r] = fma_rn(load(&t.sum[at]), set1(mu[d + c]), acc[c][r]);
        }
      product_block<kExactProducts>(t.s, row, &t.v[0][d], kMaxDims, 1, n_valid, acc);
      for (int c = 0; c < kColumnBlock; ++c)
        for (int r = 0; r < kRowBlock; ++r) {
          const int at = row + r * kLanes;
          Vf x = acc[c][r];
          // The zeros of the pads: they only turn a -0 into +0.
          if (n_valid < kTileBlock) x = add(x, set1(0.0f));
          if (kOrder == kOrderPlain) x = add(mul(load(&t.o[d + c][at]), load(&t.alpha[at])), x);
          if (kOrder == kOrderLocal) {
            if (v_scale != nullptr) x = mul(x, set1(v_scale[d + c]));
            x = fma_rn(x, load(&t.w[at]), mul(load(&t.o[d + c][at]), load(&t.alpha[at])));
          }
          store(&t.o[d + c][at], x);
        }
    }
}

template <OrderKind kOrder>
void accumulate_output(Scratch& t, const TileTask& task, int64_t block, int n_valid) {
  // E4M3 x E4M3 and u8 x INT8 products are exact in FP32; an FP32 probability times BF16 is not.
  if (task.p == kPFp32) {
    accumulate_output<kOrder, false>(t, task, block, n_valid);
  } else {
    accumulate_output<kOrder, true>(t, task, block, n_valid);
  }
}

#ifdef VCA_CPU_HAS_DOT4

// INT8 scores by 4-way byte products: q + 128 is unsigned, and 128 * sum(k) is taken out
// beforehand. Exact.
void pack_queries(Scratch& t, const TileTask& task) {
  auto* packed = reinterpret_cast<uint8_t*>(t.q);
  __builtin_memset(packed, 128, (size_t)task.qk_dims * kTileRows);
  for (int row = 0; row < task.rows; ++row)
    for (int i = 0; i < task.qk_dims; ++i)
      packed[(i / 4 * kTileRows + row) * 4 + i % 4] =
          (uint8_t)(task.q_codes[(int64_t)row * task.d_pad + i] ^ 0x80u);
}

void scores_int8(Scratch& t, const TileTask& task, const uint8_t* k_codes) {
  constexpr int kKeys = 4;
  const auto* q = reinterpret_cast<const uint8_t*>(t.q);
  const int quads = task.qk_dims / 4;
  for (int n = 0; n < kTileBlock; n += kKeys) {
    const uint8_t* k[kKeys];
    __m512i start[kKeys];
    for (int c = 0; c < kKeys; ++c) {
      k[c] = k_codes + (int64_t)(n + c) * task.d_pad;
      int32_t sum = 0;
      for (int i = 0; i < task.qk_dims; ++i) sum += (int8_t)k[c][i];
      start[c] = _mm512_set1_epi32(-128 * sum);
    }
    __m512i acc[kKeys][kVectors];
    for (int c = 0; c < kKeys; ++c)
      for (int r = 0; r < kVectors; ++r) acc[c][r] = start[c];
    for (int i = 0; i < quads; ++i) {
      __m512i left[kVectors];
      for (int r = 0; r < kVectors; ++r)
        left[r] = _mm512_load_si512(q + (i * kTileRows + r * kLanes) * 4);
      for (int c = 0; c < kKeys; ++c) {
        int32_t four;
        __builtin_memcpy(&four, k[c] + 4 * i, 4);
        const __m512i right = _mm512_set1_epi32(four);
        for (int r = 0; r < kVectors; ++r)
          acc[c][r] = _mm512_dpbusd_epi32(acc[c][r], left[r], right);
      }
    }
    for (int c = 0; c < kKeys; ++c)
      for (int r = 0; r < kVectors; ++r)
        store(&t.s[n + c][r * kLanes], _mm512_cvtepi32_ps(acc[c][r]));
  }
}

constexpr bool kHasDot4 = true;

#else

constexpr bool kHasDot4 = false;
void pack_queries(Scratch&, const TileTask&) {}
void scores_int8(Scratch&, const TileTask&, const uint8_t*) {}

#endif
