// SPDX-License-Identifier: Apache-2.0
// From a block's scores to its probabilities: maxima, factors, and P with its sum.
#pragma once

#include "cpu/kernel_scratch.hpp"

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

// ExpCast of INT8 dots: the dots' offset in the code line (kScoreMagic of src/spec/arith.hpp).
constexpr float kScoreMagic = 12582912.0f;
constexpr float kLazySlack = 128.0f;  // as there

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
    const bool local = task.order_kind == kOrderLocal;
    const float m_block = ceil_sixteenth(top);
    const float m_new =
        t.m_run[row] + (local ? kLazySlack : 0.0f) < m_block ? m_block : t.m_run[row];
    t.alpha[row] = pow2_code(task.exp2_fractions, t.m_run[row] - m_new);
    if (local) t.w[row] = block_weight(m_block - m_new);
    t.bias[row] = sub_rd(task.top, local ? m_block : m_new);
    t.m_run[row] = m_new;
    if (task.p != kPExpCast) continue;
    for (int g = 0; g < 4; ++g)
      t.c[g][row] =
          task.qk == kQkInt8 ? fma_rd(-kScoreMagic, t.a[g][row], t.bias[row]) : t.bias[row];
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
void probabilities(Scratch& t, const TileTask& task, int n_valid, AllowedColumns allowed) {
  const auto skipped = [=](int n) { return allowed != nullptr && !allowed[n]; };
  for (int row = 0; row < kTileRows; row += kLanes) {
    const Vf bias = load(&t.bias[row]);
    Vf a[4];
    for (int g = 0; g < 4; ++g) a[g] = load(&t.a[g][row]);
    if constexpr (kP == kPExpCast) {
      const Vf offset = set1(task.qk == kQkInt8 ? kScoreMagic : 0.0f);
      Vf c[4];
      for (int g = 0; g < 4; ++g) c[g] = load(&t.c[g][row]);
      for (int n = 0; n < n_valid; ++n) {
        const Vf x = fma_rn(add(load(&t.s[n][row]), offset), a[n % 8 / 2], c[n % 8 / 2]);
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
