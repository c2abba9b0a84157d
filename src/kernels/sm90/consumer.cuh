// SPDX-License-Identifier: Apache-2.0
// Consumer warpgroup: 64 query rows. Scores run one block ahead of values. An iteration packs the
// codes of block j and issues PV(j) and, behind it, QK(j+1); merges T(j) while QK runs; and turns
// the new scores into code arguments:
//
//   tensor             | PV(j) ........ | QK(j+1) ..... |
//   registers  pack(j) ..... |          | merge(j)      | maximum, arguments (j+1)
//
// Meanwhile the other warpgroup's MMAs run. What measures worse: docs/kernel-sm90.md.
//
// An iteration finds its stage loaded (not with real exponentials): the one before has waited for
// it, behind arithmetic that hides the barrier's latency. That wait, and the branch on `moved_`,
// are also where basic blocks end, which ptxas respects when it schedules: maxima | FFMAs | F2IP.
//
// The last iteration of a tile multiplies the first scores of the next one, whose softmax waits
// until O is stored (registers do not suffice for both). It is a copy of its own: no question about
// tiles in the hot loop. Every MMA is issued and awaited in one iteration: ptxas serialises wgmma
// whose accumulators cross the back edge (C7514).
#pragma once

#include <type_traits>

#include "kernels/common/scheduler.hpp"
#include "kernels/sm90/accumulator.cuh"
#include "kernels/sm90/config.hpp"
#include "kernels/sm90/epilogue.cuh"
#include "kernels/sm90/load.cuh"
#include "kernels/sm90/softmax.cuh"
#include "kernels/sm90/softmax_exp.cuh"

namespace vca::kernels::sm90 {

template <Config C>
class Consumer {
 public:
  VCA_DEVICE Consumer(const AttentionParams& p, ptx::SmemAddr smem, uint32_t group)
      : p_(p),
        smem_(smem),
        group_(group),
        lane_(ptx::thread_index() % 32u),
        k_desc_(ptx::matrix_desc(smem + C.k_offset(0), C.qk_swizzle())) {}

  VCA_DEVICE void run() {
    TileScheduler<C.cluster> scheduler(p_, ptx::cta_index());
    Tile tile = scheduler.next();
    if (!tile.valid) return;
    open_tile(tile);
    wait_stage();
    if constexpr (!C.real_exp()) offset_scores(s_);
    issue_scores();
    ptx::wgmma_wait_group<0>();
    keep_scores();
    score<true>();
    if constexpr (kEarlyWait) wait_stage();
    while (tile.valid) tile = run_tile(tile, scheduler);
  }

 private:
  static constexpr int kORegs = C.o_regs();
  static constexpr int kPvRegs = C.pv_regs();
  static constexpr int kMeanRegs = C.mean_regs();
  static constexpr bool kLocal = C.form == Form::local;
  static constexpr bool kFresh = C.fresh();
  static constexpr bool kEarlyWait = !C.real_exp();  // those are short of registers
  static constexpr float kMinusInf = -3.0e38f;  // finite: old - new stays a number, its factor is 0

  // Buffers that only wgmma reads: one arrival a warpgroup, after its wait_group.
  VCA_DEVICE void release(uint32_t barrier) {
    if (ptx::thread_index() % 128u == 0u) ptx::mbarrier_arrive(smem_ + barrier);
  }
  VCA_DEVICE void wait_stage() {
    ptx::mbarrier_wait_parity(smem_ + C.full(0) + 8u * stage_.index(), stage_.parity());
  }
  // To the next stage; returns the index of this one, which is still to be released.
  VCA_DEVICE uint32_t advance_stage() {
    const uint32_t index = stage_.index();
    stage_.advance();
    return index;
  }
  VCA_DEVICE void release_stage(uint32_t index) {
    const ptx::SmemAddr empty = smem_ + C.empty(0) + 8u * index;
    if constexpr (C.cluster == 1) {
      if (lane_ == 0) ptx::mbarrier_arrive(empty);
    } else {  // to each CTA whose producer writes to this stage: a lane each
      if (lane_ < C.cluster) ptx::mbarrier_arrive_cluster(ptx::mapa(empty, lane_));
    }
  }

  // The scores from now on belong to `tile`.
  VCA_DEVICE void open_tile(const Tile& tile) {
    // Query factors of rows r and r + 8: one value, they share a scale (B4).
    unit_ = p_.q_unit[tile.q_tile * 64 + (group_ * 4 + ptx::thread_index() % 128u / 32u) * 8 +
                      lane_ / 4u];
    ptx::mbarrier_wait_parity(smem_ + C.q_full(q_.index()), q_.parity());
    q_desc_ = ptx::matrix_desc(smem_ + C.q_offset(q_.index()) + group_ * (C.qk_tile_bytes() / 2u),
                               C.qk_swizzle());
  }

  VCA_DEVICE void issue_scores() {
    const ptx::MatrixDesc k = ptx::tile_desc(k_desc_, stage_.index(), C.stage_bytes());
    ptx::wgmma_fence();
#pragma unroll
    for (int step = 0; step < C.qk_steps(); ++step) {
      if constexpr (C.fp8_scores())
        ptx::wgmma_m64n128k32_f32_e4m3_e4m3(s_, ptx::advance(q_desc_, 32u * step),
                                            ptx::advance(k, 32u * step), step != 0);
      else
        ptx::wgmma_m64n128k32_s32_s8_s8(s_, ptx::advance(q_desc_, 32u * step),
                                        ptx::advance(k, 32u * step), !C.real_exp() || step != 0);
    }
    ptx::wgmma_commit_group();
  }

  // 32 keys of PV(j). Codes are packed step by step, so that the first MMA starts under the packing
  // of the others.
  template <int kStep, int kRegs>
  VCA_DEVICE void issue_value_step(float (&into)[kRegs], bool accumulate) {
    if constexpr (!C.real_exp()) {
      pack_codes<kStep>(s_, p_codes_);
#pragma unroll
      for (int i = 4 * kStep; i < 4 * kStep + 4; ++i) ptx::keep(p_codes_[i]);
    }
    // From K's, so that the two share what has to be computed in every iteration.
    ptx::MatrixDesc v = ptx::advance(ptx::tile_desc(k_desc_, stage_.index(), C.stage_bytes()),
                                     C.v_offset(0) - C.k_offset(0) + 32u * kStep);
    v.high = ptx::desc_high(ptx::Swizzle::b128);
    const uint32_t* p = p_codes_ + 4 * kStep;
    ptx::wgmma_fence();
    if constexpr (C.real_exp() && C.d == 128)
      ptx::wgmma_m64n128k32_f32_e4m3_e4m3(into, p, v, accumulate || kStep != 0);
    else if constexpr (C.real_exp())
      ptx::wgmma_m64n64k32_f32_e4m3_e4m3(into, p, v, accumulate || kStep != 0);
    else if constexpr (C.d == 128)
      ptx::wgmma_m64n136k32_f32_e4m3_e4m3(into, p, v, accumulate || kStep != 0);
    else
      ptx::wgmma_m64n72k32_f32_e4m3_e4m3(into, p, v, accumulate || kStep != 0);
  }
  template <int kRegs>
  VCA_DEVICE void issue_values(float (&into)[kRegs], bool accumulate) {
    issue_value_step<0>(into, accumulate);
    issue_value_step<1>(into, accumulate);
    issue_value_step<2>(into, accumulate);
    issue_value_step<3>(into, accumulate);
    ptx::wgmma_commit_group();
  }

  // m_ with the block's maxima; returns what it was. `fresh`: first block of a tile.
  VCA_DEVICE RowPair raise_maximum(RowPair blk, bool fresh) {
    const RowPair old = fresh ? RowPair{kMinusInf, kMinusInf} : m_;
    m_ = {ptx::max_f32(old.r0, blk.r0), ptx::max_f32(old.r1, blk.r1)};
    return old;
  }
  VCA_DEVICE void set_alpha(RowPair old) {
    const ptx::SmemAddr table = smem_ + C.exp2_offset();
    alpha_ = {rescale_factor(ptx::add_rn(old.r0, -m_.r0), table),
              rescale_factor(ptx::add_rn(old.r1, -m_.r1), table)};
  }

  // Maximum, rescale factors and bias of the finished scores in s_, and the scores as floats; or
  // their exponentials.
  VCA_DEVICE void softmax(bool fresh) {
    if constexpr (C.real_exp())
      softmax_exp(fresh);
    else
      softmax_codes(fresh);
  }
  VCA_DEVICE void softmax_exp(bool fresh) {
    const ptx::SmemAddr scales = smem_ + C.k_scale_offset(0) + C.k_scale_bytes() * stage_.index();
    const float factor = ptx::mul_rn(unit_, ptx::ld_shared_f32(scales + 4u * (lane_ % 4u)));
    const uint32_t valid = ptx::float_bits(ptx::ld_shared_f32(scales + 16u));
    const RowPair blk = quad_maximum(thread_scores(s_, factor));
    const RowPair old = raise_maximum(blk, fresh);
    moved_ = ptx::vote_sync_any(blk.r0 > old.r0 || blk.r1 > old.r1);
    RowPair sum =
        exponentials(s_, factor, {ptx::sub_rm(p_.top, m_.r0), ptx::sub_rm(p_.top, m_.r1)});
    keep_scores();
    if (valid != 128u) sum = masked_sums(s_, valid, lane_ % 4u);
    sum = quad_sum(sum);
    if (moved_) set_alpha(old);
    if constexpr (C.means()) {
      sum_ = sum;
    } else {  // l has no other use between blocks
      if (moved_) l_ = {ptx::mul_rn(l_.r0, alpha_.r0), ptx::mul_rn(l_.r1, alpha_.r1)};
      l_ = {ptx::add_rn(fresh ? 0.0f : l_.r0, sum.r0), ptx::add_rn(fresh ? 0.0f : l_.r1, sum.r1)};
    }
  }
  VCA_DEVICE void softmax_codes(bool fresh) {
    const float scale =
        ptx::ld_shared_f32(smem_ + C.k_scale_offset(0) + 16u * stage_.index() + 4u * (lane_ % 4u));
    factor_ = ptx::mul_rn(unit_, scale);
    const RowPair t = thread_scores<kScoreOffset>(s_, factor_);
    if constexpr (kLocal)
      block_reference(t, fresh);
    else
      running_reference(t, fresh);
  }
  // The block's own reference, and how far it lies above O's, which follows only where that is more
  // than kLazySlack: a vote that is nearly always no. m_ is kept with kCeilMagic on it, so that
  // nothing has to be subtracted: bias and difference come out the same.
  VCA_DEVICE void block_reference(RowPair t, bool fresh) {
    constexpr float kTop = spec::kTopExpCast + spec::kCeilMagic;  // a multiple of 1/16: exact
    t = quad_largest(t);
    const RowPair blk = {ptx::add_rp(t.r0, spec::kCeilMagic), ptx::add_rp(t.r1, spec::kCeilMagic)};
    bias_ = {ptx::sub_rm(kTop, blk.r0), ptx::sub_rm(kTop, blk.r1)};
    if (fresh) m_ = blk;
    above_ = {ptx::add_rn(blk.r0, -m_.r0), ptx::add_rn(blk.r1, -m_.r1)};
    moved_ = ptx::vote_sync_any(ptx::max_f32(above_.r0, above_.r1) > spec::kLazySlack);
    keep_scores();
    if (moved_) {
      const RowPair old = m_;
      if (above_.r0 > spec::kLazySlack) m_.r0 = blk.r0;
      if (above_.r1 > spec::kLazySlack) m_.r1 = blk.r1;
      set_alpha(old);
      above_ = {ptx::add_rn(blk.r0, -m_.r0), ptx::add_rn(blk.r1, -m_.r1)};
    }
  }
  // Most blocks leave the running maximum where it is, and to see that takes neither shuffles nor
  // rounding: m is a multiple of 1/16 code, so ceil(t) > m exactly when t > m.
  VCA_DEVICE void running_reference(RowPair t, bool fresh) {
    moved_ = fresh || ptx::vote_sync_any(t.r0 > m_.r0 || t.r1 > m_.r1);
    keep_scores();
    if (moved_) {
      const RowPair old = raise_maximum(quad_maximum(t), fresh);
      bias_ = {ptx::sub_rm(p_.top, m_.r0), ptx::sub_rm(p_.top, m_.r1)};
      set_alpha(old);
    }
  }
  // Exponentials become codes at once, for want of registers; code arguments do where they are
  // used.
  VCA_DEVICE void finish_scores() {
    if constexpr (C.real_exp()) {
      pack_exponentials(s_, p_codes_);
    } else {
      code_arguments(s_, factor_, bias_);
      keep_scores();
    }
  }

  VCA_DEVICE void keep_scores() {
#pragma unroll
    for (int i = 0; i < 64; ++i) ptx::keep(s_[i]);
  }
  VCA_DEVICE static void keep_all(float* x, int n) {
#pragma unroll
    for (int i = 0; i < n; ++i) ptx::keep(x[i]);
  }

  // Block j of a tile, `first` of its group of 8: O with PV(j), and the scores of block j+1.
  VCA_DEVICE void multiply(bool first) {
    if constexpr (!kEarlyWait) wait_stage();
    if (moved_) rescale();
    if constexpr (C.real_exp() && C.means()) add_sum(first);
    if constexpr (kFresh)
      issue_values(t_, false);
    else
      issue_values(o_, !first);
    issue_scores();  // QK(j+1)
    if constexpr (kFresh) {
      ptx::wgmma_wait_group<1>();  // PV(j)
      keep_all(t_, kPvRegs);
      merge();
    }
    ptx::wgmma_wait_group<0>();
    if constexpr (!kFresh) keep_all(o_, kPvRegs);
    keep_scores();
  }
  // From the scores to what the next iteration multiplies. kFirst: of a tile's first block. Behind
  // it comes the next stage; whether there is one after a tile's last, run_tile() knows.
  template <bool kFirst>
  VCA_DEVICE void score() {
    softmax(kFirst);
    const uint32_t done = advance_stage();
    finish_scores();
    if constexpr (kEarlyWait && !kFirst) wait_stage();
    release_stage(done);  // behind the wait: measured better than as soon as it may be
  }

  // Returns the tile whose first scores the last iteration has computed.
  VCA_DEVICE Tile run_tile(const Tile& tile, TileScheduler<C.cluster>& scheduler) {
    if constexpr (C.means()) l_ = {0.0f, 0.0f};
    beta_ = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < kORegs; ++i) o_[i] = 0.0f;
    if constexpr (!kFresh) {
#pragma unroll
      for (int i = 0; i < kMeanRegs; ++i) mean_[i] = 0.0f;
    }
    // All blocks but the last, in groups of 8.
    const int before_last = tile.n_blocks - 1;
    int in_group = 0;
    for (int j0 = 0; j0 + 8 <= before_last; j0 += 8) {
#pragma unroll 1
      for (int i = 0; i < 8; ++i) {
        multiply(i == 0);
        score<false>();
      }
      if constexpr (C.means()) restore_means();
    }
#pragma unroll 1
    for (; in_group < before_last % 8; ++in_group) {
      multiply(in_group == 0);
      score<false>();
    }
    const uint32_t q_buffer = q_.index();
    const Tile next =
        scheduler.next();  // here and not before: its registers would live through the hot loop
    if (next.valid) {
      q_.advance();
      open_tile(next);
    }
    multiply(in_group == 0);
    release(C.q_empty(0) + 8u * q_buffer);
    if constexpr (C.means()) restore_means();
    const float* result = kFresh ? o_ : mean_;
    constexpr float kOffset = kLocal ? -spec::kCeilMagic : 0.0f;
    store_tile<C>(p_, tile, group_, result, l_.r0, l_.r1, ptx::add_rn(m_.r0, kOffset),
                  ptx::add_rn(m_.r1, kOffset));
    score<true>();
    if (kEarlyWait && next.valid) wait_stage();
    return next;
  }

  VCA_DEVICE void merge() {
    if constexpr (kLocal)
      add_weighted(o_, t_, {block_weight(above_.r0), block_weight(above_.r1)});
    else
      add_product(o_, t_);
  }

  VCA_DEVICE void add_sum(bool first) {
    slot_ = first ? 0 : slot_ + 1;
    put_sum(o_ + kMeanRegs, slot_, sum_, lane_ % 4u);
  }

  VCA_DEVICE void rescale() {
    if constexpr (C.means()) l_ = {ptx::mul_rn(l_.r0, alpha_.r0), ptx::mul_rn(l_.r1, alpha_.r1)};
    if constexpr (!kFresh)
      beta_ = {ptx::mul_rn(beta_.r0, alpha_.r0), ptx::mul_rn(beta_.r1, alpha_.r1)};
    scale_rows(o_, alpha_);
  }

  // E5: l += R and accumulator += R x mu, R rounded to tf32. R sits in the indicator columns,
  // already in A-fragment order.
  VCA_DEVICE void restore_means() {
    const float* r = o_ + kMeanRegs;
    uint32_t a[4] = {ptx::cvt_rna_tf32_f32(r[0]), ptx::cvt_rna_tf32_f32(r[2]),
                     ptx::cvt_rna_tf32_f32(r[1]), ptx::cvt_rna_tf32_f32(r[3])};
    l_ = {ptx::add_rn(l_.r0, ptx::add_rn(ptx::bits_float(a[0]), ptx::bits_float(a[2]))),
          ptx::add_rn(l_.r1, ptx::add_rn(ptx::bits_float(a[1]), ptx::bits_float(a[3])))};
    float* into = o_;
    if constexpr (!kFresh) {
      flush(mean_, beta_, o_);
      beta_ = {1.0f, 1.0f};
      into = mean_;
    }
    ptx::mbarrier_wait_parity(smem_ + C.mu_full(mu_.index()), mu_.parity());
    keep_all(into, kMeanRegs);
#pragma unroll
    for (int i = 0; i < 4; ++i) ptx::keep(a[i]);
    ptx::wgmma_fence();
    const ptx::MatrixDesc mu =
        ptx::advance(ptx::matrix_desc(smem_ + C.mu_offset(0), ptx::Swizzle::b32),
                     mu_.index() * C.mu_tile_bytes());
    if constexpr (C.d == 128)
      ptx::wgmma_m64n128k8_f32_tf32_tf32(into, a, mu, true);
    else
      ptx::wgmma_m64n64k8_f32_tf32_tf32(into, a, mu, true);
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    keep_all(into, kMeanRegs);
    release(C.mu_empty(mu_.index()));
    mu_.advance();
    if constexpr (kLocal || C.real_exp()) {  // else the next group's first product does it
#pragma unroll
      for (int i = kMeanRegs; i < kORegs; ++i) o_[i] = 0.0f;
    }
  }

  const AttentionParams& p_;
  ptx::SmemAddr smem_;
  uint32_t group_, lane_;
  float unit_ = 0.0f;
  ptx::MatrixDesc k_desc_, q_desc_;  // of K in stage 0; of the tile's Q
  Ring<2> q_, mu_;
  Ring<C.stages> stage_;
  // m_: reference of O (E2): running maximum; local: the lazy one, with kCeilMagic on it.
  RowPair m_ = {0.0f, 0.0f}, alpha_ = {0.0f, 0.0f};
  RowPair above_ = {0.0f, 0.0f};  // local: reference of the block in s_ minus m_
  RowPair bias_ = {0.0f, 0.0f};   // top - reference of the block (local) or of the row (running)
  float factor_ = 0.0f;           // code units per integer score
  uint32_t moved_ = 0;            // m_ has moved in a row of the warp (not bool: ptxas packs bytes)
  RowPair l_ = {0.0f, 0.0f}, beta_ = {1.0f, 1.0f};
  RowPair sum_ = {0.0f, 0.0f};  // running_exp: of the block whose codes are in p_codes_
  uint32_t slot_ = 0;           // running_exp: position of a block in its group
  std::conditional_t<C.fp8_scores(), float, int32_t> s_[64];
  uint32_t p_codes_[16];
  float o_[kORegs];
  float t_[kFresh ? kPvRegs : 4];
  float mean_[kFresh ? 4 : kMeanRegs];
};

}  // namespace vca::kernels::sm90
