// SPDX-License-Identifier: Apache-2.0
// Fragment-major tiles of sm_120 as bytes: each lane of mma.sync m16n8k64 (kind::mxf4nvf4, 4X
// UE4M3) finds its operand registers in one 16-byte load, without ldmatrix and without a swizzle.
//
// Fragments of the instruction, lane = 4g + t (PTX ISA); a register holds 8 elements along k, the
// first in the low nibble:
//
//   A  a0: row g, k 8t..    a1: row g+8, k 8t..    a2: row g, k 32+8t..    a3: row g+8, k 32+8t..
//   B  b0: column g, k 8t..                        b1: column g, k 32+8t..
//   C  c0, c1: row g, columns 2t, 2t+1             c2, c3: row g+8
//   SFA (selector tidA): lanes with t in {2 tidA, 2 tidA + 1} give the scales of row g + 8(t & 1)
//   SFB (selector tidB): lanes with t = tidB give the scales of column g; byte i is for k
//   16i..16i+15
//
//   tile         of               bytes (d = 128 / 64)   what lies at lane * 16
//   Q            16 rows          1024 / 512             {a0, a1, a2, a3} of k64 0, then of k64 1
//   Q scales     16 rows          128                    lane * 4: row g + 8(t & 1), k64 t / 2
//   K            128 keys x d     8192 / 4096            by n8 tile: {b0, b1} of each k64
//   K scales     128 keys         1024 / 512             by k64: one register for each 32 keys
//   V            128 keys x d     8192 / 4096            by n8 tile of channels: {b0, b1} of each
//   k64 V scales     128 keys         1024 / 512             by k64: one register for each 32
//   channels
//
// Keys of a K tile are permuted inside each 32, so that the scores a lane holds after QK are the A
// operand of PV: column q of the j-th n8 tile is key 8(q / 2) + 2j + (q & 1), hence lane t has the
// keys 8t .. 8t+7 of every 32 in its accumulators: natural order, which is also the order of the
// FP32 scores of the query mean that the accumulators start from.
#pragma once

#include <cstdint>

namespace vca::spec {

inline constexpr int64_t kSm120Rows = 16;   // query rows of a warp
inline constexpr int64_t kSm120Keys = 128;  // keys of a tile

// Key of column q (0 .. 7) in the j-th (0 .. 3) n8 tile of 32 keys.
constexpr int sm120_key_of_column(int j, int q) { return 8 * (q / 2) + 2 * j + (q & 1); }
static_assert(sm120_key_of_column(0, 0) == 0 && sm120_key_of_column(0, 2) == 8);
static_assert(sm120_key_of_column(3, 7) == 31 && sm120_key_of_column(1, 1) == 3);

// d is 64 or 128; other values are refused by an abort.
constexpr int64_t sm120_q_tile_bytes(int d) { return kSm120Rows * d / 2; }
constexpr int64_t sm120_q_scale_bytes() { return 128; }
constexpr int64_t sm120_k_tile_bytes(int d) { return kSm120Keys * d / 2; }
constexpr int64_t sm120_k_scale_bytes(int d) { return kSm120Keys * d / 16; }
constexpr int64_t sm120_v_tile_bytes(int d) { return kSm120Keys * d / 2; }
constexpr int64_t sm120_v_scale_bytes(int d) { return kSm120Keys * d / 16; }
// K, V, their scales, the scores of the query mean (FP32) and the block mean (BF16).
constexpr int64_t sm120_stage_bytes(int d) {
  return sm120_k_tile_bytes(d) + sm120_v_tile_bytes(d) + sm120_k_scale_bytes(d) +
         sm120_v_scale_bytes(d) + kSm120Keys * 4 + d * 2;
}
static_assert(sm120_stage_bytes(128) == 19200);

// From the flat arrays of operands.hpp: codes [rows][d/2] (fp4.hpp), micro-scales [rows][d/16].
void sm120_store_q(const uint8_t* codes, const uint8_t* micro, int d, uint8_t* tile,
                   uint8_t* scales);
void sm120_store_k(const uint8_t* codes, const uint8_t* micro, int d, uint8_t* tile,
                   uint8_t* scales);
// V: codes [128][d/2], micro-scales [128/16][d].
void sm120_store_v(const uint8_t* codes, const uint8_t* micro, int d, uint8_t* tile,
                   uint8_t* scales);

}  // namespace vca::spec
