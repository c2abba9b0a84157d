// SPDX-License-Identifier: Apache-2.0
// One kernel variant of sm_90a as a constexpr value: tile sizes, shared-memory map, barrier counts.
// Everything a number here decides stands next to it.
#pragma once

#include <cstdint>

#include "ptx/desc.hpp"
#include "spec/recipe.hpp"

namespace vca::kernels::sm90 {

enum class Form : uint8_t {
  local,        // vc8: block maximum, fresh accumulator, two-level
  running,      // vc8-turbo, vc8-paper: running maximum, accumulator flushed every 8 blocks
  running_exp,  // vc8-exp: the same with real exponentials, cast to codes and summed in FP32
  plain,        // sage2: running maximum, real exponentials, fresh accumulator, no block means
  plain_fp8,    // fp8: the same with E4M3 scores
};
inline constexpr Form kForms[] = {Form::local, Form::running, Form::running_exp, Form::plain,
                                  Form::plain_fp8};

// False: no kernel here.
constexpr bool find_form(const spec::Recipe& r, Form& form) {
  const bool integer = r.qk == spec::QkFormat::int8;
  const bool running_max = r.reference == spec::Reference::running_max;
  if (integer && r.p == spec::PMap::expcast && r.v == spec::VFormat::e4m3_smooth) {
    form = running_max ? Form::running : Form::local;
    return true;
  }
  if (r.p != spec::PMap::cast_e4m3 || !running_max) return false;
  if (integer && r.v == spec::VFormat::e4m3_smooth) {
    form = Form::running_exp;
    return true;
  }
  form = integer ? Form::plain : Form::plain_fp8;
  return r.v == spec::VFormat::e4m3_channel && (integer || r.qk == spec::QkFormat::e4m3_head);
}

// CTAs that share K and V by multicast, in the forms without exponentials. 1: each loads for
// itself.
inline constexpr uint32_t kMulticastCluster = 2;
constexpr uint32_t cluster_of(Form form) {
  return form == Form::local || form == Form::running ? kMulticastCluster : 1u;
}
// One CTA alone: 3 to 5 stages measured alike, and positions in a ring of 4 are bit fields of one
// counter. Two CTAs in step: 5 against 4 measured 1220 against 1201 TFLOP/s (vc8-turbo, H200).
constexpr uint32_t stages_of(uint32_t cluster) { return cluster == 1 ? 4u : 5u; }

struct Config {
  int d;  // 64 or 128
  Form form;
  uint32_t cluster;  // CTAs, 1 or 2
  uint32_t stages;
  friend constexpr bool operator==(const Config&, const Config&) = default;

  // ---- roles: warpgroup 0 loads, warpgroups 1 and 2 compute 64 query rows each ----
  static constexpr int kThreads = 384;
  static constexpr int kConsumers = 2;
  static constexpr int kTileRows = 128;
  static constexpr int kBlockKeys = 128;
  // 64K registers / 384 threads start at 168; the producer gives up what the consumers take: 24 + 2
  // * 240 = 504 = 3 * 168.
  static constexpr int kProducerRegisters = 24;
  static constexpr int kConsumerRegisters = 240;

  // ---- what the form means ----
  // Real exponentials: FP32 row sums, so pads of a tail block are masked there and no indicator
  // column is multiplied.
  constexpr bool real_exp() const { return form >= Form::running_exp; }
  constexpr bool means() const { return form <= Form::running_exp; }
  // Each block's product in an accumulator of its own, added to O by FP32 instructions.
  constexpr bool fresh() const { return form != Form::running && form != Form::running_exp; }
  constexpr bool fp8_scores() const { return form == Form::plain_fp8; }

  // ---- operand tiles ----
  constexpr ptx::Swizzle qk_swizzle() const {
    return d == 128 ? ptx::Swizzle::b128 : ptx::Swizzle::b64;
  }
  constexpr uint32_t qk_tile_bytes() const { return 128u * static_cast<uint32_t>(d); }
  constexpr uint32_t v_tile_bytes() const { return (static_cast<uint32_t>(d) + 8u) * 128u; }
  // The part of it that is loaded.
  constexpr uint32_t v_load_bytes() const {
    return real_exp() ? static_cast<uint32_t>(d) * 128u : v_tile_bytes();
  }
  constexpr uint32_t mu_tile_bytes() const { return means() ? static_cast<uint32_t>(d) * 32u : 0u; }
  constexpr int qk_steps() const { return d / 32; }
  // O, followed by the block sums of a group where there are block means.
  constexpr int o_regs() const { return means() ? d / 2 + 4 : d / 2; }
  // What PV accumulates into: with the indicator columns, unless sums come from exponentials.
  constexpr int pv_regs() const { return real_exp() ? d / 2 : d / 2 + 4; }
  constexpr int mean_regs() const { return d / 2; }

  // ---- shared memory ----
  // A stage holds K(j+1), V(j) and the key scales of block j+1: what one iteration of a consumer
  // reads. One pair of barriers a stage.
  constexpr uint32_t stage_bytes() const { return qk_tile_bytes() + v_load_bytes(); }
  constexpr uint32_t q_offset(uint32_t buffer) const { return buffer * qk_tile_bytes(); }
  constexpr uint32_t k_offset(uint32_t stage) const {
    return 2u * qk_tile_bytes() + stage * stage_bytes();
  }
  constexpr uint32_t v_offset(uint32_t stage) const { return k_offset(stage) + qk_tile_bytes(); }
  constexpr uint32_t mu_offset(uint32_t buffer) const {
    return k_offset(stages) + buffer * mu_tile_bytes();
  }
  // Key scales, and behind them the number of valid columns where sums need it.
  constexpr uint32_t k_scale_bytes() const { return real_exp() ? 32u : 16u; }
  constexpr uint32_t k_scale_offset(uint32_t stage) const {
    return mu_offset(2) + stage * k_scale_bytes();
  }
  constexpr uint32_t valid_offset(uint32_t stage) const { return k_scale_offset(stage) + 16u; }
  constexpr uint32_t exp2_offset() const { return k_scale_offset(stages); }  // 128 FP32
  // Barriers, 8 bytes each.
  constexpr uint32_t full(uint32_t stage) const { return exp2_offset() + 512u + 8u * stage; }
  constexpr uint32_t empty(uint32_t stage) const { return full(stages + stage); }
  constexpr uint32_t q_full(uint32_t buffer) const { return full(2u * stages + buffer); }
  constexpr uint32_t q_empty(uint32_t buffer) const { return full(2u * stages + 2u + buffer); }
  constexpr uint32_t mu_full(uint32_t buffer) const { return full(2u * stages + 4u + buffer); }
  constexpr uint32_t mu_empty(uint32_t buffer) const { return full(2u * stages + 6u + buffer); }
  constexpr uint32_t smem_bytes() const { return full(2u * stages + 8u); }

  // ---- arrivals ----
  // A stage: every consumer warp, because each loads key scales itself; of all CTAs that a
  // multicast writes to. Q and mu are read by wgmma alone: a warpgroup each.
  constexpr uint32_t stage_arrivals() const { return cluster * kConsumers * 4u; }
  static constexpr uint32_t kTileArrivals = kConsumers;
};

constexpr Config config_of(int d, Form form, uint32_t cluster) {
  return {d, form, cluster, stages_of(cluster)};
}
// As it is launched.
constexpr Config config_of(int d, Form form) { return config_of(d, form, cluster_of(form)); }

inline constexpr uint32_t kMaxSmemBytes = 227u * 1024u;

// The table of variants: f.operator()<Config>() of the variant of `form` and head_dim 64 or 128.
template <class F>
auto with_config(Form form, int d_pad, const F& f) {
  const auto with_form = [&]<Form kForm>() {
    return d_pad == 64 ? f.template operator()<config_of(64, kForm)>()
                       : f.template operator()<config_of(128, kForm)>();
  };
  switch (form) {
    case Form::local:
      return with_form.template operator()<Form::local>();
    case Form::running:
      return with_form.template operator()<Form::running>();
    case Form::running_exp:
      return with_form.template operator()<Form::running_exp>();
    case Form::plain:
      return with_form.template operator()<Form::plain>();
    default:
      return with_form.template operator()<Form::plain_fp8>();
  }
}

}  // namespace vca::kernels::sm90
