// SPDX-License-Identifier: Apache-2.0
// T128: the operand tiles of sm90, sm100 and sm103 as bytes. Preprocessing writes each tile in the
// exact order in which the kernel consumes it, so that a tile is one contiguous copy into shared
// memory and already the canonical swizzled K-major layout of the matrix instruction.
//
//   tile  rows          bytes a row  swizzle
//   Q, K  128 tokens    d            SW128 (d = 128), SW64 (d = 64)
//   V     d + 8         128 keys     SW128; rows d … d + 7 are the indicators
//   μ     d             32           SW32; 8 blocks of FP32
//
// A tile's base is 1 KiB aligned in memory: the hardware applies the XOR to absolute addresses.
#pragma once

#include <cstdint>

namespace vca::spec {

inline constexpr int64_t kTileRows = 128;
inline constexpr int64_t kTileAlignment_bytes = 1024;
inline constexpr int kIndicatorRows = 8;
inline constexpr int kMuBlocks = 8;
inline constexpr uint8_t kIndicatorE4m3 = 0x38;  // 1.0
inline constexpr uint8_t kIndicatorInteger = 1;  // for u8 P codes and INT8 V codes

// Byte address of (row, byte) in a tile with rows of 128, 64 or 32 bytes. 16-byte chunks are
// permuted inside a row so that eight consecutive rows of one chunk column touch all 32 banks.
constexpr int64_t t128_offset(int64_t row, int64_t byte, int64_t row_bytes) {
  const int64_t chunks = row_bytes / 16;                   // 8, 4, 2
  const int64_t phase = (row * row_bytes / 128) % chunks;  // row % 8, (row / 2) % 4, (row / 4) % 2
  return row * row_bytes + ((byte / 16) ^ phase) * 16 + byte % 16;
}
static_assert(t128_offset(0, 0, 128) == 0);
static_assert(t128_offset(1, 0, 128) == 128 + 16);
static_assert(t128_offset(13, 37, 128) == 13 * 128 + 7 * 16 + 5);
static_assert(t128_offset(1, 16, 64) == 64 + 16);
static_assert(t128_offset(2, 16, 64) == 128 + 0);
static_assert(t128_offset(7, 63, 64) == 7 * 64 + 0 * 16 + 15);
static_assert(t128_offset(3, 0, 32) == 96);
static_assert(t128_offset(4, 0, 32) == 128 + 16);

// Key order in a V tile. The score accumulator of a thread (quad lane q) holds, for every 16 keys
// g, the keys 16g + 8x + 2q + e with x, e in {0, 1}; packed in register order they are the bytes
// 16g + 4q + 2x + e of the next instruction's A operand. With V's columns in that order no lane
// exchanges anything.
constexpr int v_key_of_column(int p) {
  return (p & ~15) + 8 * ((p >> 1) & 1) + 2 * ((p >> 2) & 3) + (p & 1);
}
constexpr int v_column_of_key(int n) {
  return (n & ~15) + 4 * ((n >> 1) & 3) + 2 * ((n >> 3) & 1) + (n & 1);
}
static_assert(v_key_of_column(0) == 0 && v_key_of_column(1) == 1);
static_assert(v_key_of_column(2) == 8 && v_key_of_column(3) == 9);
static_assert(v_key_of_column(4) == 2 && v_key_of_column(127) == 127);
static_assert(v_column_of_key(8) == 2 && v_column_of_key(2) == 4 && v_column_of_key(121) == 115);

// Block order in a μ tile: the row sums in indicator columns 0 … 7 stand in accumulator registers
// (2q, 2q + 1), and the tf32 A fragment wants columns (q, q + 4): κ = q takes block 2q, κ = q + 4
// takes block 2q + 1.
inline constexpr int kMuBlockOfColumn[kMuBlocks] = {0, 2, 4, 6, 1, 3, 5, 7};

// d is 64 or 128 in all of the following; other values are refused by an abort, because a tile of
// the wrong size would be written over its neighbour.
constexpr int64_t t128_qk_tile_bytes(int d) { return kTileRows * d; }
constexpr int64_t t128_v_tile_bytes(int d) { return int64_t{d + kIndicatorRows} * 128; }
constexpr int64_t t128_mu_tile_bytes(int d) { return int64_t{d} * kMuBlocks * 4; }
static_assert(t128_qk_tile_bytes(128) == 16384 && t128_qk_tile_bytes(64) == 8192);
static_assert(t128_v_tile_bytes(128) == 17408 && t128_v_tile_bytes(64) == 9216);
static_assert(t128_mu_tile_bytes(128) == 4096);

// Q or K tile from 128 rows of d codes (row-major, any 8-bit format), and back.
void t128_store_qk(const uint8_t* codes, int d, uint8_t* tile);
void t128_load_qk(const uint8_t* tile, int d, uint8_t* codes);

// V tile from 128 keys × d codes (row-major). Keys with valid[n] = 0 get code 0 in every channel
// and no indicator, whatever their codes are. Row d + indicator_row holds indicator_code in the
// columns of valid keys; the other indicator rows are 0.
void t128_store_v(const uint8_t* codes, const uint8_t* valid, int d, int indicator_row,
                  uint8_t* tile, uint8_t indicator_code = kIndicatorE4m3);

// Back to key order: 128 × d codes and the 8 indicator rows as 128 × 8 bytes (key-major).
void t128_load_v(const uint8_t* tile, int d, uint8_t* codes, uint8_t* indicators);

// μ tile from `blocks` (0 … 8) rows of d means; missing blocks are 0. Values are stored as they
// are: callers pass means that tf32 holds exactly (they are BF16). Little-endian FP32.
void t128_store_mu(const float* means, int blocks, int d, uint8_t* tile);

// Back to 8 rows of d means.
void t128_load_mu(const uint8_t* tile, int d, float* means);

}  // namespace vca::spec
