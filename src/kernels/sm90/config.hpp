// SPDX-License-Identifier: Apache-2.0
// One kernel variant of sm_90a as a constexpr value: tile sizes, shared-memory map, barrier counts.
// Everything a number here decides stands next to it.
#pragma once

#include <cstdint>

#include "ptx/desc.hpp"

namespace vca::kernels::sm90 {

enum class Form : uint8_t {
  local,    // vc8: block maximum, fresh accumulator, two-level
  running,  // vc8-turbo, vc8-paper: running maximum, accumulator flushed every 8 blocks
};

struct Config {
  int d;  // 64 or 128
  Form form;
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
  // A power of two, so that ring positions are bit fields of one counter. 3 to 5 measured alike.
  static constexpr uint32_t kStages = 4;

  // ---- operand tiles ----
  constexpr ptx::Swizzle qk_swizzle() const {
    return d == 128 ? ptx::Swizzle::b128 : ptx::Swizzle::b64;
  }
  constexpr uint32_t qk_tile_bytes() const { return 128u * static_cast<uint32_t>(d); }
  constexpr uint32_t v_tile_bytes() const { return (static_cast<uint32_t>(d) + 8u) * 128u; }
  constexpr uint32_t mu_tile_bytes() const { return static_cast<uint32_t>(d) * 32u; }
  constexpr int qk_steps() const { return d / 32; }
  constexpr int o_regs() const { return d / 2 + 4; }  // accumulator with the indicator columns
  constexpr int mean_regs() const { return d / 2; }

  // ---- shared memory ----
  // A stage holds K(j+1), V(j) and the key scales of block j+1: what one iteration of a consumer
  // reads. One pair of barriers a stage.
  constexpr uint32_t stage_bytes() const { return qk_tile_bytes() + v_tile_bytes(); }
  constexpr uint32_t q_offset(uint32_t buffer) const { return buffer * qk_tile_bytes(); }
  constexpr uint32_t k_offset(uint32_t stage) const {
    return 2u * qk_tile_bytes() + stage * stage_bytes();
  }
  constexpr uint32_t v_offset(uint32_t stage) const { return k_offset(stage) + qk_tile_bytes(); }
  constexpr uint32_t mu_offset(uint32_t buffer) const {
    return k_offset(kStages) + buffer * mu_tile_bytes();
  }
  constexpr uint32_t k_scale_offset(uint32_t stage) const { return mu_offset(2) + stage * 16u; }
  constexpr uint32_t exp2_offset() const { return k_scale_offset(kStages); }  // 128 FP32
  // Barriers, 8 bytes each.
  constexpr uint32_t full(uint32_t stage) const { return exp2_offset() + 512u + 8u * stage; }
  constexpr uint32_t empty(uint32_t stage) const { return full(kStages + stage); }
  constexpr uint32_t q_full(uint32_t buffer) const { return full(2u * kStages + buffer); }
  constexpr uint32_t q_empty(uint32_t buffer) const { return full(2u * kStages + 2u + buffer); }
  constexpr uint32_t mu_full(uint32_t buffer) const { return full(2u * kStages + 4u + buffer); }
  constexpr uint32_t mu_empty(uint32_t buffer) const { return full(2u * kStages + 6u + buffer); }
  constexpr uint32_t smem_bytes() const { return full(2u * kStages + 8u); }

  // ---- arrivals ----
  // A stage: every consumer warp, because each loads key scales itself. Q and mu are read by wgmma
  // alone: a warpgroup each.
  static constexpr uint32_t kStageArrivals = kConsumers * 4;
  static constexpr uint32_t kTileArrivals = kConsumers;
};

inline constexpr uint32_t kMaxSmemBytes = 227u * 1024u;

}  // namespace vca::kernels::sm90
