// SPDX-License-Identifier: Apache-2.0
#include "spec/attention.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "spec/arith.hpp"
#include "spec/block_operands.hpp"
#include "spec/codes.hpp"
#include "spec/fp4.hpp"
#include "spec/mma_fp4.hpp"
#include "spec/softmax.hpp"
#include "spec/value_stats.hpp"

namespace vca::spec {
namespace {

constexpr int kWidthMax = kMaxHeadDim + kGroupBlocks;  // value channels, then the indicator columns

// Everything a row carries from block to block.
struct RowState {
  float m_run = -std::numeric_limits<float>::infinity();
  float beta = 1.0f;             // running_max + V-Smooth: product of the group's alphas
  float acc[kWidthMax] = {};     // O and R as the MMA accumulator holds them
  float mean[kMaxHeadDim] = {};  // running_max + V-Smooth: the separate FP32 accumulator A
  float l[4] = {};               // by quad; recipes without means use l[0]
};

class RowEvaluator {
 public:
  RowEvaluator(const Problem& p, const KvOperands& kv, const QOperands& q, Target target)
      : p_(p),
        r_(*p.recipe),
        kv_(kv),
        q_(q),
        target_(target),
        d_(kv.d_pad),
        e_(overflow_exponent(p, *q.max_q_scale, kv.stats->max_k_scale)),
        pv_(mma_model(r_.id == RecipeId::bf16 ? Target::cpu : target, Instr::pv_e4m3)),
        mean_(mma_model(target, Instr::mean_tf32)),
        qk_(mma_model(r_.id == RecipeId::bf16 ? Target::cpu : target, Instr::qk_e4m3)) {}

  // delta: scores of the row's query mean (kBlock values), null without.
  void block(int64_t row, int64_t j, const BlockOperands& b, const float* delta,
             const uint8_t* codes_in, const float* sum_in, RowState& st,
             const BlockTrace& trace) const {
    bool allowed[kBlock];
    const Allowed how = allowed_columns(row, j, b, allowed);
    if (how == Allowed::none) {
      skip(j, st, trace);
      return;
    }
    const bool some = how == Allowed::some;
    BlockScores scores;
    compute_scores(row, j, b, delta, scores);
    const float m_blk = some ? scores.block_maximum_of(allowed) : scores.block_maximum();
    const float m_new = next_reference(r_, st.m_run, m_blk);
    const float alpha = pow2_code(spec::sub(st.m_run, m_new));
    const float reference = r_.reference == Reference::block_max ? m_blk : m_new;
    BlockP probability;
    compute_p(r_, target_, scores, reference, some ? allowed : b.valid, some, codes_in,
              probability);
    const float r_fp32 = codes_in != nullptr && sum_in != nullptr ? *sum_in
                         : r_.decoded_sums()                      ? 0.0f
                         : r_.fp4_p()
                             ? nvfp4_sum(target_, probability.sum_terms, probability.sum_scale)
                         : codes_in != nullptr ? block_sum(target_, probability.p)
                                               : block_sum(target_, probability.sum_terms);
    st.m_run = m_new;
    float r_block = r_fp32;
    switch (r_.flow()) {
      case Flow::plain:
        accumulate_plain(b, probability, alpha, r_fp32, st);
        break;
      case Flow::means:
        accumulate_means(j, b, probability, alpha, r_fp32, st);
        break;
      case Flow::local:
        r_block = accumulate_local(j, b, probability, alpha, block_weight(spec::sub(m_blk, m_new)),
                                   r_fp32, st);
        break;
      case Flow::running:
        r_block = accumulate_running(j, b, probability, alpha, r_fp32, st);
        break;
    }
    end_group(j, st);
    trace.store(scores, probability, reference, m_new, r_block);
  }

  void finish(int64_t row, const RowState& st, float* o, float* l_out, float* lse) const {
    if (st.m_run == -std::numeric_limits<float>::infinity()) {  // a mask that leaves no key
      if (o != nullptr) std::fill_n(o, p_.d, 0.0f);
      if (l_out != nullptr) *l_out = 0.0f;
      if (lse != nullptr) *lse = -std::numeric_limits<float>::infinity();
      return;
    }
    // Flows without groups keep l in one sum; adding three zeros changes nothing.
    const float l = add(add(st.l[0], st.l[1]), add(st.l[2], st.l[3]));
    const float inverse = 1.0f / l;
    const float* acc = r_.flow() == Flow::running ? st.mean : st.acc;
    if (o != nullptr)
      for (int i = 0; i < p_.d; ++i) o[i] = mul(mul(acc[i], inverse), kv_.s_v[i]);
    if (l_out != nullptr) *l_out = l;
    if (lse != nullptr) {
      constexpr double kLn2 = 0.6931471805599453;
      const double offset = q_.qk_offset != nullptr ? q_.qk_offset[row] : 0.0;
      *lse = static_cast<float>(
          std::ldexp(st.m_run * kLn2 / 8.0 + std::log(l / p_of_maximum(r_)), e_) + offset);
    }
  }

  int exponent() const { return e_; }

 private:
  enum class Allowed { all, some, none };

  // Valid columns whose token's block the mask allows. Without a mask: all.
  Allowed allowed_columns(int64_t row, int64_t j, const BlockOperands& b, bool* allowed) const {
    const uint8_t* mask = q_.mask_row(row);
    if (mask == nullptr) return Allowed::all;
    int valid = 0, count = 0;
    for (int n = 0; n < kBlock; ++n) {
      allowed[n] = b.valid[n] && mask[kv_.order[j * kBlock + n] / kBlock] != 0;
      valid += b.valid[n];
      count += allowed[n];
    }
    return count == valid ? Allowed::all : count > 0 ? Allowed::some : Allowed::none;
  }

  void end_group(int64_t j, RowState& st) const {
    const bool grouped = r_.flow() == Flow::local || r_.flow() == Flow::running;
    if (grouped && (j % kGroupBlocks == kGroupBlocks - 1 || j == kv_.n_blocks - 1))
      restore_means(j / kGroupBlocks * kGroupBlocks, st);
  }

  // A block without an allowed key does not exist for the row, but for the end of its group.
  void skip(int64_t j, RowState& st, const BlockTrace& trace) const {
    const BlockScores scores{};
    const BlockP probability{};
    trace.store(scores, probability, st.m_run, st.m_run, 0.0f);
    end_group(j, st);
  }

  void compute_scores(int64_t row, int64_t j, const BlockOperands& b, const float* delta,
                      BlockScores& s) const {
    const float unit = query_unit(p_, q_, row, e_);
    for (int g = 0; g < 4; ++g) s.a[g] = mul(unit, kv_.k_scale[j * 4 + g]);
    if (r_.integer_scores()) {
      const auto* q = reinterpret_cast<const int8_t*>(q_.q_codes) + row * d_;
      const auto* k = reinterpret_cast<const int8_t*>(kv_.k_codes) + j * kBlock * d_;
      for (int n = 0; n < kBlock; ++n) {
        int32_t dot = 0;
        for (int i = 0; i < d_; ++i) dot += int32_t{q[i]} * k[n * d_ + i];
        s.integer[n] = dot;
        s.value[n] = static_cast<float>(dot);  // exact: below 2^22
      }
      return;
    }
    if (delta != nullptr) {
      std::copy_n(delta, kBlock, s.value);
    } else {
      std::fill(s.value, s.value + kBlock, 0.0f);
    }
    if (r_.qk == QkFormat::nvfp4) {
      nvfp4_scores(row, b, s.value);
      for (int n = 0; n < kBlock; ++n) s.integer[n] = std::bit_cast<int32_t>(s.value[n]);
      return;
    }
    float q[kMaxHeadDim];
    for (int i = 0; i < d_; ++i)
      q[i] =
          r_.qk == QkFormat::bf16 ? q_.q_real[row * d_ + i] : e4m3_decode(q_.q_codes[row * d_ + i]);
    mma_accumulate_f32(qk_, q, b.k_columns.data(), kBlock, d_, kBlock, s.value);
    for (int n = 0; n < kBlock; ++n) s.integer[n] = std::bit_cast<int32_t>(s.value[n]);
  }

  void nvfp4_scores(int64_t row, const BlockOperands& b, float* scores) const {
    float q[kMaxHeadDim], scale[kMaxHeadDim / kMicroGroup];
    for (int i = 0; i < d_; ++i) {
      q[i] = e2m1_decode(fp4_get(q_.q_codes + row * d_ / 2, d_, i));
      scale[i / kMicroGroup] = ue4m3_decode(q_.q_micro[(row * d_ + i) / kMicroGroup]);
    }
    if (target_ != Target::cpu) {
      mma_accumulate_nvfp4(q, scale, b.k_columns.data(), b.k_scales.data(), kBlock, d_, kBlock,
                           scores);
      return;
    }
    for (int i = 0; i < d_; ++i) q[i] = mul(q[i], scale[i / kMicroGroup]);
    mma_accumulate_f32(qk_, q, b.k_columns.data(), kBlock, d_, kBlock, scores);
  }

  // O += P V(j) in NVFP4, the d_ value channels only.
  void nvfp4_product(const BlockOperands& b, const BlockP& probability, float* acc) const {
    const int width = d_ + kGroupBlocks;
    if (target_ == Target::cpu) {
      mma_accumulate_f32(pv_, probability.p, b.v.data(), width, kBlock, d_, acc);
      return;
    }
    float element[kBlock], scale[kBlock / kMicroGroup];
    for (int n = 0; n < kBlock; ++n) element[n] = e2m1_decode(probability.codes[n]);
    for (int g = 0; g < kBlock / kMicroGroup; ++g) scale[g] = ue4m3_decode(probability.scales[g]);
    mma_accumulate_nvfp4(element, scale, b.v.data(), b.v_scales.data(), width, kBlock, d_, acc);
  }

  // T = P V(j), with the indicator columns.
  void fresh_product(const BlockOperands& b, const BlockP& probability, float* t) const {
    const int width = d_ + kGroupBlocks;
    std::fill(t, t + width, 0.0f);
    if (r_.fp4_v()) {
      nvfp4_product(b, probability, t);
      return;
    }
    if (r_.v == VFormat::int8_smooth) {
      // u8 x int8: |sum| <= 128 * 255 * 127 < 2^24, so FP32 holds every partial sum exactly.
      for (int n = 0; n < kBlock; ++n)
        for (int i = 0; i < width; ++i)
          t[i] += probability.p[n] * b.v[static_cast<size_t>(n * width + i)];
      return;
    }
    mma_accumulate_f32(pv_, probability.p, b.v.data(), width, kBlock, width, t);
  }

  void accumulate_plain(const BlockOperands& b, const BlockP& probability, float alpha, float r,
                        RowState& st) const {
    float t[kWidthMax];
    fresh_product(b, probability, t);
    for (int i = 0; i < d_; ++i) st.acc[i] = add(mul(st.acc[i], alpha), t[i]);
    st.l[0] = add(mul(st.l[0], alpha), r);
  }

  // The mean first, then the residuals into the same accumulator: O = O*alpha, O = fma(r, mu, O),
  // O += P V.
  void accumulate_means(int64_t j, const BlockOperands& b, const BlockP& probability, float alpha,
                        float r, RowState& st) const {
    const float* mu = kv_.mu + j * d_;
    for (int i = 0; i < d_; ++i) st.acc[i] = fma_rn(r, mu[i], mul(st.acc[i], alpha));
    nvfp4_product(b, probability, st.acc);
    st.l[0] = add(mul(st.l[0], alpha), r);
  }

  float accumulate_local(int64_t j, const BlockOperands& b, const BlockP& probability, float alpha,
                         float w, float r_fp32, RowState& st) const {
    float t[kWidthMax];
    fresh_product(b, probability, t);
    for (float& l : st.l) l = mul(l, alpha);
    for (int i = 0; i < d_ + kGroupBlocks; ++i) st.acc[i] = mul(st.acc[i], alpha);
    if (r_.v == VFormat::int8_smooth)
      for (int i = 0; i < d_; ++i) t[i] = mul(t[i], kv_.v_scale[j * d_ + i]);
    const auto slot = static_cast<int>(d_ + j % kGroupBlocks);
    if (!r_.decoded_sums()) {
      std::fill(t + d_, t + d_ + kGroupBlocks, 0.0f);
      t[slot] = r_fp32;
    }
    for (int i = 0; i < d_ + kGroupBlocks; ++i) st.acc[i] = fma_rn(t[i], w, st.acc[i]);
    return t[slot];
  }

  float accumulate_running(int64_t j, const BlockOperands& b, const BlockP& probability,
                           float alpha, float r_fp32, RowState& st) const {
    const int width = d_ + kGroupBlocks;
    const auto slot = static_cast<int>(d_ + j % kGroupBlocks);
    for (float& l : st.l) l = mul(l, alpha);
    for (int i = 0; i < width; ++i) st.acc[i] = mul(st.acc[i], alpha);
    st.beta = mul(st.beta, alpha);
    if (r_.decoded_sums()) {
      mma_accumulate_f32(pv_, probability.p, b.v.data(), width, kBlock, width, st.acc);
      return st.acc[slot];
    }
    float sums[kGroupBlocks];
    std::copy_n(st.acc + d_, kGroupBlocks, sums);  // FP32 sums live outside the MMA accumulator
    mma_accumulate_f32(pv_, probability.p, b.v.data(), width, kBlock, width, st.acc);
    std::copy_n(sums, kGroupBlocks, st.acc + d_);
    st.acc[slot] = r_fp32;
    return r_fp32;
  }

  // Every 8 blocks: l += R, and the block means come back through one tf32 MMA on R.
  void restore_means(int64_t first_block, RowState& st) const {
    float rounded[kGroupBlocks], mu[kGroupBlocks * kMaxHeadDim];
    for (int c = 0; c < kGroupBlocks; ++c) rounded[c] = rna_tf32(st.acc[d_ + c]);
    for (int quad = 0; quad < 4; ++quad)
      st.l[quad] = add(st.l[quad], add(rounded[2 * quad], rounded[2 * quad + 1]));
    for (int64_t c = 0; c < kGroupBlocks; ++c)
      for (int i = 0; i < d_; ++i)
        mu[c * d_ + i] = first_block + c < kv_.n_blocks ? kv_.mu[(first_block + c) * d_ + i] : 0.0f;
    float* into = st.acc;
    if (r_.flow() == Flow::running) {
      for (int i = 0; i < d_; ++i) {
        st.mean[i] = fma_rn(st.mean[i], st.beta, st.acc[i]);
        st.acc[i] = 0.0f;
      }
      st.beta = 1.0f;
      into = st.mean;
    }
    mma_accumulate_f32(mean_, rounded, mu, d_, kGroupBlocks, d_, into);
    std::fill(st.acc + d_, st.acc + d_ + kGroupBlocks, 0.0f);
  }

  const Problem& p_;
  const Recipe& r_;
  const KvOperands& kv_;
  const QOperands& q_;
  Target target_;
  int d_, e_;
  MmaModel pv_, mean_, qk_;
};

BlockTrace make_trace(const RowOutputs& out, int64_t i, int64_t j, const KvOperands& kv) {
  const int64_t col = i * kv.n_cols() + j * kBlock, blk = i * kv.n_blocks + j;
  BlockTrace t;
  if (out.s != nullptr) t.s = out.s + col;
  if (out.codes != nullptr) t.codes = out.codes + col;
  if (out.p != nullptr) t.p = out.p + col;
  if (out.m != nullptr) t.m = out.m + blk;
  if (out.m_run != nullptr) t.m_run = out.m_run + blk;
  if (out.r != nullptr) t.r = out.r + blk;
  return t;
}

}  // namespace

void attention_rows(const Problem& p, const KvOperands& kv, const QOperands& q, Target target,
                    int64_t row0, int64_t nrows, const Injected* injected, const RowOutputs& out) {
  if (kv.n_blocks == 0) {
    for (int64_t i = 0; i < nrows; ++i) {
      if (out.o != nullptr) std::fill_n(out.o + i * p.d, p.d, 0.0f);
      if (out.l != nullptr) out.l[i] = 0.0f;
      if (out.lse != nullptr) out.lse[i] = -std::numeric_limits<float>::infinity();
    }
    return;
  }
  const RowEvaluator evaluator(p, kv, q, target);
  std::vector<RowState> state(static_cast<size_t>(nrows));
  BlockOperands block;
  float delta[kBlock];
  for (int64_t j = 0; j < kv.n_blocks; ++j) {
    load_block(p, kv, j, target, block);
    int64_t delta_of = -1;  // row of q.q_mean that `delta` belongs to
    for (int64_t i = 0; i < nrows; ++i) {
      if (q.q_mean != nullptr && q.mean_row(row0 + i) != delta_of) {
        delta_of = q.mean_row(row0 + i);
        mean_scores(kv, q.q_mean + delta_of * q.d_pad, j, delta);
      }
      const uint8_t* codes = nullptr;
      const float* sum = nullptr;
      if (injected != nullptr && injected->codes != nullptr) {
        codes = injected->codes + i * kv.n_cols() + j * kBlock;
        if (injected->sums != nullptr) sum = injected->sums + i * kv.n_blocks + j;
      }
      evaluator.block(row0 + i, j, block, q.q_mean != nullptr ? delta : nullptr, codes, sum,
                      state[static_cast<size_t>(i)], make_trace(out, i, j, kv));
    }
  }
  for (int64_t i = 0; i < nrows; ++i)
    evaluator.finish(
        row0 + i, state[static_cast<size_t>(i)], out.o != nullptr ? out.o + i * p.d : nullptr,
        out.l != nullptr ? out.l + i : nullptr, out.lse != nullptr ? out.lse + i : nullptr);
}

void score_factors(const Problem& p, const KvOperands& kv, const QOperands& q, int64_t row,
                   float* a) {
  const int e = overflow_exponent(p, *q.max_q_scale, kv.stats->max_k_scale);
  const float unit = query_unit(p, q, row, e);
  for (int64_t i = 0; i < kv.n_blocks * 4; ++i) a[i] = mul(unit, kv.k_scale[i]);
}

const char* schedule_name(const Recipe& r, Target target) {
  const bool cpu = target == Target::cpu;
  if (r.id == RecipeId::exact) return "fp64 two-pass";
  if (r.fp4_p() && !r.v_smooth())
    return cpu ? "two-level per block of 128, FP32 sums by groups of 16"
               : "two-level per block of 128, FP32 sums by half groups of 16 in quad columns";
  if (!r.v_smooth())
    return cpu ? "two-level per block of 128, 16-lane FP32 sums"
               : "two-level per block of 128, quad-column FP32 sums";
  if (r.flow() == Flow::means)
    return "running maximum, O*alpha, fma(r,mu,O) and then the block's products into O";
  if (r.reference == Reference::block_max)
    return "block-local maximum, O*alpha then fma(T,w,O), means every 8 blocks";
  return "running maximum, accumulator flushed and means restored every 8 blocks";
}

}  // namespace vca::spec
