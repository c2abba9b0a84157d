// SPDX-License-Identifier: Apache-2.0
// A small kernel with the moves of the attention kernel: a producer streams K and V tiles through
// rings of three stages; a consumer warpgroup multiplies, packs codes from the scores and
// multiplies again, one block behind; an operand written by threads joins in at the end. `Mutation`
// plants one fault; the emulator must notice every one of them.
#pragma once

#include <cstdint>

#include "ptx/ptx.hpp"

namespace vca::tests {

enum class Mutation : int {
  none,
  // barriers
  no_init_fence,
  no_sync_after_init,
  init_twice,
  empty_count_plus_one,
  empty_count_minus_one,
  full_count_two,
  consumer_parity_swapped,
  producer_parity_swapped,
  producer_does_not_wait,
  consumer_does_not_wait_for_k,
  consumer_does_not_wait_for_v,
  no_release_of_v,
  released_twice,
  wrong_named_barrier,
  wrong_named_barrier_count,
  // bulk copies
  tx_too_small,
  tx_too_large,
  no_expect_tx,
  tx_on_the_other_barrier,
  copy_beyond_source,
  copy_beyond_shared_memory,
  copy_of_odd_size,
  copy_into_next_stage,
  // shared memory
  scale_read_before_wait,
  scale_never_loaded,
  released_before_scale_is_read,  // by one lane for its warp, without a warp sync
  no_proxy_fence,
  operand_not_synchronised,
  operand_written_late,
  // wgmma
  wrong_swizzle,
  wrong_k_advance,
  wrong_tile,
  unaligned_tile,
  scores_released_before_wait,
  no_wait_for_scores,
  no_wait_for_values,
  no_commit,
  no_fence,
  no_fence_after_first_block,
  fence_before_last_write,
  codes_packed_before_wait,
  accumulator_written_in_flight,
  scores_not_restarted,
  one_warp_skips_a_product,
  never_waited,
  // warps
  lane_missing_in_shuffle,
  lanes_disagree,
  registers_from_nowhere,
  registers_of_one_warp,
};
inline constexpr int kMutations = static_cast<int>(Mutation::registers_of_one_warp) + 1;

struct PipelineKernel {
  static constexpr uint32_t kThreads = 256;
  static constexpr uint32_t kStages = 3;
  static constexpr uint32_t kQBytes = 64 * 128, kKBytes = 128 * 128, kVBytes = 136 * 128;
  static constexpr uint32_t kMuBytes = 128 * 32, kScaleBytes = 16;
  static constexpr uint32_t kQ = 0;
  static constexpr uint32_t kK = kQ + kQBytes;
  static constexpr uint32_t kV = kK + kStages * kKBytes;
  static constexpr uint32_t kMu = kV + kStages * kVBytes;
  static constexpr uint32_t kScale = kMu + kMuBytes;
  static constexpr uint32_t kBarriers = kScale + kStages * kScaleBytes;
  static constexpr uint32_t kSmemBytes = kBarriers + 8 * (4 * kStages + 1);

  // Scores become codes by fma(score, scale, bias), clamped by the conversion only: with these
  // scales they stay below 126.
  static constexpr float kBias = 60.0f;

  const uint8_t* q;    // 64 rows, T128 layout
  const uint8_t* k;    // [blocks] tiles
  const uint8_t* v;    // [blocks] tiles with indicator rows
  const float* scale;  // [blocks][4]
  const float* mu;     // [128][8] K-major, written to shared memory by the threads
  float* out;          // [64][136]
  int32_t* maxima;     // [64]: largest score of each row
  uint32_t blocks;
  Mutation mutation = Mutation::none;

  VCA_DEVICE bool is(Mutation m) const { return mutation == m; }

  VCA_DEVICE static uint32_t k_full(uint32_t s) { return kBarriers + 8 * s; }
  VCA_DEVICE static uint32_t k_empty(uint32_t s) { return kBarriers + 8 * (kStages + s); }
  VCA_DEVICE static uint32_t v_full(uint32_t s) { return kBarriers + 8 * (2 * kStages + s); }
  VCA_DEVICE static uint32_t v_empty(uint32_t s) { return kBarriers + 8 * (3 * kStages + s); }
  VCA_DEVICE static uint32_t q_full() { return kBarriers + 8 * 4 * kStages; }

  VCA_DEVICE void operator()() const {
    const ptx::SmemAddr smem = ptx::dynamic_smem();
    if (ptx::thread_index() == 0) init_barriers(smem);
    if (!is(Mutation::no_sync_after_init)) ptx::bar_sync(0, kThreads);
    if (ptx::thread_index() < 128) {
      if (is(Mutation::registers_of_one_warp)) {
        if (ptx::thread_index() < 32) ptx::setmaxnreg_dec<40>();
      } else if (!is(Mutation::registers_from_nowhere)) {
        ptx::setmaxnreg_dec<40>();
      }
      if (ptx::thread_index() == 0) produce(smem);
    } else {
      ptx::setmaxnreg_inc<248>();
      Consumer{*this, smem}.run();
    }
  }

  VCA_DEVICE void init_barriers(ptx::SmemAddr smem) const {
    const uint32_t wrong = is(Mutation::empty_count_plus_one)    ? 1u
                           : is(Mutation::empty_count_minus_one) ? ~0u
                                                                 : 0u;
    for (uint32_t s = 0; s < kStages; ++s) {
      ptx::mbarrier_init(smem + k_full(s), is(Mutation::full_count_two) ? 2 : 1);
      ptx::mbarrier_init(smem + k_empty(s), 4 + wrong);  // a warp each
      ptx::mbarrier_init(smem + v_full(s), 1);
      ptx::mbarrier_init(smem + v_empty(s), 1);
    }
    ptx::mbarrier_init(smem + q_full(), 1);
    if (is(Mutation::init_twice)) ptx::mbarrier_init(smem + q_full(), 1);
    if (!is(Mutation::no_init_fence)) ptx::fence_mbarrier_init();
  }

  VCA_DEVICE void produce(ptx::SmemAddr smem) const {
    ptx::mbarrier_arrive_expect_tx(smem + q_full(), kQBytes);
    ptx::cp_async_bulk_g2s(smem + kQ, q, kQBytes, smem + q_full());
    for (uint32_t j = 0; j < blocks; ++j) {
      const uint32_t s = j % kStages;
      uint32_t parity = ((j / kStages) & 1u) ^ 1u;
      if (is(Mutation::producer_parity_swapped)) parity ^= 1u;
      if (!is(Mutation::producer_does_not_wait)) {
        ptx::mbarrier_wait_parity(smem + k_empty(s), parity);
      }
      uint32_t bytes = kKBytes;
      if (!is(Mutation::scale_never_loaded)) bytes += kScaleBytes;
      if (is(Mutation::tx_too_small)) bytes -= 16;
      if (is(Mutation::tx_too_large)) bytes += 16;
      const uint32_t full = is(Mutation::tx_on_the_other_barrier) ? v_full(s) : k_full(s);
      if (is(Mutation::no_expect_tx)) {
        ptx::mbarrier_arrive(smem + full);
      } else {
        ptx::mbarrier_arrive_expect_tx(smem + full, bytes);
      }
      const uint32_t source = j + (is(Mutation::copy_beyond_source) ? 1u : 0u);
      uint32_t target = kK + s * kKBytes;
      if (is(Mutation::copy_beyond_shared_memory)) target = (kSmemBytes - 1024) & ~15u;
      if (is(Mutation::copy_into_next_stage)) target += 1024;
      ptx::cp_async_bulk_g2s(smem + target, k + source * kKBytes,
                             is(Mutation::copy_of_odd_size) ? kKBytes - 8 : kKBytes,
                             smem + k_full(s));
      if (!is(Mutation::scale_never_loaded)) {
        ptx::cp_async_bulk_g2s(smem + (kScale + s * kScaleBytes), scale + 4 * j, kScaleBytes,
                               smem + k_full(s));
      }
      ptx::mbarrier_wait_parity(smem + v_empty(s), ((j / kStages) & 1u) ^ 1u);
      ptx::mbarrier_arrive_expect_tx(smem + v_full(s), kVBytes);
      ptx::cp_async_bulk_g2s(smem + (kV + s * kVBytes), v + j * kVBytes, kVBytes, smem + v_full(s));
    }
  }

  struct Consumer {
    const PipelineKernel& c;
    ptx::SmemAddr smem;
    int32_t s[64];
    float o[68];
    uint32_t p[16];
    int32_t max0 = -2147483647, max1 = -2147483647;

    VCA_DEVICE Consumer(const PipelineKernel& kernel, ptx::SmemAddr base) : c(kernel), smem(base) {}

    VCA_DEVICE bool is(Mutation m) const { return c.mutation == m; }
    VCA_DEVICE uint32_t lane() const { return ptx::thread_index() % 32; }
    VCA_DEVICE uint32_t thread() const { return ptx::thread_index() - 128; }
    VCA_DEVICE uint32_t row() const { return thread() / 32 * 16 + lane() / 4; }

    VCA_DEVICE void run() {
      if (!is(Mutation::operand_not_synchronised)) write_operand();
      for (float& x : o) x = 0.0f;
      for (uint32_t& x : p) x = 0;
      ptx::mbarrier_wait_parity(smem + q_full(), 0);
      // Block j's scores beside block j - 1's values.
      for (uint32_t j = 0; j < c.blocks; ++j) {
        float early_scale = 0.0f;
        if (is(Mutation::scale_read_before_wait)) early_scale = load_scale(j);
        uint32_t parity = (j / kStages) & 1u;
        if (is(Mutation::consumer_parity_swapped)) parity ^= 1u;
        if (!is(Mutation::consumer_does_not_wait_for_k)) {
          ptx::mbarrier_wait_parity(smem + k_full(j % kStages), parity);
        }
        if (j > 0 && !is(Mutation::consumer_does_not_wait_for_v)) wait_for_values(j - 1);
        if (!is(Mutation::no_fence) && (j == 0 || !is(Mutation::no_fence_after_first_block))) {
          ptx::wgmma_fence();
        }
        issue_scores(j);
        if (is(Mutation::scores_released_before_wait) && lane() == 0) {
          ptx::mbarrier_arrive(smem + k_empty(j % kStages));
        }
        if (j > 0) {
          if (is(Mutation::fence_before_last_write)) p[3] ^= 1u;
          issue_values(j - 1);
        }
        if (is(Mutation::accumulator_written_in_flight) && j == 2) o[5] = 1.0f;
        if (j > 0) {
          if (!is(Mutation::no_wait_for_scores)) ptx::wgmma_wait_group<1>();
        } else {
          if (!is(Mutation::no_wait_for_scores)) ptx::wgmma_wait_group<0>();
        }
        for (int32_t& x : s) ptx::keep(x);
        softmax(j, early_scale);
        if (j > 0) finish_values(j - 1);
        if (!is(Mutation::codes_packed_before_wait)) pack();
      }
      wait_for_values(c.blocks - 1);
      ptx::wgmma_fence();
      issue_values(c.blocks - 1);
      ptx::wgmma_wait_group<0>();
      if (is(Mutation::operand_not_synchronised)) write_operand();
      add_means();
      store();
    }

    // mu: 8 values a row of 32 bytes, swizzled; each thread writes one row.
    VCA_DEVICE void write_operand() {
      for (uint32_t i = 0; i < 8; ++i) {
        ptx::st_shared_f32(smem + (kMu + ptx::swizzled_offset(thread(), 4 * i, ptx::Swizzle::b32)),
                           c.mu[thread() * 8 + i]);
      }
      if (!is(Mutation::no_proxy_fence)) ptx::fence_proxy_async_shared_cta();
      if (is(Mutation::operand_not_synchronised)) return;
      uint32_t id = 1;
      if (is(Mutation::wrong_named_barrier) && thread() >= 96) id = 2;
      uint32_t threads = 128;
      if (is(Mutation::wrong_named_barrier_count)) threads = 96;
      ptx::bar_sync(id, threads);
      if (is(Mutation::operand_written_late)) {
        ptx::st_shared_f32(smem + kMu + 4 * thread(), 0.5f);
      }
    }

    VCA_DEVICE float load_scale(uint32_t j) const {
      return ptx::ld_shared_f32(smem + (kScale + j % kStages * kScaleBytes + 4 * (lane() % 4)));
    }
    VCA_DEVICE void wait_for_values(uint32_t j) {
      ptx::mbarrier_wait_parity(smem + v_full(j % kStages), (j / kStages) & 1u);
    }

    VCA_DEVICE void issue_scores(uint32_t j) {
      uint32_t stage = j % kStages;
      if (is(Mutation::wrong_tile)) stage = (stage + 1) % kStages;
      const ptx::Swizzle swizzle =
          is(Mutation::wrong_swizzle) ? ptx::Swizzle::b64 : ptx::Swizzle::b128;
      const ptx::MatrixDesc a = ptx::matrix_desc(smem + kQ, ptx::Swizzle::b128);
      const uint32_t shift = is(Mutation::unaligned_tile) ? 128u : 0u;
      const ptx::MatrixDesc b = ptx::matrix_desc(smem + (kK + stage * kKBytes + shift), swizzle);
      const uint32_t step = is(Mutation::wrong_k_advance) ? 16 : 32;
      for (uint32_t k = 0; k < 4; ++k) {
        if (is(Mutation::one_warp_skips_a_product) && j == 3 && k == 3 && thread() / 32 == 2)
          continue;
        ptx::wgmma_m64n128k32_s32_s8_s8(s, ptx::advance(a, 32 * k), ptx::advance(b, step * k),
                                        k != 0 || is(Mutation::scores_not_restarted));
      }
      if (!is(Mutation::no_commit)) ptx::wgmma_commit_group();
    }

    VCA_DEVICE void issue_values(uint32_t j) {
      const ptx::MatrixDesc b =
          ptx::matrix_desc(smem + (kV + j % kStages * kVBytes), ptx::Swizzle::b128);
      for (uint32_t k = 0; k < 4; ++k) {
        ptx::wgmma_m64n136k32_f32_e4m3_e4m3(o, p + 4 * k, ptx::advance(b, 32 * k), j + k != 0);
      }
      ptx::wgmma_commit_group();
    }

    VCA_DEVICE void finish_values(uint32_t j) {
      if (!is(Mutation::no_wait_for_values)) ptx::wgmma_wait_group<0>();
      for (float& x : o) ptx::keep(x);
      if (is(Mutation::no_release_of_v)) return;
      if (thread() == 0) ptx::mbarrier_arrive(smem + v_empty(j % kStages));
    }

    VCA_DEVICE void softmax(uint32_t j, float early_scale) {
      const float factor = is(Mutation::scale_read_before_wait) ? early_scale : load_scale(j);
      const bool released = is(Mutation::scores_released_before_wait);
      if (is(Mutation::released_before_scale_is_read)) release_k(j);
      for (int i = 0; i < 64; i += 4) {
        max0 = ptx::max3_s32(max0, s[i], s[i + 1]);
        max1 = ptx::max3_s32(max1, s[i + 2], s[i + 3]);
      }
      quad_maxima(factor);
      if (!released && !is(Mutation::released_before_scale_is_read)) release_k(j);
      if (is(Mutation::released_twice)) release_k(j);
      for (int32_t& x : s) {
        x = static_cast<int32_t>(
            ptx::float_bits(ptx::fma_rn(ptx::cvt_rn_f32_s32(x), factor, kBias)));
      }
      if (is(Mutation::codes_packed_before_wait)) pack();
    }

    // The shuffled values depend on `factor`, so that a lane cannot be here before it has its
    // scale.
    VCA_DEVICE void quad_maxima(float factor) {
      if (is(Mutation::lane_missing_in_shuffle) && thread() == 45) return;
      const uint32_t mask = is(Mutation::lanes_disagree) && lane() == 7 ? 2u : 1u;
      int32_t bias = factor > 1e30f ? 1 : 0;
      max0 = ptx::max3_s32(max0, ptx::shfl_sync_bfly(max0 + bias, mask), max0);
      max1 = ptx::max3_s32(max1, ptx::shfl_sync_bfly(max1 + bias, 1), max1);
      max0 = ptx::max3_s32(max0, ptx::shfl_sync_bfly(max0, 2), max0);
      max1 = ptx::max3_s32(max1, ptx::shfl_sync_bfly(max1, 2), max1);
    }

    VCA_DEVICE void release_k(uint32_t j) {
      if (lane() == 0) ptx::mbarrier_arrive(smem + k_empty(j % kStages));
    }

    VCA_DEVICE void pack() {
      const auto f = [this](int i) { return ptx::bits_float(static_cast<uint32_t>(s[i])); };
      for (int b = 0; b < 8; ++b) {
        p[2 * b] = ptx::cvt_pack_sat_u8x4_f32(f(8 * b), f(8 * b + 1), f(8 * b + 4), f(8 * b + 5));
        p[2 * b + 1] =
            ptx::cvt_pack_sat_u8x4_f32(f(8 * b + 2), f(8 * b + 3), f(8 * b + 6), f(8 * b + 7));
      }
      for (uint32_t& x : p) ptx::keep(x);
    }

    // o += (sums in the indicator columns) . mu, as the attention kernel restores block means.
    VCA_DEVICE void add_means() {
      uint32_t a[4] = {ptx::cvt_rna_tf32_f32(o[64]), ptx::cvt_rna_tf32_f32(o[66]),
                       ptx::cvt_rna_tf32_f32(o[65]), ptx::cvt_rna_tf32_f32(o[67])};
      for (uint32_t& x : a) ptx::keep(x);
      ptx::wgmma_fence();
      ptx::wgmma_m64n128k8_f32_tf32_tf32(o, a, ptx::matrix_desc(smem + kMu, ptx::Swizzle::b32),
                                         true);
      ptx::wgmma_commit_group();
      if (!is(Mutation::never_waited)) ptx::wgmma_wait_group<0>();
      for (float& x : o) ptx::keep(x);
    }

    VCA_DEVICE void store() {
      for (uint32_t i = 0; i < 68; ++i) {
        const uint32_t r = row() + (i % 4 >= 2 ? 8 : 0);
        c.out[r * 136 + i / 4 * 8 + lane() % 4 * 2 + i % 2] = o[i];
      }
      if (lane() % 4 == 0) {
        c.maxima[row()] = max0;
        c.maxima[row() + 8] = max1;
      }
    }
  };
};

}  // namespace vca::tests
