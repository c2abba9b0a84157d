// SPDX-License-Identifier: Apache-2.0
// The CPU attention kernel, written once and compiled once a unit. Lanes are query rows: scores,
// codes, sums, maxima and outputs of 16 (8, 4) rows stand side by side, so the whole schedule of
// src/spec/attention.hpp is element-wise, needs no reduction across lanes, and gives the bits of
// the specification at every width.
//
// A tile holds 64 rows. For every block of 128 keys
//   K and V are decoded to FP32 once          integers and E4M3 products are exact in FP32
//   scores  S[n][row]  += Q[i][row] * K[n][i]   i ascending
//   P       in place of S
//   output  T[d][row]  += P[n][row] * V[n][d]   n ascending
// Both products are the same register-blocked loop with two strides. The including unit defines
// VCA_CPU_RUN_TILE.

#include "cpu/kernel.hpp"

namespace vca::cpu {
namespace {

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
  float max[4][kTileRows];  // largest score by scale group
  float unit[kTileRows], m_run[kTileRows], alpha[kTileRows], w[kTileRows], bias[kTileRows];
  float beta[kTileRows], sum[kTileRows];
};
static_assert(sizeof(Scratch) <= kScratchBytes);

// ---- the two products ----

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

// ---- softmax ----

// Columns that the block mask allows; null stands for all of a block.
using AllowedColumns = const uint8_t*;

void block_maxima_of(Scratch& t, AllowedColumns allowed) {
  for (int row = 0; row < kTileRows; row += kLanes)
    for (int g = 0; g < 4; ++g) {
      Vf m = set1(-__builtin_inff());
      for (int n = 2 * g; n < kTileBlock; n += n % 2 == 0 ? 1 : 7)
        if (allowed[n]) m = max_or_b(load(&t.s[n][row]), m);
      store(&t.max[g][row], m);
    }
}

void block_maxima(Scratch& t) {
  for (int row = 0; row < kTileRows; row += kLanes)
    for (int g = 0; g < 4; ++g) {
      Vf m = max_or_b(load(&t.s[2 * g][row]), load(&t.s[2 * g + 1][row]));
      for (int n = 8; n < kTileBlock; n += 8) {
        m = max_or_b(m, load(&t.s[n + 2 * g][row]));
        m = max_or_b(m, load(&t.s[n + 2 * g + 1][row]));
      }
      store(&t.max[g][row], m);
    }
}

// Score factors, maxima, rescale factors and the bias of the codes.
void block_factors(Scratch& t, const TileTask& task, int64_t block, AllowedColumns allowed) {
  bool present[4] = {true, true, true, true};  // scale groups with a column that counts
  if (allowed != nullptr) {
    for (bool& p : present) p = false;
    for (int n = 0; n < kTileBlock; ++n) present[n % 8 / 2] |= allowed[n] != 0;
  }
  const float* k_scale = task.k_scale + block * 4;
  for (int row = 0; row < kTileRows; ++row) {
    float top = 0.0f;
    bool first = true;
    for (int g = 0; g < 4; ++g) {
      t.a[g][row] = t.unit[row] * k_scale[g];
      if (!present[g]) continue;
      const float product = mul_ru(t.max[g][row], t.a[g][row]);
      top = first || top < product ? product : top;
      first = false;
    }
    const float m_block = ceil_sixteenth(top);
    const float m_new = t.m_run[row] < m_block ? m_block : t.m_run[row];
    t.alpha[row] = pow2_code(task.exp2_fractions, t.m_run[row] - m_new);
    t.w[row] = pow2_code(task.exp2_fractions, m_block - m_new);
    t.bias[row] = sub_rd(task.top, task.order_kind == kOrderLocal ? m_block : m_new);
    t.m_run[row] = m_new;
  }
}

// NVFP4 codes of 16 keys and the group's share of the sum, from s[0 .. count) = code units.
template <PKind kP>
void fp4_group(Scratch& t, const TileTask& task, int n0, int count, int row, AllowedColumns allowed,
               Vf& sum) {
  const auto skipped = [=](int n) { return allowed != nullptr && !allowed[n0 + n]; };
  bool any = false;
  Vf top = set1(-__builtin_inff());
  for (int n = 0; n < count; ++n) {
    if (skipped(n)) {
      store(&t.s[n0 + n][row], set1(0.0f));
      continue;
    }
    top = any ? max_or_b(top, load(&t.s[n0 + n][row])) : load(&t.s[n0 + n][row]);
    any = true;
  }
  if (!any) return;
  const Vf largest = exp2_cpu(mul(top, set1(0.125f)));
  Vf scale = round_e4m3(mul(largest, set1(1.0f / 6.0f)));
  Vf terms = set1(0.0f);
  if constexpr (kP == kPFp4Folded) {
    scale = max_or_b(scale, set1(0x1p-9f));  // code 1
    alignas(64) float log_scale[kLanes];
    store(log_scale, scale);
    for (float& x : log_scale) {
      const uint32_t code = x < 0x1p-6f ? (uint32_t)(x * 512.0f) : (word(x) >> 20) - (120u << 3);
      x = task.log_scales[code];
    }
    const Vf fold = load(log_scale);
    for (int n = 0; n < count; ++n) {
      if (skipped(n)) continue;
      float* s = &t.s[n0 + n][row];
      const Vf e = exp2_cpu(mul(sub(load(s), fold), set1(0.125f)));
      terms = add(terms, e);
      store(s, mul(round_e2m1(e), scale));
    }
    terms = mul(scale, terms);
  } else {
    // A scale of zero gives zero codes: 1/0 is never used.
    const Vf inverse = select_ge(scale, set1(0x1p-9f),
                                 div(set1(1.0f), max_or_b(scale, set1(0x1p-9f))), set1(0.0f));
    for (int n = 0; n < count; ++n) {
      if (skipped(n)) continue;
      float* s = &t.s[n0 + n][row];
      const Vf e = exp2_cpu(mul(load(s), set1(0.125f)));
      terms = add(terms, e);
      store(s, mul(round_e2m1(mul(e, inverse)), scale));
    }
  }
  sum = add(sum, terms);
}

template <PKind kP>
void fp4_probabilities(Scratch& t, const TileTask& task, int n_valid, AllowedColumns allowed) {
  for (int row = 0; row < kTileRows; row += kLanes) {
    const Vf bias = load(&t.bias[row]);
    Vf sum = set1(0.0f);
    for (int n0 = 0; n0 < n_valid; n0 += kMicroGroup) {
      const int count = n_valid - n0 < kMicroGroup ? n_valid - n0 : kMicroGroup;
      for (int n = n0; n < n0 + count; ++n)
        store(&t.s[n][row], fma_rn(load(&t.s[n][row]), load(&t.a[n % 8 / 2][row]), bias));
      fp4_group<kP>(t, task, n0, count, row, allowed, sum);
    }
    store(&t.sum[row], sum);
  }
}

template <PKind kP>
void probabilities(Scratch& t, int n_valid, AllowedColumns allowed) {
  const auto skipped = [=](int n) { return allowed != nullptr && !allowed[n]; };
  for (int row = 0; row < kTileRows; row += kLanes) {
    const Vf bias = load(&t.bias[row]);
    Vf a[4];
    for (int g = 0; g < 4; ++g) a[g] = load(&t.a[g][row]);
    if constexpr (kP == kPExpCast) {
      for (int n = 0; n < n_valid; ++n) {
        const Vf x = fma_rn(load(&t.s[n][row]), a[n % 8 / 2], bias);
        store(&t.s[n][row], skipped(n) ? set1(0.0f) : expcast_value(x));
      }
      Vf sum = set1(0.0f);
      for (int n = 0; n < n_valid; ++n) sum = add(sum, load(&t.s[n][row]));
      store(&t.sum[row], sum);
    } else {
      Vf lane[16];
      for (Vf& x : lane) x = set1(0.0f);
      for (int n = 0; n < n_valid; ++n) {
        if (skipped(n)) {
          store(&t.s[n][row], set1(0.0f));
          continue;
        }
        const Vf x = fma_rn(load(&t.s[n][row]), a[n % 8 / 2], bias);
        const Vf e = exp2_cpu(mul(x, set1(0.125f)));
        lane[n % 16] = add(lane[n % 16], e);
        store(&t.s[n][row], kP == kPCastE4m3 ? round_e4m3(e) : kP == kPCastU8 ? round_u8(e) : e);
      }
      for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) lane[i] = add(lane[2 * i], lane[2 * i + 1]);
      store(&t.sum[row], lane[0]);
    }
  }
}

// l and the block sums R, before and after the block's own sum.
void accumulate_sums(Scratch& t, const TileTask& task, int64_t block) {
  const int slot = (int)(block % kGroup);
  for (int row = 0; row < kTileRows; row += kLanes) {
    const Vf alpha = load(&t.alpha[row]), sum = load(&t.sum[row]);
    if (task.order_kind == kOrderPlain || task.order_kind == kOrderMeans) {
      store(&t.l[0][row], add(mul(load(&t.l[0][row]), alpha), sum));
      continue;
    }
    for (auto& quad : t.l) store(&quad[row], mul(load(&quad[row]), alpha));
    for (auto& r : t.r) store(&r[row], mul(load(&r[row]), alpha));
    if (task.order_kind == kOrderLocal) {
      store(&t.r[slot][row], fma_rn(sum, load(&t.w[row]), load(&t.r[slot][row])));
    } else {
      store(&t.r[slot][row], sum);
      store(&t.beta[row], mul(load(&t.beta[row]), alpha));
    }
  }
}

// Every 8 blocks: l takes the rounded block sums, and the block means come back.
void restore_means(Scratch& t, const TileTask& task, int64_t first_block) {
  for (auto& r : t.r)
    for (float& x : r) x = rna_tf32(x);
  for (int quad = 0; quad < 4; ++quad)
    for (int row = 0; row < kTileRows; row += kLanes)
      store(&t.l[quad][row], add(load(&t.l[quad][row]),
                                 add(load(&t.r[2 * quad][row]), load(&t.r[2 * quad + 1][row]))));
  const bool running = task.order_kind == kOrderRunning;
  for (int d = 0; d < task.head_dim; ++d)
    for (int row = 0; row < kTileRows; row += kLanes) {
      Vf x = load(&t.o[d][row]);
      if (running) {
        x = fma_rn(load(&t.mean[d][row]), load(&t.beta[row]), x);
        store(&t.o[d][row], set1(0.0f));
      }
      for (int c = 0; c < kGroup; ++c) {
        const bool present = first_block + c < task.n_blocks;
        const float mu = present ? task.mu[(first_block + c) * task.d_pad + d] : 0.0f;
        x = add(x, mul(load(&t.r[c][row]), set1(mu)));
      }
      store(running ? &t.mean[d][row] : &t.o[d][row], x);
    }
  for (auto& r : t.r)
    for (float& x : r) x = 0.0f;
  for (float& beta : t.beta) beta = 1.0f;
}

// ---- the tile ----

void start(Scratch& t, const TileTask& task) {
  for (int row = 0; row < kTileRows; ++row) {
    t.unit[row] = row < task.rows ? task.q_unit[row] : 0.0f;
    t.m_run[row] = -__builtin_inff();
    t.beta[row] = 1.0f;
  }
  __builtin_memset(t.o, 0, sizeof(t.o));
  __builtin_memset(t.mean, 0, sizeof(t.mean));
  __builtin_memset(t.r, 0, sizeof(t.r));
  __builtin_memset(t.l, 0, sizeof(t.l));
  if (kHasDot4 && task.qk == kQkInt8) {
    pack_queries(t, task);
    return;
  }
  __builtin_memset(t.q, 0, sizeof(t.q));
  alignas(64) float decoded[kMaxDims];
  for (int row = 0; row < task.rows; ++row) {
    const int64_t at = (int64_t)row * task.d_pad;
    if (task.qk == kQkBf16) {
      copy_row(task.q_real + at, task.d_pad, decoded);
    } else if (task.qk == kQkFp4) {
      decode_fp4_row(task.q_codes + at / 2, task.q_micro + at / kMicroGroup, kMicroGroup,
                     task.d_pad, decoded);
    } else {
      decode_row(task.qk == kQkE4m3, task.q_codes + at, task.d_pad, decoded);
    }
    for (int i = 0; i < task.qk_dims; ++i) t.q[i][row] = decoded[i];
  }
}

void decode_block(Scratch& t, const TileTask& task, int64_t block) {
  for (int n = 0; n < kTileBlock; ++n) {
    const int64_t at = (block * kTileBlock + n) * task.d_pad;
    if (task.qk == kQkBf16) {
      copy_row(task.k_real + at, task.d_pad, t.k[n]);
    } else if (task.qk == kQkFp4) {
      decode_fp4_row(task.k_codes + at / 2, task.k_micro + at / kMicroGroup, kMicroGroup,
                     task.d_pad, t.k[n]);
    } else if (task.qk == kQkE4m3 || !kHasDot4) {
      decode_row(task.qk == kQkE4m3, task.k_codes + at, task.d_pad, t.k[n]);
    }
    if (task.v == kVBf16) {
      copy_row(task.v_real + at, task.d_pad, t.v[n]);
    } else if (task.v == kVFp4) {
      const int64_t group = (block * kTileBlock + n) / kMicroGroup;
      decode_fp4_row(task.v_codes + at / 2, task.v_micro + group * task.d_pad, 1, task.d_pad,
                     t.v[n]);
    } else {
      decode_row(task.v == kVE4m3, task.v_codes + at, task.d_pad, t.v[n]);
    }
  }
}

int valid_columns(const TileTask& task, int64_t block) {
  const int32_t* order = task.order + block * kTileBlock;
  int n = kTileBlock;
  while (n > 0 && order[n - 1] < 0) --n;
  return n;
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

// Which of a block's valid columns the mask allows, and how many.
int mask_columns(const TileTask& task, int64_t block, int n_valid, uint8_t* allowed) {
  const int32_t* order = task.order + block * kTileBlock;
  int count = 0;
  for (int n = 0; n < kTileBlock; ++n) {
    allowed[n] = n < n_valid && task.mask[order[n] / kTileBlock] != 0;
    count += allowed[n];
  }
  return count;
}

// The running and local orders restore means every 8 blocks.
void end_group(Scratch& t, const TileTask& task, int64_t block) {
  if (task.order_kind == kOrderPlain || task.order_kind == kOrderMeans) return;
  if (block % kGroup == kGroup - 1 || block == task.n_blocks - 1)
    restore_means(t, task, block / kGroup * kGroup);
}

void run_block(Scratch& t, const TileTask& task, int64_t block) {
  const int n_valid = valid_columns(task, block);
  uint8_t columns[kTileBlock];
  AllowedColumns allowed = nullptr;
  if (task.mask != nullptr) {
    const int count = mask_columns(task, block, n_valid, columns);
    if (count == 0) {
      end_group(t, task, block);
      return;
    }
    if (count < n_valid) allowed = columns;
  }
  decode_block(t, task, block);
  if (kHasDot4 && task.qk == kQkInt8) {
    scores_int8(t, task, task.k_codes + block * kTileBlock * task.d_pad);
  } else if (task.qk == kQkBf16) {
    scores_fp32<false>(t, task.qk_dims, nullptr);
  } else {
    scores_fp32<true>(t, task.qk_dims,
                      task.delta != nullptr ? task.delta + block * kTileBlock : nullptr);
  }
  if (allowed != nullptr) {
    block_maxima_of(t, allowed);
  } else {
    block_maxima(t);
  }
  block_factors(t, task, block, allowed);
  switch (task.p) {
    case kPExpCast:
      probabilities<kPExpCast>(t, n_valid, allowed);
      break;
    case kPCastE4m3:
      probabilities<kPCastE4m3>(t, n_valid, allowed);
      break;
    case kPCastU8:
      probabilities<kPCastU8>(t, n_valid, allowed);
      break;
    case kPFp32:
      probabilities<kPFp32>(t, n_valid, allowed);
      break;
    case kPFp4:
      fp4_probabilities<kPFp4>(t, task, n_valid, allowed);
      break;
    case kPFp4Folded:
      fp4_probabilities<kPFp4Folded>(t, task, n_valid, allowed);
      break;
  }
  accumulate_sums(t, task, block);
  switch (task.order_kind) {
    case kOrderPlain:
      accumulate_output<kOrderPlain>(t, task, block, n_valid);
      return;
    case kOrderMeans:
      accumulate_output<kOrderMeans>(t, task, block, n_valid);
      return;
    case kOrderLocal:
      accumulate_output<kOrderLocal>(t, task, block, n_valid);
      break;
    case kOrderRunning:
      accumulate_output<kOrderRunning>(t, task, block, n_valid);
      break;
  }
  end_group(t, task, block);
}

void finish(const Scratch& t, const TileTask& task) {
  const auto& o = task.order_kind == kOrderRunning ? t.mean : t.o;
  for (int row = 0; row < task.rows; ++row) {
    // Orders without groups keep l in one sum; adding three zeros changes nothing.
    const float l = (t.l[0][row] + t.l[1][row]) + (t.l[2][row] + t.l[3][row]);
    const float inverse = 1.0f / l;
    float* out = task.o + (int64_t)row * task.head_dim;
    task.l[row] = l;
    task.m_run[row] = t.m_run[row];
    if (t.m_run[row] == -__builtin_inff()) {  // a mask that leaves no key
      for (int d = 0; d < task.head_dim; ++d) out[d] = 0.0f;
      continue;
    }
    for (int d = 0; d < task.head_dim; ++d) out[d] = (o[d][row] * inverse) * task.s_v[d];
  }
}

}  // namespace

void VCA_CPU_RUN_TILE(const TileTask& task, void* scratch) {
  Scratch& t = *static_cast<Scratch*>(scratch);
  start(t, task);
  for (int64_t block = 0; block < task.n_blocks; ++block) run_block(t, task, block);
  finish(t, task);
}

}  // namespace vca::cpu
