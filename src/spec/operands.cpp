// SPDX-License-Identifier: Apache-2.0
#include "spec/operands.hpp"

#include "spec/fp4.hpp"

namespace vca::spec {

KvSizes kv_sizes(const Recipe& r, int64_t n_blocks, int d_pad) {
  const int64_t cols = n_blocks * kBlock;
  const bool real = r.id == RecipeId::bf16;
  const bool smooth = r.v_smooth(), fp4_k = r.qk == QkFormat::nvfp4;
  KvSizes s{};
  s.order = cols;
  s.k_codes = real ? 0 : cols * d_pad / (fp4_k ? 2 : 1);
  s.k_scale = n_blocks * 4;
  s.v_codes = real ? 0 : cols * d_pad / (r.fp4_v() ? 2 : 1);
  s.mu = smooth ? n_blocks * d_pad : 0;
  s.v_scale = r.v == VFormat::int8_smooth ? n_blocks * d_pad : 0;
  s.s_v = d_pad;
  s.k_offset = d_pad;
  s.k_real = real || r.q_mean ? cols * d_pad : 0;
  s.v_real = real ? cols * d_pad : 0;
  s.k_micro = fp4_k ? cols * d_pad / kMicroGroup : 0;
  s.v_micro = r.fp4_v() ? cols / kMicroGroup * d_pad : 0;
  return s;
}

QSizes q_sizes(const Recipe& r, int64_t rows, int d_pad, bool lse) {
  const bool real = r.id == RecipeId::bf16;
  QSizes s{};
  const bool fp4 = r.qk == QkFormat::nvfp4;
  s.q_codes = real ? 0 : rows * d_pad / (fp4 ? 2 : 1);
  s.q_scale = (rows + 15) / 16 * 8;
  s.qk_offset = lse ? rows : 0;
  s.q_real = real ? rows * d_pad : 0;
  s.max_q_scale = 1;
  s.q_micro = fp4 ? rows * d_pad / kMicroGroup : 0;
  s.q_mean = r.q_mean ? (rows + kBlock - 1) / kBlock * d_pad : 0;
  return s;
}

void allocate(const Recipe& r, int64_t n_valid, int64_t n_blocks, int d_pad, OwnedKv& out) {
  const KvSizes s = kv_sizes(r, n_blocks, d_pad);
  out.i32.assign(static_cast<size_t>(s.order), 0);
  out.bytes.assign(static_cast<size_t>(s.k_codes + s.v_codes + s.k_micro + s.v_micro), 0);
  out.f32.assign(
      static_cast<size_t>(s.k_scale + s.mu + s.v_scale + s.s_v + s.k_offset + s.k_real + s.v_real),
      0.0f);
  out.stats = {};
  KvOperands& v = out.view;
  v = {};
  v.n_valid = n_valid;
  v.n_blocks = n_blocks;
  v.d_pad = d_pad;
  v.order = out.i32.data();
  v.k_codes = out.bytes.data();
  v.v_codes = out.bytes.data() + s.k_codes;
  v.k_micro = s.k_micro > 0 ? v.v_codes + s.v_codes : nullptr;
  v.v_micro = s.v_micro > 0 ? v.v_codes + s.v_codes + s.k_micro : nullptr;
  float* f = out.f32.data();
  const auto take = [&f](int64_t n) {
    float* at = n > 0 ? f : nullptr;
    f += n;
    return at;
  };
  v.k_scale = take(s.k_scale);
  v.mu = take(s.mu);
  v.v_scale = take(s.v_scale);
  v.s_v = take(s.s_v);
  v.k_offset = take(s.k_offset);
  v.k_real = take(s.k_real);
  v.v_real = take(s.v_real);
  v.stats = &out.stats;
}

void allocate(const Recipe& r, int64_t rows, int d_pad, bool lse, OwnedQ& out) {
  const QSizes s = q_sizes(r, rows, d_pad, lse);
  out.bytes.assign(static_cast<size_t>(s.q_codes + s.q_micro), 0);
  out.f32.assign(static_cast<size_t>(s.q_scale + s.qk_offset + s.q_real + s.max_q_scale + s.q_mean),
                 0.0f);
  QOperands& v = out.view;
  v = {};
  v.rows = rows;
  v.d_pad = d_pad;
  v.q_codes = out.bytes.data();
  v.q_scale = out.f32.data();
  v.qk_offset = lse ? v.q_scale + s.q_scale : nullptr;
  v.q_real = s.q_real > 0 ? v.q_scale + s.q_scale + s.qk_offset : nullptr;
  v.max_q_scale = v.q_scale + s.q_scale + s.qk_offset + s.q_real;
  v.q_micro = s.q_micro > 0 ? out.bytes.data() + s.q_codes : nullptr;
  v.q_mean = s.q_mean > 0 ? v.max_q_scale + 1 : nullptr;
}

}  // namespace vca::spec
