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
  int stages;      // K and V tiles in flight
  bool ping_pong;  // named barriers make the two consumers issue their MMAs in turn
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

  // ---- operand tiles ----
  constexpr uint32_t q_row_bytes() const { return static_cast<uint32_t>(d); }
  constexpr ptx::Swizzle qk_swizzle() const {
    return d == 128 ? ptx::Swizzle::b128 : ptx::Swizzle::b64;
  }
  constexpr uint32_t qk_tile_bytes() const { return 128u * q_row_bytes(); }
  constexpr uint32_t v_rows() const { return static_cast<uint32_t>(d) + 8u; }
  constexpr uint32_t v_tile_bytes() const { return v_rows() * 128u; }
  constexpr uint32_t mu_tile_bytes() const { return static_cast<uint32_t>(d) * 32u; }
  constexpr int qk_steps() const { return d / 32; }
  constexpr int o_regs() const { return d / 2 + 4; }  // accumulator with the indicator columns
  constexpr int mean_regs() const { return d / 2; }

  // ---- shared memory: Q x2, K x stages, V x stages, mu x2, key scales, barriers ----
  constexpr uint32_t v_stage_bytes() const { return (v_tile_bytes() + 1023u) / 1024u * 1024u; }
  constexpr uint32_t q_offset(int buffer) const {
    return static_cast<uint32_t>(buffer) * qk_tile_bytes();
  }
  constexpr uint32_t k_offset(int stage) const {
    return 2u * qk_tile_bytes() + static_cast<uint32_t>(stage) * qk_tile_bytes();
  }
  constexpr uint32_t v_offset(int stage) const {
    return k_offset(stages) + static_cast<uint32_t>(stage) * v_stage_bytes();
  }
  constexpr uint32_t mu_offset(int buffer) const {
    return v_offset(stages) + static_cast<uint32_t>(buffer) * mu_tile_bytes();
  }
  constexpr uint32_t k_scale_offset(int stage) const {
    return mu_offset(2) + static_cast<uint32_t>(stage) * 16u;
  }
  constexpr uint32_t exp2_offset() const { return k_scale_offset(stages); }  // 128 FP32
  constexpr uint32_t barrier_offset() const { return exp2_offset() + 512u; }
  // Barriers, 8 bytes each: full/empty of K, V, Q, mu.
  constexpr uint32_t k_full(int s) const {
    return barrier_offset() + 8u * static_cast<uint32_t>(s);
  }
  constexpr uint32_t k_empty(int s) const { return k_full(stages + s); }
  constexpr uint32_t v_full(int s) const { return k_full(2 * stages + s); }
  constexpr uint32_t v_empty(int s) const { return k_full(3 * stages + s); }
  constexpr uint32_t q_full(int b) const { return k_full(4 * stages + b); }
  constexpr uint32_t q_empty(int b) const { return k_full(4 * stages + 2 + b); }
  constexpr uint32_t mu_full(int b) const { return k_full(4 * stages + 4 + b); }
  constexpr uint32_t mu_empty(int b) const { return k_full(4 * stages + 6 + b); }
  constexpr uint32_t smem_bytes() const { return k_full(4 * stages + 8); }
};

inline constexpr uint32_t kMaxSmemBytes = 227u * 1024u;

}  // namespace vca::kernels::sm90
