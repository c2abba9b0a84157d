// SPDX-License-Identifier: Apache-2.0
// Consumer warpgroup: 64 query rows. One iteration issues the scores of the next block and the PV
// of this one, so that the tensor cores always hold work of one warpgroup while the other is in its
// softmax:
//
//   tensor   | QK(j+1) PV(j) |              | QK(j+2) PV(j+1) |
//   registers|                max, codes(j+1), flush(j)        | max, codes(j+2), flush(j+1)
//
// The stream of blocks runs across tile borders: the last iteration of a tile computes the first
// scores of the next tile.
#pragma once

#include "kernels/common/scheduler.hpp"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/epilogue.cuh"
#include "kernels/sm90/load.cuh"
#include "kernels/sm90/softmax.cuh"

namespace vca::kernels::sm90 {

template <Config C>
class Consumer {
 public:
  VCA_DEVICE Consumer(const AttentionParams& p, ptx::SmemAddr smem, uint32_t group)
      : p_(p), smem_(smem), group_(group) {}

  VCA_DEVICE void run() {
    TileScheduler scheduler(p_, ptx::cta_index());
    Tile tile = scheduler.next();
    if (!tile.valid) return;
    unit_ = load_unit(tile);
    ptx::mbarrier_wait_parity(smem_ + C.q_full(q_.index), q_.parity);
    q_desc_ = query_desc();
    first_scores();
    while (tile.valid) {
      const Tile next = scheduler.next();
      run_tile(tile, next);
      tile = next;
    }
  }

 private:
  static constexpr int kORegs = C.o_regs();
  static constexpr int kMeanRegs = C.mean_regs();
  static constexpr bool kLocal = C.form == Form::local;

  VCA_DEVICE uint32_t lane() const { return ptx::thread_index() % 32u; }
  VCA_DEVICE uint32_t warp() const { return ptx::thread_index() % 128u / 32u; }
  VCA_DEVICE bool elected() const { return ptx::thread_index() % 128u == 0u; }

  // Query factors of rows r and r + 8: one value, they share a scale (B4).
  VCA_DEVICE float load_unit(const Tile& t) const {
    return p_.q_unit[t.q_tile * 64 + (group_ * 4 + warp()) * 8 + lane() / 4u];
  }
  VCA_DEVICE ptx::MatrixDesc query_desc() const {
    return ptx::matrix_desc(smem_ + C.q_offset(q_.index) + group_ * (C.qk_tile_bytes() / 2u),
                            C.qk_swizzle());
  }

  VCA_DEVICE void issue_scores(ptx::MatrixDesc q) {
    const ptx::MatrixDesc k = ptx::matrix_desc(smem_ + C.k_offset(0), C.qk_swizzle());
    const ptx::MatrixDesc stage =
        ptx::advance(k, static_cast<uint32_t>(k_.index) * C.qk_tile_bytes());
#pragma unroll
    for (int step = 0; step < C.qk_steps(); ++step)
      ptx::wgmma_m64n128k32_s32_s8_s8(s_, ptx::advance(q, 32u * step),
                                      ptx::advance(stage, 32u * step), step != 0);
    ptx::wgmma_commit_group();
  }

  VCA_DEVICE void issue_values(float (&into)[kORegs], bool accumulate) {
    const ptx::MatrixDesc v = ptx::matrix_desc(smem_ + C.v_offset(0), ptx::Swizzle::b128);
    const ptx::MatrixDesc stage =
        ptx::advance(v, static_cast<uint32_t>(v_.index) * C.v_stage_bytes());
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if constexpr (C.d == 128)
        ptx::wgmma_m64n136k32_f32_e4m3_e4m3(
            into, p_codes_ + 4 * step, ptx::advance(stage, 32u * step), accumulate || step != 0);
      else
        ptx::wgmma_m64n72k32_f32_e4m3_e4m3(
            into, p_codes_ + 4 * step, ptx::advance(stage, 32u * step), accumulate || step != 0);
    }
    ptx::wgmma_commit_group();
  }

  // Maximum, rescale factors and code arguments of the scores in s_. `fresh`: first block of a
  // tile.
  VCA_DEVICE void softmax(bool fresh) {
    const float scale =
        ptx::ld_shared_f32(smem_ + C.k_scale_offset(0) + 16u * k_.index + 4u * (lane() % 4u));
    const float factor = ptx::mul_rn(unit_, scale);
    release_k();
    const RowPair a = {factor, factor};
    const RowPair blk = block_maximum(s_, a);
    const RowPair old = fresh ? RowPair{kMinusInf, kMinusInf} : m_;
    m_ = {max_f32(old.r0, blk.r0), max_f32(old.r1, blk.r1)};
    alpha_ = {rescale_factor(ptx::add_rn(old.r0, -m_.r0)),
              rescale_factor(ptx::add_rn(old.r1, -m_.r1))};
    moved_ = ptx::vote_sync_any(m_.r0 > old.r0 || m_.r1 > old.r1);
    if constexpr (kLocal) {
      weight_ = {rescale_factor(ptx::add_rn(blk.r0, -m_.r0)),
                 rescale_factor(ptx::add_rn(blk.r1, -m_.r1))};
      code_arguments(s_, a, {ptx::sub_rm(p_.top, blk.r0), ptx::sub_rm(p_.top, blk.r1)});
    } else {
      code_arguments(s_, a, {ptx::sub_rm(p_.top, m_.r0), ptx::sub_rm(p_.top, m_.r1)});
    }
#pragma unroll
    for (int i = 0; i < 64; ++i) ptx::keep(s_[i]);
  }

  // Buffers that only wgmma reads: one arrival a warpgroup, after its wait_group.
  VCA_DEVICE void release(uint32_t barrier) {
    if (elected()) ptx::mbarrier_arrive(smem_ + barrier);
  }
  // The K stage also holds the key scales, which every warp loads itself: one arrival a warp.
  VCA_DEVICE void release_k() {
    if (lane() == 0) ptx::mbarrier_arrive(smem_ + C.k_empty(k_.index));
    k_.advance();
  }

  VCA_DEVICE void first_scores() {
    ptx::mbarrier_wait_parity(smem_ + C.k_full(k_.index), k_.parity);
    ptx::wgmma_fence();
    issue_scores(q_desc_);
    ptx::wgmma_wait_group<0>();
    keep_scores();
    softmax(true);
    pack_codes(s_, p_codes_);
  }

  VCA_DEVICE void keep_scores() {
#pragma unroll
    for (int i = 0; i < 64; ++i) ptx::keep(s_[i]);
  }
  VCA_DEVICE static void keep_all(float* x, int n) {
#pragma unroll
    for (int i = 0; i < n; ++i) ptx::keep(x[i]);
  }

  VCA_DEVICE void run_tile(const Tile& tile, const Tile& next) {
    RowPair l = {0.0f, 0.0f};
    RowPair beta = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < kORegs; ++i) o_[i] = 0.0f;
    if constexpr (!kLocal) {
#pragma unroll
      for (int i = 0; i < kMeanRegs; ++i) mean_[i] = 0.0f;
    }
    RowPair m_tile =
        m_;  // the maximum that belongs to l: m_ moves on to the next tile in the last iteration
    const uint32_t q_buffer = static_cast<uint32_t>(q_.index);
    const int n_blocks = tile.n_blocks;
    for (int j0 = 0; j0 < n_blocks; j0 += 8) {
      const int count = n_blocks - j0 < 8 ? n_blocks - j0 : 8;
#pragma unroll 1
      for (int i = 0; i < count; ++i) {
        const bool last = j0 + i == n_blocks - 1;
        if (last && next.valid) {
          q_.advance();
          ptx::mbarrier_wait_parity(smem_ + C.q_full(q_.index), q_.parity);
          q_desc_ = query_desc();
        }
        ptx::mbarrier_wait_parity(smem_ + C.k_full(k_.index), k_.parity);
        ptx::wgmma_fence();
        issue_scores(q_desc_);
        ptx::mbarrier_wait_parity(smem_ + C.v_full(v_.index), v_.parity);
        if constexpr (kLocal)
          issue_values(t_, false);
        else
          issue_values(o_, i != 0);
        const RowPair w = weight_;
        ptx::wgmma_wait_group<1>();
        keep_scores();
        if (last) {
          m_tile = m_;
          if (next.valid) unit_ = load_unit(next);
        }
        softmax(last);
        ptx::wgmma_wait_group<0>();
        if constexpr (kLocal) {
          keep_all(t_, kORegs);
        } else {
          keep_all(o_, kORegs);
        }
        release(C.v_empty(v_.index));
        v_.advance();
        if constexpr (kLocal) merge(w);
        pack_codes(s_, p_codes_);
        // The rescale of the next block, unless a group ends here or the tile does: then it follows
        // the restore.
        if (moved_ && !last && i != 7) rescale(l, beta);
      }
      restore_means(l, beta);
      if (moved_ && j0 + 8 < n_blocks) rescale(l, beta);
    }
    if (elected()) ptx::mbarrier_arrive(smem_ + C.q_empty(static_cast<int>(q_buffer)));
    const float* result = kLocal ? o_ : mean_;
    store_tile<C>(p_, tile, group_, result, l.r0, l.r1, m_tile.r0, m_tile.r1);
  }

  // Block-local form: O = fma(T, w, O), indicator columns included.
  VCA_DEVICE void merge(RowPair w) {
#pragma unroll
    for (int i = 0; i < kORegs; i += 4) {
      o_[i] = ptx::fma_rn(t_[i], w.r0, o_[i]);
      o_[i + 1] = ptx::fma_rn(t_[i + 1], w.r0, o_[i + 1]);
      o_[i + 2] = ptx::fma_rn(t_[i + 2], w.r1, o_[i + 2]);
      o_[i + 3] = ptx::fma_rn(t_[i + 3], w.r1, o_[i + 3]);
    }
  }

  VCA_DEVICE void rescale(RowPair& l, RowPair& beta) {
    l = {ptx::mul_rn(l.r0, alpha_.r0), ptx::mul_rn(l.r1, alpha_.r1)};
    if constexpr (!kLocal)
      beta = {ptx::mul_rn(beta.r0, alpha_.r0), ptx::mul_rn(beta.r1, alpha_.r1)};
#pragma unroll
    for (int i = 0; i < kORegs; i += 4) {
      o_[i] = ptx::mul_rn(o_[i], alpha_.r0);
      o_[i + 1] = ptx::mul_rn(o_[i + 1], alpha_.r0);
      o_[i + 2] = ptx::mul_rn(o_[i + 2], alpha_.r1);
      o_[i + 3] = ptx::mul_rn(o_[i + 3], alpha_.r1);
    }
  }

  // E5: l += R and accumulator += R x mu, R rounded to tf32. R sits in the indicator columns,
  // already in A-fragment order.
  VCA_DEVICE void restore_means(RowPair& l, RowPair& beta) {
    const auto as_float = [](uint32_t bits) {
      union {
        uint32_t u;
        float f;
      } x;
      x.u = bits;
      return x.f;
    };
    const float* r = o_ + kMeanRegs;
    uint32_t a[4] = {ptx::cvt_rna_tf32_f32(r[0]), ptx::cvt_rna_tf32_f32(r[2]),
                     ptx::cvt_rna_tf32_f32(r[1]), ptx::cvt_rna_tf32_f32(r[3])};
    l = {ptx::add_rn(l.r0, ptx::add_rn(as_float(a[0]), as_float(a[2]))),
         ptx::add_rn(l.r1, ptx::add_rn(as_float(a[1]), as_float(a[3])))};
    float* into = o_;
    if constexpr (!kLocal) {
#pragma unroll
      for (int i = 0; i < kMeanRegs; i += 4) {
        mean_[i] = ptx::fma_rn(mean_[i], beta.r0, o_[i]);
        mean_[i + 1] = ptx::fma_rn(mean_[i + 1], beta.r0, o_[i + 1]);
        mean_[i + 2] = ptx::fma_rn(mean_[i + 2], beta.r1, o_[i + 2]);
        mean_[i + 3] = ptx::fma_rn(mean_[i + 3], beta.r1, o_[i + 3]);
      }
      beta = {1.0f, 1.0f};
      into = mean_;
    }
    ptx::mbarrier_wait_parity(smem_ + C.mu_full(mu_.index), mu_.parity);
    keep_all(into, kMeanRegs);
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::keep(a[i]);
    ptx::wgmma_fence();
    const ptx::MatrixDesc mu =
        ptx::advance(ptx::matrix_desc(smem_ + C.mu_offset(0), ptx::Swizzle::b32),
                     static_cast<uint32_t>(mu_.index) * C.mu_tile_bytes());
    if constexpr (C.d == 128)
      ptx::wgmma_m64n128k8_f32_tf32_tf32(into, a, mu, true);
    else
      ptx::wgmma_m64n64k8_f32_tf32_tf32(into, a, mu, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    keep_all(into, kMeanRegs);
    release(C.mu_empty(mu_.index));
    mu_.advance();
    if constexpr (kLocal) {
#pragma unroll
      for (int i = kMeanRegs; i < kORegs; ++i) o_[i] = 0.0f;
    }
  }

  static constexpr float kMinusInf =
      -3.0e38f;  // finite: old - new stays a number, and its factor is 0

  const AttentionParams& p_;
  ptx::SmemAddr smem_;
  uint32_t group_;
  Ring<2> q_, mu_;
  Ring<C.stages> k_, v_;
  ptx::MatrixDesc q_desc_;
  float unit_ = 0.0f;
  RowPair m_ = {0.0f, 0.0f}, alpha_ = {0.0f, 0.0f}, weight_ = {0.0f, 0.0f};
  bool moved_ = false;
  int32_t s_[64];
  uint32_t p_codes_[16];
  float o_[kORegs];
  float t_[kLocal ? kORegs : 4];
  float mean_[kLocal ? 4 : kMeanRegs];
};

}  // namespace vca::kernels::sm90
