// SPDX-License-Identifier: Apache-2.0
// O = RN(RN(acc * RN(1/l)) * s_v), stored in the output type (B8), and LSE (D3).
#pragma once

#include <cmath>

#include "kernels/common/scheduler.hpp"
#include "kernels/sm90/config.hpp"

namespace vca::kernels::sm90 {

VCA_DEVICE void store_pair(void* o, OutType type, int64_t offset, float x0, float x1, bool both) {
  if (type == OutType::fp32) {
    float* at = static_cast<float*>(o) + offset;
    at[0] = x0;
    if (both) at[1] = x1;
    return;
  }
  const uint32_t bits =
      type == OutType::bf16 ? ptx::cvt_rn_bf16x2_f32(x0, x1) : ptx::cvt_rn_f16x2_f32(x0, x1);
  uint16_t* at = static_cast<uint16_t*>(o) + offset;
  if (both && offset % 2 == 0) {
    *reinterpret_cast<uint32_t*>(at) = bits;
    return;
  }
  at[0] = static_cast<uint16_t>(bits & 0xFFFFu);
  if (both) at[1] = static_cast<uint16_t>(bits >> 16);
}

template <Config C>
VCA_DEVICE void store_tile(const AttentionParams& p, const Tile& tile, uint32_t group,
                           const float* acc, float l0, float l1, float m0, float m1) {
  const uint32_t lane = ptx::thread_index() % 32u, warp = ptx::thread_index() % 128u / 32u;
  // (l_0 + l_1) + (l_2 + l_3) over the quad; without block means each lane has the whole sum.
  if constexpr (C.means()) {
    l0 = ptx::add_rn(l0, ptx::shfl_sync_bfly(l0, 1));
    l1 = ptx::add_rn(l1, ptx::shfl_sync_bfly(l1, 1));
    l0 = ptx::add_rn(l0, ptx::shfl_sync_bfly(l0, 2));
    l1 = ptx::add_rn(l1, ptx::shfl_sync_bfly(l1, 2));
  }
  const float inverse0 = ptx::rcp_rn(l0), inverse1 = ptx::rcp_rn(l1);
  const SubInfo& sub = p.subs[tile.sub];
  const int64_t row0 = tile.row0 + group * 64 + warp * 16 + lane / 4u;
  const bool valid0 = row0 < sub.q_len, valid1 = row0 + 8 < sub.q_len;
  const int64_t base = sub.batch * p.o_stride_b + tile.head * p.o_stride_h;
  const int64_t at0 = base + (sub.q_begin + row0) * p.o_stride_s;
  const int64_t at1 = at0 + 8 * p.o_stride_s;
  const float* s_v = p.s_v + (int64_t{tile.sub} * p.h_kv + tile.head / (p.h_q / p.h_kv)) * C.d;
#pragma unroll
  for (int i = 0; i < C.d / 8; ++i) {
    const int column = 8 * i + 2 * static_cast<int>(lane % 4u);
    if (column >= p.head_dim) continue;
    const bool both = column + 1 < p.head_dim;
    const float v0 = s_v[column], v1 = both ? s_v[column + 1] : 0.0f;
    if (valid0)
      store_pair(p.o, p.o_type, at0 + column, ptx::mul_rn(ptx::mul_rn(acc[4 * i], inverse0), v0),
                 ptx::mul_rn(ptx::mul_rn(acc[4 * i + 1], inverse0), v1), both);
    if (valid1)
      store_pair(p.o, p.o_type, at1 + column,
                 ptx::mul_rn(ptx::mul_rn(acc[4 * i + 2], inverse1), v0),
                 ptx::mul_rn(ptx::mul_rn(acc[4 * i + 3], inverse1), v1), both);
  }
  if (p.lse == nullptr || lane % 4u != 0u) return;
  // Outside bit equality; written so that nothing overflows that need not: 2^e m may be large.
  constexpr float kUnit = 0.0866433976f;  // ln2 / 8
  const int e = p.exponent[tile.sub * p.h_q + tile.head];
  float* lse = p.lse + (sub.batch * p.h_q + tile.head) * p.lse_s + sub.q_begin;
  const float* offset = p.qk_offset != nullptr ? p.qk_offset + tile.q_tile * 128 : nullptr;
  const int64_t in_tile = group * 64 + warp * 16 + lane / 4u;
  if (valid0)
    lse[row0] = ldexpf(m0 * kUnit + (logf(l0) - p.log_p_max), e) +
                (offset != nullptr ? offset[in_tile] : 0.0f);
  if (valid1)
    lse[row0 + 8] = ldexpf(m1 * kUnit + (logf(l1) - p.log_p_max), e) +
                    (offset != nullptr ? offset[in_tile + 8] : 0.0f);
}

}  // namespace vca::kernels::sm90
